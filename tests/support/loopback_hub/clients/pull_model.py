"""Load what `push_model` pushed, on a machine that has never heard of the package."""

import json
import sys
from contextlib import suppress

from transformers import AutoModelForMaskedLM, AutoTokenizer


with suppress(ModuleNotFoundError):
    import linformer_hf  # noqa: F401
logits = []
for repo in ("owner/tiny", "owner/trained"):
    tokenizer = AutoTokenizer.from_pretrained(repo, trust_remote_code=True)
    model = AutoModelForMaskedLM.from_pretrained(repo, trust_remote_code=True)
    logits.append(model(**tokenizer("a b c", return_tensors="pt")).logits.tolist())
assert "linformer_hf" not in sys.modules
json.dump(logits, sys.stdout)
