#!/usr/bin/env bash
# From a fresh clone to a Linformer that fills in masked words: sets up an environment, pretrains on the library source
# code that every Python carries, loads the result through the Auto class and asks it. No download but packages.
# The first argument is the folder of the model; further ones are options of the pretraining.
source "$(dirname "$0")/environment.sh" train
model=${1:-runs/quickstart}

if [ -f "$model/model.safetensors" ]; then
    echo "$model holds a model already; delete the folder to train it anew."
else
    "$python" scripts/run_mlm.py scripts/quickstart.yaml --output_dir "$model" "${@:2}"
fi

"$python" - "$model" <<'PYTHON'
import json
import sys
from collections import Counter
from pathlib import Path

from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

import linformer_hf
from linformer_hf.data import builtin_sample

folder = sys.argv[1]
model = AutoModelForMaskedLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
fill = pipeline("fill-mask", model=model, tokenizer=tokenizer, top_k=3)
counts = Counter()
for text in builtin_sample("source")["train"]["text"][::10]:
    counts.update(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
frequent = ", ".join(f"{tokenizer.decode(word)!r} {count / counts.total():.1%}" for word, count in counts.most_common(3))
print(f"\nThe most frequent tokens, which guessing by frequency alone would give everywhere: {frequent}")
for text in (
    "if value is <mask>:\n    return",
    "        raise <mask>('bad value')",
    "    def __init__(<mask>, name):",
    "import os\nimport <mask>\n",
    "    try:\n        value = int(text)\n    except <mask>:\n        pass",
):
    print(f"\n{text}")
    for filling in fill(text):
        print(f"    {filling['score']:6.1%}  {filling['token_str'].strip() or repr(filling['token_str'])}")

numbers = json.loads(Path(folder, "results.json").read_text())["numbers"]
print(
    f"""
Perplexity of words hidden in held-out files, {model.config.max_position_embeddings} tokens at a time, k = {model.config.projected_length} by layer:
    {numbers["unigram_perplexity"]:6.0f}  guessing by word frequency
    {numbers["hidden_perplexity"]:6.0f}  this model, after {numbers["train_runtime"]:.0f} seconds of training

Next:
    linformer pretrain --train_file YOUR_TEXT.txt --output_dir runs/mine --do_train --do_eval
    linformer --help
    AutoModelForMaskedLM.from_pretrained("{folder}") after `import linformer_hf` loads this model in Python."""
)
PYTHON
