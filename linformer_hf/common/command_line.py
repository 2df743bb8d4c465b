"""What all scripts share: options or a settings file in, one clear line and exit code 2 on a user's mistake."""

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from torch import distributed
from transformers import HfArgumentParser


logger = logging.getLogger(__name__)

# as the operating system, safetensors and torch put it
FULL_DISK = re.compile("No space left|quota exceeded|File too large|failed writing file|unexpected pos")


def run(
    function: Callable[..., Any], *argument_classes: type, description: str | None = None, program: str | None = None
) -> None:
    """Call a function with arguments from the command line.

    A first argument that ends in .json or .yaml is a file of options; flags after it win over it. What the package
    reports goes to standard error.

    Args:
        function: Called with one object of each class.
        *argument_classes: Dataclasses, each field an option.
        description: Text above the options in `--help`.
        program: What the command is called in `--help`. None takes the name of the script.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.getLogger("linformer_hf").addHandler(handler)
    is_first = os.environ.get("RANK", "0") == "0"  # of several processes one reports
    logging.getLogger("linformer_hf").setLevel(logging.INFO if is_first else logging.WARNING)
    parser = HfArgumentParser(argument_classes, prog=program, description=description)
    try:
        flags = sys.argv[1:] if program is None else sys.argv[2:]
        if flags and flags[0].endswith((".json", ".yaml", ".yml")):
            flags = read_flags(Path(flags[0])) + flags[1:]
        function(*parser.parse_args_into_dataclasses(flags, look_for_args_file=False))
        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()  # its threads may else abort a process that has done its work
    except Exception as error:
        full = next((str(cause) for cause in causes(error) if FULL_DISK.search(str(cause))), None)
        if full is None and not isinstance(error, ValueError | OSError):
            raise
        logger.debug("The error arose here:", exc_info=True)
        repair = ". Make room, and give the same command again; what was half written is passed over."
        parser.exit(2, f"error: {error}\n" if full is None else f"error: {full}{repair}\n")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def read_flags(file: Path) -> list[str]:
    """Turn a file of options into the flags it stands for; an option without a value is left at its default.

    Raises:
        ValueError: If the file does not hold options by name.
    """
    options = yaml.safe_load(file.read_text(encoding="utf-8"))  # JSON is YAML
    if not isinstance(options, dict):
        raise ValueError(f"{file} must hold options by name, as in `max_steps: 100`.")
    flags = []
    for name, value in options.items():
        if value is None:
            continue
        values = value if isinstance(value, list) else [value]
        flags += [f"--{name}", *(json.dumps(item) if isinstance(item, dict) else str(item) for item in values)]
    return flags
