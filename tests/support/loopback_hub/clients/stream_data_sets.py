"""Push data sets as a table and as lines of text, and read them in place and as a whole."""

import json
import sys

from datasets import Dataset, load_dataset
from huggingface_hub import HfApi


lines = [f"line {i}" for i in range(40)]
Dataset.from_dict({"text": lines}).push_to_hub("owner/table")
api = HfApi()
api.create_repo("owner/lines", repo_type="dataset")
api.upload_file(
    repo_id="owner/lines", repo_type="dataset", path_in_repo="train.txt", path_or_fileobj="\n".join(lines).encode()
)
found = {}
for repo in ("owner/table", "owner/lines"):
    streamed = [row["text"] for row in load_dataset(repo, split="train", streaming=True)]
    found[repo] = streamed == load_dataset(repo, split="train")["text"] == lines
json.dump(found, sys.stdout)
