"""Push a folder, then one more commit each to main, a branch and a pull request."""

import json
import sys

from huggingface_hub import HfApi


api, repo, folder = HfApi(), sys.argv[1], sys.argv[2]
api.create_repo(repo)
api.upload_folder(repo_id=repo, folder_path=folder)
api.create_branch(repo, branch="try/out")
api.create_tag(repo, tag="v1.0")
api.upload_file(repo_id=repo, path_in_repo="docs/text.txt", path_or_fileobj=b"main")
api.upload_file(repo_id=repo, path_in_repo="docs/text.txt", path_or_fileobj=b"branch", revision="try/out")
request = api.upload_file(repo_id=repo, path_in_repo="docs/text.txt", path_or_fileobj=b"request", create_pr=True)
refs = api.list_repo_refs(repo, include_pull_requests=True)
info = api.model_info(repo, files_metadata=True)
json.dump(
    {
        "request": request.pr_revision,
        "refs": [ref.ref for ref in [*refs.branches, *refs.tags, *refs.pull_requests]],
        "titles": [commit.title for commit in api.list_repo_commits(repo, revision="refs/pr/1")],
        "files": {file.rfilename: [file.size, file.lfs is not None] for file in info.siblings},
        "license": info.card_data.license,
        "tags": info.tags,
    },
    sys.stdout,
)
