"""Tables of labelled texts, tiny models, and the arguments of a fine-tuning run on them."""

import csv
import json
import random
from pathlib import Path

import torch
from datasets import Dataset
from transformers import RobertaConfig, RobertaForMaskedLM, TrainingArguments

from linformer_hf import LinformerConfig, LinformerForMaskedLM
from linformer_hf.data.tokenizers import train_tokenizer
from linformer_hf.training.finetuning import FinetuningArguments


NOISE = ["film", "plot", "cast", "scene", "music", "light"]
VOCABULARY = [*NOISE, "good", "bad", "loud", "dark", "yes", "no", "the", "of", "is", "a", "Bonn", "Rome"]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,
}


def make_models(folder):
    """Save a Linformer and a RoBERTa, tiny and random, with one tokenizer; both read 32 tokens."""
    tokenizer = train_tokenizer([" ".join(VOCABULARY)] * 3, vocab_size=330, max_length=32)
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), **SIZES}
    linformer = LinformerForMaskedLM(LinformerConfig(max_position_embeddings=32, projected_length=8, **sizes))
    roberta = RobertaForMaskedLM(RobertaConfig(max_position_embeddings=34, type_vocab_size=1, **sizes))
    for name, model in (("linformer", linformer), ("roberta", roberta)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def sentence(*words, seed):
    """Strew words into noise of up to six words."""
    drawn = random.Random(seed)
    found = [*words, *(drawn.choice(NOISE) for _ in range(drawn.randint(2, 6)))]
    drawn.shuffle(found)
    return " ".join(found)


def opinions(rows=120):
    """A table whose label follows from a single word; three of four rows are good ones."""
    labels = ["bad" if row % 4 == 0 else "good" for row in range(rows)]
    return [
        {"text": sentence(label, seed=row), "label": {"good": "praise", "bad": "blame"}[label]}
        for row, label in enumerate(labels)
    ]


def write(file, rows):
    """Write rows as the name of the file asks."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows), encoding="utf-8")
    elif file.suffix == ".parquet":
        Dataset.from_list(rows).to_parquet(file)
    else:
        with open(file, "w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, list(rows[0]), delimiter="\t" if file.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return str(file)


def arguments(models, model="linformer", **changes):
    return FinetuningArguments(**{"model_name_or_path": str(models / model), **changes})


def training(folder, **changes):
    defaults = {
        "output_dir": str(folder),
        "do_train": True,
        "do_eval": True,
        "max_steps": 1,
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 16,
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(**{**defaults, **changes})


def answers(file):
    """Read what a run has answered."""
    lines = Path(file).read_text("utf-8").splitlines()
    assert lines[0] == "index\tprediction"
    numbers, found = zip(*(line.split("\t") for line in lines[1:]))
    assert numbers == tuple(map(str, range(len(found))))
    return list(found)


def pairs(rows=120):
    """The label follows from the second text."""
    return [
        {
            "question": sentence(seed=row),
            "answer": sentence("yes" if row % 3 else "no", seed=-row),
            "verdict": bool(row % 3),
        }
        for row in range(rows)
    ]


def ratings(rows=120):
    """The number to predict is how many words are good."""
    return [{"text": " ".join(["good"] * (row % 5) + ["film"] * 3), "label": row % 5 / 2} for row in range(rows)]


def tags(rows=120):
    """Two words, and what they say, are there or not, independently."""
    return [[word for bit, word in enumerate(("loud", "dark")) if row >> bit & 1] for row in range(rows)]
