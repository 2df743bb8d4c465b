"""Nothing that a run writes or says holds a token, wherever the user put one."""

import logging
import sys
from dataclasses import fields

import pytest
from transformers import TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from linformer_hf.common import secrets
from linformer_hf.common.command_line import run
from linformer_hf.sharing.hub import files_to_push
from linformer_hf.training.pretraining import PretrainingArguments, pretrain


TOKEN, KEY, PASSWORD = "hf_" + "aBcD1234" * 4, "key-of-no-known-shape", "correct-horse"
VARIABLES = ("HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "COMET_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD")
TINY = (
    "--max_steps 2 --per_device_train_batch_size 2 --use_cpu --disable_tqdm true --do_train --do_eval "
    "--max_seq_length 16 --report_to tensorboard --vocab_size 300 --config_overrides hidden_size=16,"
    "num_hidden_layers=1,num_attention_heads=2,intermediate_size=16,projected_length=8"
)


@pytest.fixture(autouse=True)
def own_process(monkeypatch):
    """What a command changes in its process does not outlive the test."""
    monkeypatch.setattr(secrets, "_given", set())
    monkeypatch.setenv("HF_TOKEN", "")
    for name in VARIABLES:
        monkeypatch.setenv(name, KEY)
    package = logging.getLogger("linformer_hf")
    handlers, level = list(package.handlers), package.level
    yield
    package.handlers[:] = handlers
    package.setLevel(level)
    unset_hf_deepspeed_config()  # kept by the host as soon as --deepspeed names anything


def command(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["linformer", "pretrain", *map(str, words)])
    run(pretrain, PretrainingArguments, TrainingArguments, program="linformer pretrain")


def texts_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("how", ["flags", "abbreviated", "settings"])
def test_a_run_that_is_given_tokens_writes_and_says_none(monkeypatch, tmp_path, capfd, caplog, how):
    lines = [f"Line {number} of boats, of {number % 7} rivers and of {number % 5} bridges." for number in range(400)]
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    folder = tmp_path / "run"
    given = {
        "flags": ["--hub_token", TOKEN, "--token", TOKEN],
        "abbreviated": [f"--hub-tok={TOKEN}"],
        "settings": [],
    }[how]
    words = ["--train_file", tmp_path / "corpus.txt", "--output_dir", folder, *TINY.split(), *given]
    if how == "settings":
        (tmp_path / "settings.yaml").write_text(f"hub_token: {TOKEN}\nrun_name: tiny\n")
        words = [tmp_path / "settings.yaml", *words]
    command(monkeypatch, *words)
    said = capfd.readouterr()
    found = texts_of(folder)
    assert {"results.json", "README.md", "training_args.bin", "trainer_state.json"} <= set(found)
    assert any("tfevents" in name for name in found)
    assert "README.md" in files_to_push(folder)
    for secret in (TOKEN, KEY):
        holding = [name for name, content in found.items() if secret.encode() in content]
        assert holding == []
        assert secret not in said.out + said.err + caplog.text


TEXT_OPTIONS = [
    (options, option.name)
    for options in (PretrainingArguments, TrainingArguments)
    for option in fields(options)
    if option.init and not secrets.is_token_field(option.name) and "str" in str(option.type)
]


@pytest.mark.parametrize(("options", "name"), TEXT_OPTIONS)
@pytest.mark.parametrize("value", [TOKEN, f"https://me:{PASSWORD}@host/data"], ids=["token", "address"])
def test_a_secret_in_any_other_option_is_refused_before_the_run(monkeypatch, tmp_path, capsys, options, name, value):
    required = [] if name == "output_dir" else ["--output_dir", tmp_path / "run"]
    with pytest.raises(SystemExit) as stopped:
        command(monkeypatch, *required, "--do_train", "--use_cpu", f"--{name}", value)
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert TOKEN not in said and PASSWORD not in said
    assert not (tmp_path / "run").exists()


def test_an_error_of_the_program_shows_no_token(monkeypatch, tmp_path, capsys):
    def fail(arguments, training):
        raise ZeroDivisionError(f"while asking https://me:{PASSWORD}@host with {TOKEN} and {KEY}")

    monkeypatch.setattr(sys, "argv", ["linformer", "--output_dir", str(tmp_path)])
    with pytest.raises(RuntimeError) as caught:
        run(fail, PretrainingArguments, TrainingArguments)
    assert caught.value.__suppress_context__  # else Python would print the first error as well
    assert "ZeroDivisionError" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in (TOKEN, KEY, PASSWORD))
