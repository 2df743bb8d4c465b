"""Files and folders that are written whole or not at all."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from .secrets import hide_everywhere


JSON_KINDS = {dict: "an object", list: "a list"}
UNFINISHED = ".part"  # at the end of the name of a file that is being written


@contextmanager
def written_aside(file: str | Path) -> Iterator[Path]:
    """Give the path of an unfinished file, which takes the place of the file when the block ends without an error.

    A reader finds the old file or the new one, and never half of one, even if the process is killed.

    Args:
        file: What is written; its folder is made.
    """
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(file.name + UNFINISHED)
    try:
        yield unfinished
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(file: str | Path, text: str) -> Path:
    """Write a text in UTF-8, whole or not at all, and return the file."""
    with written_aside(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return Path(file)


def write_json(file: str | Path, content: Mapping[str, Any], **options: Any) -> Path:
    """Write a JSON object with sorted keys, whole or not at all.

    JSON has no number for infinity and NaN; they are written as the strings `"Infinity"`, `"-Infinity"` and `"NaN"`,
    which `float` reads. Secrets are replaced by `<TOKEN>`.

    Args:
        file: What is written; its folder is made.
        content: The object.
        **options: For `json.dumps`.

    Returns:
        The file.
    """
    text = json.dumps(spell_non_finite(hide_everywhere(content)), sort_keys=True, **options)
    return write_text(file, f"{text}\n")


def spell_non_finite(value: Any) -> Any:
    """Replace infinity and NaN, at any depth of dictionaries and sequences, by strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: spell_non_finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [spell_non_finite(item) for item in value]
    return value


def read_json(file: str | Path, kind: type = dict) -> Any:
    """Read a JSON object, or a list.

    Raises:
        ValueError: If the file is missing or holds something else.
    """
    file = Path(file)
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}.") from error
    if not isinstance(content, kind):
        raise ValueError(f"{file} holds a JSON {type(content).__name__}, not {JSON_KINDS[kind]}.")
    return content


def check_writable(folder: Path) -> None:
    """Check that files can be written into a folder, which may not exist yet.

    Raises:
        ValueError: If it, or a folder above it, is a file or takes no files.
    """
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
        if not existing.is_dir():
            raise ValueError(f"--output_dir is {folder}, and {existing} is no folder; name another one.")
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ValueError(f"--output_dir is {folder}, where no file can be written: {error.strerror}.") from error


def check_new_folder(folder: str | Path) -> Path:
    """Return the folder that something is to be written into.

    Raises:
        ValueError: If it holds something already, or takes no files.
    """
    folder = Path(folder)
    check_writable(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; name a new folder.")
    return folder


def check_own_folder(folder: str | Path, is_own: Callable[[set[str]], bool]) -> Path:
    """Return the folder that a task writes into, once more or for the first time.

    Args:
        folder: The folder; unfinished files in it do not count.
        is_own: Tells from the names in a folder that is not empty whether an earlier call of the task left them.

    Raises:
        ValueError: If it holds something else, or takes no files.
    """
    folder = Path(folder)
    check_writable(folder)
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    names = {name for name in names if not name.endswith(UNFINISHED)}
    if names and not is_own(names):
        listed = ", ".join(sorted(names)[:3])
        raise ValueError(f"{folder} holds something else ({listed}); name a new --output_dir.")
    return folder


@contextmanager
def whole_or_nothing(folder: str | Path) -> Iterator[None]:
    """Make a new folder, or take an empty one, and leave it as it was if an error ends the work."""
    folder = Path(folder)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if is_new:
            folder.rmdir()
        raise
