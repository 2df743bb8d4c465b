"""Push a good and a bad card, each in two ways."""

import json
import sys

from huggingface_hub import HfApi, ModelCard


repo = "owner/card"
api = HfApi()
api.create_repo(repo)
outcomes = {}


def attempt(name, call, *arguments, **options):
    try:
        call(*arguments, **options)
        outcomes[name] = "pushed"
    except ValueError as error:
        outcomes[name] = str(error)


for name, license_name in (("good", "mit"), ("bad", "Apache License")):
    card = ModelCard(f"---\nlicense: {license_name}\n---\n# Card\n")
    attempt(f"{name} card", card.push_to_hub, repo)
    content = str(card).encode()
    attempt(f"{name} file", api.upload_file, repo_id=repo, path_in_repo="README.md", path_or_fileobj=content)
json.dump([outcomes, ModelCard.load(repo).data.license], sys.stdout)
