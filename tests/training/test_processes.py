"""Runs in processes of their own: several that train together, one that is killed, and one whose disk is full."""

import json
import multiprocessing
import os
import resource
import sys
import time
from functools import partial

import pytest
from conftest import assert_same_tensors
from pretraining_tasks import TINY, arguments, training, write_corpus
from safetensors.torch import load_file
from transformers import TrainingArguments
from two_processes import run_by_two

from linformer_hf.common.command_line import run
from linformer_hf.common.processes import USE_CPU, join_processes_on_cpus
from linformer_hf.training.pretraining import PretrainingArguments, pretrain


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus.txt")


def test_two_processes_give_the_weights_of_one_with_twice_the_batch_without_further_options(
    corpus, tmp_path, monkeypatch
):
    """Nothing in the line names CPUs, as in the README, where torchrun starts the two.

    AdamW would divide the rounding errors of key biases, whose gradients are zero, by themselves.
    """
    flags = (
        f"run_mlm.py --train_file {corpus} --config_overrides {TINY} --vocab_size 300 --max_seq_length 32 "
        "--projected_length 8 --do_train --do_eval --max_steps 6 --learning_rate 0.5 --optim sgd --line_by_line "
        "--logging_steps 1 --train_sampling_strategy sequential --per_device_train_batch_size 4 "
        f"--output_dir {tmp_path / 'two'}"
    ).split()
    monkeypatch.setattr(sys, "argv", flags)
    run_by_two(partial(run, pretrain, PretrainingArguments, TrainingArguments), tmp_path / "nothing.pt")
    one = {"max_steps": 6, "logging_steps": 1, "train_sampling_strategy": "sequential"}
    one |= {"learning_rate": 0.5, "optim": "sgd"}
    pretrain(arguments(corpus, line_by_line=True), training(tmp_path / "one", **one))
    states = [json.loads((tmp_path / name / "trainer_state.json").read_text()) for name in ("one", "two")]
    losses = [[entry["loss"] for entry in state["log_history"] if "loss" in entry] for state in states]
    assert len(losses[0]) == 6
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    assert_same_tensors(weights[1], weights[0], what="weight")
    numbers = [json.loads((tmp_path / name / "results.json").read_text())["numbers"] for name in ("one", "two")]
    assert numbers[1]["hidden_perplexity"] == pytest.approx(numbers[0]["hidden_perplexity"], rel=1e-4)


@pytest.mark.parametrize(
    ("launched", "has_accelerator", "expected"), [(True, False, "true"), (True, True, None), (False, False, None)]
)
def test_processes_take_cpus_where_there_is_nothing_else(monkeypatch, launched, has_accelerator, expected):
    monkeypatch.setenv(USE_CPU, "")  # restored afterwards
    monkeypatch.delenv(USE_CPU)
    for name, value in (("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value) if launched else monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: has_accelerator)
    join_processes_on_cpus()
    assert os.environ.get(USE_CPU) == expected


def test_the_same_command_finishes_what_a_signal_ended(corpus, tmp_path, monkeypatch):
    given = {"short_seq_length": 8, "short_share": 0.5}
    options = {"max_steps": 12, "save_steps": 4, "do_eval": False}
    settings = {name: value for name, value in vars(arguments(corpus, **given)).items() if value}
    settings |= {**options, "do_train": True, "output_dir": str(tmp_path / "run"), "use_cpu": True}
    settings |= {"learning_rate": 1e-2, "per_device_train_batch_size": 8}
    (tmp_path / "settings.json").write_text(json.dumps({name: value for name, value in settings.items() if value}))
    monkeypatch.setattr(sys, "argv", ["run_mlm.py", str(tmp_path / "settings.json")])
    command = partial(run, pretrain, PretrainingArguments, TrainingArguments)
    process = multiprocessing.get_context("fork").Process(target=command, daemon=True)
    process.start()
    try:
        wait_for(tmp_path / "run" / "checkpoint-4" / "trainer_state.json", process)
    finally:
        process.kill()
        process.join()
    pretrain(arguments(corpus, **given), training(tmp_path / "run", **options))
    pretrain(arguments(corpus, **given), training(tmp_path / "unbroken", **options))
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("run", "unbroken")]
    assert_same_tensors(*weights, what="weight")


def wait_for(path, process):
    """Wait until a path is there, as long as the process lives."""
    while not path.exists():
        assert process.is_alive(), f"{path} did not appear"
        time.sleep(0.01)


@pytest.mark.parametrize("limit", [100, 180], ids=["weights", "optimizer"])
def test_a_full_disk_gives_one_line_and_the_same_command_goes_on(corpus, tmp_path, monkeypatch, capsys, limit):
    """A limit on the size of a file stands for the disk; weights and what the optimizer keeps lie around it."""
    flags = (
        f"--train_file {corpus} --output_dir {tmp_path / 'run'} --do_train --max_steps 4 --save_steps 2 --use_cpu "
        f"--config_overrides {TINY} --vocab_size 300 --max_seq_length 32 --projected_length 8 --disable_tqdm true"
    )
    monkeypatch.setattr(sys, "argv", ["run_mlm.py", *flags.split()])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit * 1024, before[1]))
    try:
        with pytest.raises(SystemExit) as end:
            run(pretrain, PretrainingArguments, TrainingArguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert end.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ") and "Make room" in last
    run(pretrain, PretrainingArguments, TrainingArguments)
    assert (tmp_path / "run" / "results.json").exists()
