"""A small language, the arguments of a pretraining run on it, and what ends a run from outside."""

import pytest
from transformers import TrainerCallback, TrainingArguments

from linformer_hf.training.pretraining import PretrainingArguments, pretrain
from linformer_hf.training.pretraining_trainer import PretrainingTrainer


TINY = (
    "hidden_size=32,num_hidden_layers=2,num_attention_heads=2,intermediate_size=64,hidden_dropout_prob=0,"
    "attention_probs_dropout_prob=0"
)
# options that only a new model takes
OF_A_TRAINED_MODEL = dict.fromkeys(["config_overrides", "vocab_size", "projected_length"])


def write_corpus(file):
    """Write two hundred lines in which the colour follows from the animal."""
    colours = {"cat": "black", "dog": "brown", "owl": "white", "fox": "red"}
    lines = [
        f"The {animal} of house {number} is {colour} and sleeps at noon."
        for number in range(50)
        for animal, colour in colours.items()
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


def arguments(corpus, **changes):
    defaults = {
        "train_file": [corpus],
        "config_overrides": TINY,
        "vocab_size": 300,
        "max_seq_length": 32,
        "projected_length": [8],
    }
    return PretrainingArguments(**{**defaults, **changes})


def training(folder, **changes):
    defaults = {
        "output_dir": str(folder),
        "do_train": True,
        "do_eval": True,
        "max_steps": 20,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 8,
        "disable_tqdm": True,
        "use_cpu": True,
        "report_to": "none",
    }
    return TrainingArguments(**{**defaults, **changes})


class Killed(Exception):
    """Stands for whatever ends a run from outside."""


class KillAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise Killed


def pretrain_until(step, given, options):
    """Run a pretraining that ends from outside after a step."""
    build = PretrainingTrainer.__init__

    def build_mortal(self, *args, callbacks, **kwargs):
        build(self, *args, callbacks=[*callbacks, KillAt(step)], **kwargs)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(PretrainingTrainer, "__init__", build_mortal)
        pretrain(given, options)
