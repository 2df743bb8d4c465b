"""Secrets: what is taken for one, and how it is kept out of records, cards, logs and errors."""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants


HIDDEN = "<TOKEN>"
TOKEN_FIELD = re.compile(r"(?:.*_)?(?:token|api_key|password|secret)")
# Transformers masks fields that end in `_token` too; a tokenizer's special tokens are no secrets
NO_SECRETS = re.compile(r"(?:pad|bos|eos|sep|cls|mask|unk|image|additional_special)_token")
ENVIRONMENT = re.compile(r"(?:.*_)?(?:TOKEN|API_?KEY|ACCESS_KEY|SECRET|PASSWORD)", flags=re.IGNORECASE)
SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_oauth_[\w.-]{16,}|hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|sk-[\w-]{20,}|AKIA[A-Z0-9]{16}(?![A-Za-z0-9]))"
)
ADDRESS = re.compile(r"(?<=://)[^\s/@'\"<>]+(?=@)")
SHORTEST = 8  # characters; a shorter value is hidden where it stands alone, not within other words

_given: set[str] = set()


def remember(value: str) -> None:
    """Keep a secret in mind, so that `hide` finds it wherever it occurs in this process."""
    if value:
        _given.add(value)


def is_token_field(name: str) -> bool:
    """Tell whether an option or field of this name holds a secret: `token`, `hub_token`, `hub-token`, `api_key`, …."""
    name = name.lstrip("-").replace("-", "_").lower()
    return TOKEN_FIELD.fullmatch(name) is not None and NO_SECRETS.fullmatch(name) is None


def known_secrets() -> list[str]:
    """Return the secrets of this process, the longest first: from options, environment, and `hf auth login`."""
    # a plain word, as in PASSWORD=password, would be found in any vocabulary
    found = {
        value
        for name, value in os.environ.items()
        if ENVIRONMENT.fullmatch(name) and len(value) >= SHORTEST and not (value.isalpha() and value.islower())
    }
    stored = Path(constants.HF_TOKEN_PATH)  # not `get_token`, which may ask the network for a fresh one
    with suppress(OSError, UnicodeDecodeError):
        found.add(stored.read_text(encoding="utf-8").strip())
    return sorted({*found, *_given} - {""}, key=len, reverse=True)


def hide(text: str) -> str:
    """Replace every secret in a text: those that are known, what has the shape of one, and `user:password@`."""
    for secret in known_secrets():
        if len(secret) >= SHORTEST:
            text = text.replace(secret, HIDDEN)
    return ADDRESS.sub(HIDDEN, SHAPES.sub(HIDDEN, text))


def hide_everywhere(value: Any) -> Any:
    """Replace secrets in all strings of a value, at any depth; a dictionary's entries also by their names."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {
            hide(name) if isinstance(name, str) else name: HIDDEN
            if isinstance(name, str) and isinstance(item, str) and item and is_token_field(name)
            else hide_everywhere(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [hide_everywhere(item) for item in value]
    return value


def hide_in_command(words: Sequence[str]) -> list[str]:
    """Replace secrets in the words of a command: `--hub_token X` and `--hub_token=X` as well as any known one."""
    known = set(known_secrets())
    hidden, value_follows = [], False
    for word in words:
        name, is_joined, value = word.partition("=")
        if value_follows or word in known:
            word = HIDDEN
        elif word.startswith("-") and is_joined and (is_token_field(name) or value in known):
            word = f"{name}={HIDDEN}"
        value_follows = word.startswith("-") and not is_joined and is_token_field(name)
        hidden.append(hide(word))
    return hidden


def find_shape(text: str) -> str | None:
    """Return the first part of a text that looks like a token or like `user:password` in an address; None without."""
    if match := SHAPES.search(text):
        return match[0]
    return next((match[0] for match in ADDRESS.finditer(text) if ":" in match[0]), None)


def find_secret(text: str) -> str | None:
    """Return the first characters of a secret in a text, known or by its shape; None where there is none."""
    known = (secret for secret in known_secrets() if len(secret) >= SHORTEST and secret in text)
    found = next(known, None) or find_shape(text)
    return None if found is None else f"{found[:4]}…"


def move_tokens_to_environment(groups: Sequence[Any]) -> None:
    """Take the tokens out of dataclasses of options; from then on the environment's `HF_TOKEN` holds the one given.

    The Trainer pickles its arguments beside the model. Whatever asks the Hub without a token of its own uses the
    environment's: weights, tokenizers, data sets, pushes.

    Args:
        groups: The dataclasses; they are changed.

    Raises:
        ValueError: If two different tokens are given, or another option holds something that looks like a token.
    """
    given = {}
    for options in groups:
        for field in fields(options) if is_dataclass(options) else ():
            value = getattr(options, field.name)
            if is_token_field(field.name) and isinstance(value, str) and value:
                given[field.name] = value
                remember(value)
                setattr(options, field.name, None)
    if len(set(given.values())) > 1:
        raise ValueError(f"{' and '.join(f'--{name}' for name in given)} are different tokens; give one.")
    for options in groups:
        for field in fields(options) if is_dataclass(options) else ():
            value = getattr(options, field.name)
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str) and (find_shape(text) or text in given.values()):
                    raise ValueError(
                        f"--{field.name} holds an access token or password, which would be published with what the "
                        "run writes; take it out. A token goes into the environment variable HF_TOKEN."
                    )
    for value in given.values():
        os.environ["HF_TOKEN"] = value


class HidingFilter(logging.Filter):
    """Hides secrets in what a log handler writes."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the message of a record; none is dropped."""
        message = record.getMessage()
        hidden = hide(message)
        if hidden != message:
            record.msg, record.args = hidden, ()
        return True
