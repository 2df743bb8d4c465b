"""A masked-language-model run from text to a saved model, as a user starts it."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import assert_same_tensors
from safetensors.torch import load_file
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    pipeline,
)

from linformer_hf.common.loading import model_length
from linformer_hf.training.pretraining import PretrainingArguments, pretrain
from linformer_hf.training.pretraining_trainer import PretrainingTrainer
from linformer_hf.training.progress import loss_curves


ROOT = Path(__file__).parents[2]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
TINY = (
    "hidden_size=32,num_hidden_layers=2,num_attention_heads=2,intermediate_size=64,hidden_dropout_prob=0,"
    "attention_probs_dropout_prob=0"
)


OF_A_TRAINED_MODEL = dict.fromkeys(["config_overrides", "vocab_size", "projected_length"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A language of two hundred lines in which the colour follows from the animal."""
    file = tmp_path_factory.mktemp("text") / "corpus.txt"
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
    }
    return TrainingArguments(**{**defaults, **changes})


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    metrics = pretrain(arguments(corpus, line_by_line=True), training(folder, max_steps=150))
    return folder, metrics


def test_a_run_learns_more_than_frequencies(run):
    _, metrics = run
    assert metrics["perplexity"] < metrics["hidden_perplexity"] < 0.7 * metrics["unigram_perplexity"]
    assert metrics["unigram_perplexity"] < metrics["initial_perplexity"]


def test_what_was_saved_fills_in_words(run):
    folder, _ = run
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 32
    assert not model.config.sparse_prediction
    fillings = pipeline("fill-mask", model=model, tokenizer=tokenizer)("The cat of house 7 is<mask> and sleeps.")
    assert fillings[0]["score"] > fillings[-1]["score"] > 0


def test_a_run_leaves_its_record_and_its_card(run):
    folder, metrics = run
    record = json.loads((folder / "results.json").read_text())
    assert record["numbers"]["perplexity"] == metrics["perplexity"]
    assert record["numbers"]["seconds"] > 0
    assert record["arguments"]["vocab_size"] == 300
    assert record["versions"]["torch"] == torch.__version__
    assert "fill-mask" in (folder / "README.md").read_text()


def test_evaluation_alone_repeats_the_perplexity(run, corpus, tmp_path):
    folder, metrics = run
    again = pretrain(
        arguments(corpus, model_name_or_path=str(folder), line_by_line=True, **OF_A_TRAINED_MODEL),
        training(tmp_path / "eval", do_train=False),
    )
    assert again["perplexity"] == pytest.approx(metrics["perplexity"], rel=1e-5)


