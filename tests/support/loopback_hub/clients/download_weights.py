"""Download the weights of a repo, and compare them with a local file."""

import json
import sys
from pathlib import Path

from huggingface_hub import hf_hub_download


content = Path(hf_hub_download(sys.argv[1], "weights.safetensors")).read_bytes()
json.dump([len(content), content == Path(sys.argv[2]).read_bytes()], sys.stdout)
