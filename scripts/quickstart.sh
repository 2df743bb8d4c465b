#!/usr/bin/env bash
# From a fresh clone to a Linformer that fills in masked words of real English: sets up an environment, pretrains on the
# documentation that every Python carries, loads the result through the Auto class and asks it. No download but packages.
source "$(dirname "$0")/environment.sh" train
model=${1:-runs/quickstart}

if [ -f "$model/model.safetensors" ]; then
    echo "$model holds a model already; delete the folder to train it anew."
else
    "$python" scripts/run_mlm.py scripts/quickstart.yaml --output_dir "$model"
fi

"$python" - "$model" <<'PYTHON'
import json
import sys
from pathlib import Path

from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

import linformer_hf

folder = sys.argv[1]
model = AutoModelForMaskedLM.from_pretrained(folder)
fill = pipeline("fill-mask", model=model, tokenizer=AutoTokenizer.from_pretrained(folder), top_k=3)
for text in (
    "Return True if the string is <mask>.",
    "If the file does <mask> exist, an error is raised.",
    "This method returns a <mask> of the arguments.",
    "The default value of this argument <mask> None.",
):
    print(f"\n{text}")
    for filling in fill(text):
        print(f"    {filling['score']:6.1%}  {filling['token_str'].strip() or '(line break)'}")

numbers = json.loads(Path(folder, "results.json").read_text())["numbers"]
print(
    f"""
Perplexity of words hidden in the held-out text, {model.config.max_position_embeddings} tokens at a time, k = {model.config.projected_length}:
    {numbers["unigram_perplexity"]:6.0f}  guessing by word frequency
    {numbers["hidden_perplexity"]:6.0f}  this model, after {numbers["train_runtime"]:.0f} seconds of training
Masked as in training, where every tenth of the words to predict is left to be copied:
    {numbers["initial_perplexity"]:6.0f}  this model before training
    {numbers["perplexity"]:6.0f}  this model now

Next:
    python scripts/run_mlm.py --train_file YOUR_TEXT.txt --output_dir runs/mine --do_train --do_eval
    python scripts/run_mlm.py --help
    AutoModelForMaskedLM.from_pretrained("{folder}") after `import linformer_hf` loads this model in Python."""
)
PYTHON