def test_the_first_steps_see_short_blocks_of_the_same_tokens(corpus, tmp_path, monkeypatch):
    shapes = []
    step = PretrainingTrainer.compute_loss

    def watch(self, model, inputs, **kwargs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return step(self, model, inputs, **kwargs)

    monkeypatch.setattr(PretrainingTrainer, "compute_loss", watch)
    pretrain(
        arguments(corpus, short_seq_length=8, short_share=0.5),
        training(tmp_path / "short", max_steps=6, do_eval=False, per_device_train_batch_size=4),
    )
    assert shapes == [(16, 8)] * 3 + [(4, 32)] * 3


@pytest.mark.parametrize(
    "changes",
    [
        {"line_by_line": True},
        {"whole_word_mask": True},
        {"streaming": True, "max_eval_samples": 40},
        {"projected_length": [8, 4], "projection_sharing": "key_value"},
        {"projection_type": "mean_pool"},
    ],
    ids=lambda changes: ", ".join(changes),
)
def test_every_way_to_make_examples_trains(corpus, tmp_path, changes):
    metrics = pretrain(arguments(corpus, **changes), training(tmp_path / "run", max_steps=3))
    assert metrics["perplexity"] < metrics["initial_perplexity"]


def test_a_run_goes_on_from_a_checkpoint_of_another(run, corpus, tmp_path):
    folder, metrics = run
    further = pretrain(
        arguments(corpus, model_name_or_path=str(folder), line_by_line=True, **OF_A_TRAINED_MODEL),
        training(tmp_path / "more"),
    )
    assert further["initial_perplexity"] == pytest.approx(metrics["perplexity"], rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 4096}, "shorter than one block of 4096"),
        ({"short_seq_length": 7}, "--short_seq_length is 7.*divide the block length 32"),
        ({"short_seq_length": 8, "line_by_line": True}, "--line_by_line"),
        ({"projected_length": [64]}, "projected_length.*64.*32"),
        ({"projected_length": [8, 8, 8]}, "projected_length.*3 numbers"),
        ({"projection_sharing": "all"}, "projection_sharing.*'all'.*layerwise"),
        ({"config_overrides": "hidden_size=wide"}, "wide"),
        ({"config_overrides": "depth=2"}, "depth"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_written(corpus, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        pretrain(arguments(corpus, **changes), training(tmp_path / "run"))
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_folder_with_other_files_is_not_written_to(corpus, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="no checkpoint to resume from"):
        pretrain(arguments(corpus), training(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_without_a_task_is_refused(corpus, tmp_path):
    with pytest.raises(ValueError, match="--do_train"):
        pretrain(arguments(corpus), training(tmp_path / "run", do_train=False, do_eval=False))
    with pytest.raises(ValueError, match="--model_name_or_path"):
        pretrain(arguments(corpus), training(tmp_path / "run", do_train=False))


class Killed(Exception):
    """Stands for whatever ends a run from outside."""


class KillAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise Killed


@pytest.fixture(scope="module")
def unbroken(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    pretrain(arguments(corpus, short_seq_length=8, short_share=0.5), training(folder, max_steps=12, save_steps=4))
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("step", [2, 6, 9], ids=["before a checkpoint", "in short blocks", "in full blocks"])
def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(corpus, tmp_path, monkeypatch, unbroken, step):
    given = arguments(corpus, short_seq_length=8, short_share=0.5)
    with monkeypatch.context() as context:
        build = PretrainingTrainer.__init__
        context.setattr(
            PretrainingTrainer,
            "__init__",
            lambda self, *args, callbacks, **kwargs: build(
                self, *args, **kwargs, callbacks=[*callbacks, KillAt(step)]
            ),
        )
        with pytest.raises(Killed):
            pretrain(given, training(tmp_path / "run", max_steps=12, save_steps=4))
    pretrain(given, training(tmp_path / "run", max_steps=12, save_steps=4))
    assert_same_tensors(load_file(tmp_path / "run" / "model.safetensors"), unbroken, what="weight")


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGKILL"])
def test_the_same_command_finishes_what_a_signal_ended(corpus, tmp_path, unbroken, signal_name):
    options = {
        **{
            name: value
            for name, value in vars(arguments(corpus, short_seq_length=8, short_share=0.5)).items()
            if value
        },
        **{"output_dir": str(tmp_path / "run"), "do_train": True, "do_eval": True, "max_steps": 12, "save_steps": 4},
        **{"learning_rate": 1e-2, "per_device_train_batch_size": 8, "use_cpu": True},
    }
    (tmp_path / "settings.json").write_text(json.dumps(options))
    command = [sys.executable, str(ROOT / "scripts" / "run_mlm.py"), str(tmp_path / "settings.json")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ONE_THREAD)
    wait_for(tmp_path / "run" / "checkpoint-4" / "trainer_state.json", process)
    process.send_signal(getattr(signal, signal_name))
    process.wait(timeout=60)
    done = subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_same_tensors(load_file(tmp_path / "run" / "model.safetensors"), unbroken, what="weight")


def wait_for(path, process, seconds=120):
    """Wait until a path is there, at most as long as the process lives."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end and process.poll() is None, f"{path} did not appear"
        time.sleep(0.01)


def test_a_half_written_checkpoint_is_passed_over(corpus, tmp_path, unbroken):
    given = arguments(corpus, short_seq_length=8, short_share=0.5)
    pretrain(given, training(tmp_path / "run", max_steps=12, save_steps=4))
    for file in (tmp_path / "run").iterdir():
        if file.is_file():
            file.unlink()
    (tmp_path / "run" / "checkpoint-12" / "trainer_state.json").write_text('{"epoch": 1.')
    shutil.rmtree(tmp_path / "run" / "checkpoint-8")
    pretrain(given, training(tmp_path / "run", max_steps=12, save_steps=4))
    assert_same_tensors(load_file(tmp_path / "run" / "model.safetensors"), unbroken, what="weight")


def test_two_processes_give_the_weights_of_one_with_twice_the_batch(corpus, tmp_path):
    flags = (
        f"--train_file {corpus} --config_overrides {TINY} --vocab_size 300 --max_seq_length 32 --projected_length 8 "
        "--do_train --do_eval --max_steps 6 --learning_rate 1e-2 --use_cpu --line_by_line --logging_steps 1 "
        "--train_sampling_strategy sequential"
    ).split()
    script = str(ROOT / "scripts" / "run_mlm.py")
    one = [sys.executable, script, *flags, "--output_dir", str(tmp_path / "one"), "--per_device_train_batch_size", "8"]
    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", script, *flags]
    two += ["--output_dir", str(tmp_path / "two"), "--per_device_train_batch_size", "4"]
    losses = []
    for command, folder in ((one, "one"), (two, "two")):
        done = subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD, timeout=300)
        assert done.returncode == 0, done.stderr
        state = json.loads((tmp_path / folder / "trainer_state.json").read_text())
        losses.append([entry["loss"] for entry in state["log_history"] if "loss" in entry])
    assert len(losses[0]) == 6
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    weights = [load_file(tmp_path / folder / "model.safetensors") for folder in ("one", "two")]
    assert_same_tensors(weights[1], weights[0], what="weight")


@pytest.mark.parametrize("model_type", ["roberta", "bert"])
def test_a_dense_twin_starts_from_nothing_and_reads_as_much(corpus, tmp_path, model_type):
    metrics = pretrain(
        arguments(corpus, model_type=model_type, projected_length=None), training(tmp_path / "run", max_steps=3)
    )
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run")
    assert model.config.model_type == model_type
    assert model_length(model) == 32
    assert metrics["perplexity"] < metrics["initial_perplexity"]


@pytest.mark.parametrize("model_type", ["gpt2", "robreta"])
def test_a_family_that_fills_in_no_words_is_refused(corpus, tmp_path, model_type):
    with pytest.raises(ValueError, match=model_type):
        pretrain(
            arguments(corpus, model_type=model_type, config_overrides=None, projected_length=None),
            training(tmp_path / "run"),
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "changes",
    [{"bf16": True}, {"activation_checkpointing": True}, {"report_to": "tensorboard"}],
    ids=lambda changes: ", ".join(changes),
)
def test_the_options_of_the_trainer_apply(corpus, tmp_path, changes):
    metrics = pretrain(arguments(corpus), training(tmp_path / "run", max_steps=3, **changes))
    assert metrics["perplexity"] < metrics["initial_perplexity"]
    assert list((tmp_path / "run").rglob("events.out.*")) or "report_to" not in changes


def test_a_compiled_run_ends_with_the_weights_of_a_plain_one(corpus, tmp_path):
    weights = []
    for is_compiled in (False, True):
        folder = tmp_path / str(is_compiled)
        pretrain(arguments(corpus), training(folder, max_steps=2, do_eval=False, torch_compile=is_compiled))
        weights.append(load_file(folder / "model.safetensors"))
    assert_same_tensors(*weights, torch.float32)


def test_a_run_counts_its_tokens_and_draws_its_curves(corpus, tmp_path):
    steps = {"max_steps": 6, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2}
    metrics = pretrain(arguments(corpus), training(tmp_path / "run", **steps))
    tokens = 6 * 8 * 32
    assert metrics["tokens_per_second"] == pytest.approx(tokens / metrics["train_runtime"])
    state = TrainerState.load_from_json(tmp_path / "run" / "trainer_state.json")
    curves = loss_curves(state)
    assert [step for step, _ in curves["training"]] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in curves["held out"]] == [0, 2, 4, 6]
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("limit", [100, 180], ids=["weights", "optimizer"])
def test_a_full_disk_gives_one_line_and_the_same_command_goes_on(corpus, tmp_path, limit):
    """A limit on the size of a file stands for the disk; weights and what the optimizer keeps lie around it."""
    flags = (
        f"--train_file {corpus} --output_dir {tmp_path / 'run'} --do_train --max_steps 4 --save_steps 2 --use_cpu "
        f"--config_overrides {TINY} --vocab_size 300 --max_seq_length 32 --projected_length 8 --disable_tqdm true"
    ).split()
    command = [sys.executable, str(ROOT / "scripts" / "run_mlm.py"), *flags]

    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit * 1024, resource.RLIM_INFINITY))

    full = subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD, timeout=300, preexec_fn=limit_files)
    assert full.returncode == 2, full.stderr
    assert "Traceback" not in full.stderr
    assert full.stderr.splitlines()[-1].startswith("error: ")
    assert "Make room" in full.stderr.splitlines()[-1]
    again = subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD, timeout=300)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "run" / "results.json").exists()
