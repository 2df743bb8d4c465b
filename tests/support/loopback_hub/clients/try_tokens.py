"""Ask for the same things with different tokens."""

import json
import sys

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError


stranger = sys.argv[1]
api = HfApi()
api.create_repo("owner/secret", private=True)
api.create_repo("owner/open")
outcomes = {}


def attempt(name, call, *arguments, **options):
    try:
        call(*arguments, **options)
        outcomes[name] = "done"
    except HfHubHTTPError as error:
        outcomes[name] = f"{type(error).__name__} {error.response.status_code}"


attempt("owner reads", api.model_info, "owner/secret")
attempt("stranger reads", api.model_info, "owner/secret", token=stranger)
attempt("nobody reads", api.model_info, "owner/secret", token=False)
attempt("nobody reads open", api.model_info, "owner/open", token=False)
attempt("wrong token", api.model_info, "owner/open", token="hf_wrong")
attempt("wrong token, whoami", api.whoami, token="hf_wrong")
attempt("missing", api.model_info, "owner/missing")
attempt("no namespace", api.model_info, "gpt2")
file = {"path_in_repo": "a.txt", "path_or_fileobj": b"a", "repo_id": "owner/open"}
attempt("stranger writes", api.upload_file, **file, token=stranger)
attempt("nobody writes", api.upload_file, **file, token=False)
attempt("stranger proposes", api.upload_file, **file, token=stranger, create_pr=True)
attempt("stranger creates", api.create_repo, "owner/taken", token=stranger)
attempt("stranger deletes", api.delete_repo, "owner/open", token=stranger)
attempt("created twice", api.create_repo, "owner/open")
api.update_repo_settings("owner/secret", private=False)
attempt("stranger reads later", api.model_info, "owner/secret", token=stranger)
json.dump(outcomes, sys.stdout)
