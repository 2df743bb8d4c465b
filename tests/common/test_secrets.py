"""Secrets: found by name, by shape, by what the process was given, and in addresses."""

import logging
import os
from dataclasses import dataclass
from pickle import dumps

import pytest
from transformers import TrainingArguments

from linformer_hf.common import secrets
from linformer_hf.common.secrets import (
    HIDDEN,
    HidingFilter,
    find_secret,
    hide,
    hide_everywhere,
    hide_in_command,
    is_token_field,
    move_tokens_to_environment,
)


TOKEN = "hf_" + "aBcD1234" * 4


@dataclass
class Options:
    """Options of a task."""

    token: str | None = None
    name: str = "a"
    files: list[str] | None = None


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    monkeypatch.setattr(secrets, "_given", set())
    monkeypatch.setenv("HF_TOKEN", "")


@pytest.mark.parametrize(
    "name", ["token", "--token", "hub_token", "hub-token", "push_to_hub_token", "api_key", "secret"]
)
def test_what_holds_a_secret_is_known_by_its_name(name):
    assert is_token_field(name)


@pytest.mark.parametrize("name", ["mask_token", "pad_token", "num_tokens", "tokenizer_name", "max_tokens", "keys"])
def test_other_names_hold_none(name):
    assert not is_token_field(name)


@pytest.mark.parametrize(
    ("words", "hidden"),
    [
        (["--hub_token", "short"], ["--hub_token", HIDDEN]),
        (["--hub-token=short", "--x"], [f"--hub-token={HIDDEN}", "--x"]),
        (["--token", "short", "--x", "short"], ["--token", HIDDEN, "--x", "short"]),
        (["--anything", TOKEN], ["--anything", HIDDEN]),
        ([f"--anything={TOKEN}"], [f"--anything={HIDDEN}"]),
        (["https://me:secret@host/x.csv"], [f"https://{HIDDEN}@host/x.csv"]),
        (
            ["--mask_token", "[MASK]", "hf_internal_testing/tiny"],
            ["--mask_token", "[MASK]", "hf_internal_testing/tiny"],
        ),
    ],
)
def test_the_words_of_a_command_lose_their_secrets(words, hidden):
    assert hide_in_command(words) == hidden


def test_an_abbreviated_option_is_hidden_by_the_value_that_it_gave():
    move_tokens_to_environment([Options(token="short")])
    assert hide_in_command(["--tok", "short", "--tok=short"]) == ["--tok", HIDDEN, f"--tok={HIDDEN}"]


@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET", "MY_PASSWORD"])
def test_values_of_the_environment_are_hidden_wherever_they_occur(monkeypatch, name):
    monkeypatch.setenv(name, "no-known-shape-17")
    assert hide("x no-known-shape-17 y") == f"x {HIDDEN} y"
    assert find_secret("xno-known-shape-17") == "no-k…"
    monkeypatch.delenv(name)
    assert hide("x no-known-shape-17 y") == "x no-known-shape-17 y"


def test_a_plain_word_in_the_environment_is_not_searched_for(monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "password")
    assert find_secret('{"password": 17}') is None


def test_the_token_of_hf_auth_login_is_hidden(monkeypatch, tmp_path):
    (tmp_path / "token").write_text("stored-by-login\n")
    monkeypatch.setattr(secrets.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    assert hide("x stored-by-login y") == f"x {HIDDEN} y"


def test_nested_values_are_searched_by_name_and_by_shape():
    nested = {"a": [{"hub_token": "short", "b": f"see {TOKEN}"}], "n": 1.5, "mask_token": "[MASK]", "token": None}
    assert hide_everywhere(nested) == {
        "a": [{"hub_token": HIDDEN, "b": f"see {HIDDEN}"}],
        "n": 1.5,
        "mask_token": "[MASK]",
        "token": None,
    }


@pytest.mark.parametrize(
    "text", ["plain", "hf_transformers_is_a_word", "https://host/a@b", "me@host", "hf://datasets/me/x@main"]
)
def test_harmless_texts_stay(text):
    assert hide(text) == text
    assert find_secret(text) is None


def test_tokens_leave_the_options_for_the_environment(tmp_path):
    training = TrainingArguments(output_dir=str(tmp_path), hub_token=TOKEN)
    move_tokens_to_environment([Options(), training])
    assert TOKEN.encode() not in dumps(training)
    assert os.environ["HF_TOKEN"] == TOKEN


def test_two_tokens_or_one_in_another_option_are_refused(tmp_path):
    with pytest.raises(ValueError, match="--token and --hub_token are different"):
        move_tokens_to_environment(
            [Options(token="one"), TrainingArguments(output_dir=str(tmp_path), hub_token="two")]
        )
    for options in (
        Options(name=f"x-{TOKEN}"),
        Options(files=["a", TOKEN]),
        Options(name="https://me:password@host/x"),
    ):
        with pytest.raises(ValueError, match="holds an access token") as caught:
            move_tokens_to_environment([options])
        assert TOKEN not in str(caught.value)


def test_a_log_handler_hides_secrets_and_keeps_all_else():
    record = logging.LogRecord("a", logging.INFO, "a.py", 1, "%s of %d", (f"me {TOKEN}", 3), None)
    assert HidingFilter().filter(record)
    assert record.getMessage() == f"me {HIDDEN} of 3"
