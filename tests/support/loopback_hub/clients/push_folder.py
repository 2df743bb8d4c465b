"""Push a folder to a repo that may exist."""

import json
import sys

from huggingface_hub import HfApi


api, repo, folder = HfApi(), sys.argv[1], sys.argv[2]
api.create_repo(repo, exist_ok=True)
api.upload_folder(repo_id=repo, folder_path=folder)
json.dump(api.list_repo_files(repo), sys.stdout)
