"""Scripts and the `linformer` command, run in the process of the tests, where most of a start is saved."""

import logging
import runpy
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from linformer_hf.__main__ import main


ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@contextmanager
def unchanged_logging():
    """Take away the handlers that a command adds for a process of its own."""
    logger = logging.getLogger("linformer_hf")
    handlers, level = list(logger.handlers), logger.level
    try:
        yield
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)


def run_here(words, folder, monkeypatch, capsys):
    """Run `linformer ...` or `python scripts/... ` in a folder as a shell would, and return what came of it."""
    door, *arguments = words
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [door, *arguments])
    capsys.readouterr()
    code = 0
    with unchanged_logging():
        try:
            if door == "linformer":
                main()
            else:
                runpy.run_path(str(ROOT / "scripts" / Path(door).name), run_name="__main__")
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
            if isinstance(exit_.code, str):
                sys.stderr.write(exit_.code + "\n")
    return Done(code, *capsys.readouterr())
