"""Move, name and delete things, also where that cannot work."""

import json
import sys

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RevisionNotFoundError


api, repo = HfApi(), "owner/changes"


def add(path, **options):
    return api.upload_file(repo_id=repo, path_in_repo=path, path_or_fileobj=b"x", **options)


api.create_repo(repo)
first = api.model_info(repo).sha
outcomes = {}


def attempt(name, expected, call, *arguments, **options):
    try:
        outcomes[name] = repr(call(*arguments, **options))
    except expected as error:
        outcomes[name] = error.response.status_code


add("a.txt", parent_commit=first)
attempt("stale parent", HfHubHTTPError, add, "b.txt", parent_commit=first)
attempt("no file", EntryNotFoundError, hf_hub_download, repo, "b.txt")
attempt("no branch", RevisionNotFoundError, hf_hub_download, repo, "a.txt", revision="nowhere")
attempt("write to no branch", RevisionNotFoundError, add, "b.txt", revision="nowhere")
attempt("delete no file", EntryNotFoundError, api.delete_file, "b.txt", repo)
api.create_branch(repo, branch="side", revision=first)
api.create_tag(repo, tag="t", revision="side")
attempt("branch again", HfHubHTTPError, api.create_branch, repo, branch="side")
api.create_branch(repo, branch="side", exist_ok=True)
attempt("tag again", HfHubHTTPError, api.create_tag, repo, tag="t")
side = api.list_repo_files(repo, revision="t")
api.delete_branch(repo, branch="side")
api.delete_tag(repo, tag="t")
refs = api.list_repo_refs(repo)
left = [ref.ref for ref in refs.branches + refs.tags]
for name in ("d/1.txt", "d/e/2.txt"):
    add(name)
api.delete_folder("d", repo)
files = api.list_repo_files(repo)
api.delete_repo(repo)
json.dump([outcomes, side, left, files, api.repo_exists(repo)], sys.stdout)
