"""What all commands share: options or a settings file in, one clear line and exit code 2 on a user's mistake."""

import copy
import difflib
import json
import logging
import math
import os
import re
import sys
import textwrap
import traceback
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import yaml
from huggingface_hub.errors import HTTPError, StrictDataclassError
from torch import distributed
from transformers import HfArgumentParser

from .processes import join_processes_on_cpus
from .secrets import HidingFilter, hide, move_tokens_to_environment


logger = logging.getLogger(__name__)

FORMER = "former"  # in the metadata of a field: spellings of its option in earlier versions, as in `--old_name`
TRAINER_HELP_WIDTH = 118  # columns; help of the Trainer that is longer is cut
TRAINER_TITLE = "options of the Trainer"
INTERRUPTED = 130  # exit code of a program that Ctrl-C ends, as shells count it
LOGGERS = ("linformer_hf", "transformers", "huggingface_hub", "datasets", "accelerate", "")

NO_MEMORY = re.compile("can't allocate memory|out of memory")  # as torch puts it
# as the operating system, safetensors and torch put it
FULL_DISK = re.compile("No space left|quota exceeded|File too large|failed writing file|unexpected pos")


class OptionParser(HfArgumentParser):
    """The host's parser of options into dataclasses, with a line of help for each option, and errors of one line.

    A field's metadata may name, under `former`, spellings that its option had in earlier versions; they keep working
    and are warned of.
    """

    def __init__(self, argument_classes: Sequence[type], program: str | None, description: str | None) -> None:
        self.former: dict[str, str] = {}
        super().__init__(argument_classes, prog=program, description=description)

    def _parse_dataclass_field(self, parser: ArgumentParser, field: Field) -> None:
        metadata = dict(field.metadata)
        for name in metadata.pop(FORMER, ()):
            self.former[name.replace("-", "_").replace("__", "--", 1)] = f"--{field.name}"
        plain = copy.copy(field)
        plain.metadata = MappingProxyType(metadata)
        super()._parse_dataclass_field(parser, plain)

    def parse(self, flags: Sequence[str]) -> tuple[Any, ...]:
        """Return an object of each class.

        Raises:
            ValueError: If an option is unknown, missing, or has a wrong value.
        """
        flags = [self.renamed(flag) for flag in flags]
        for flag in flags:
            name = flag.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in self._option_string_actions):
                raise ValueError(self.unknown_option(name))
        *groups, unknown = self.parse_args_into_dataclasses(
            flags, return_remaining_strings=True, look_for_args_file=False
        )
        if unknown:
            raise ValueError(self.unknown_option(unknown[0]))
        for name, value in ((field.name, getattr(group, field.name)) for group in groups for field in fields(group)):
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"--{name} is {value}; it must be a number.")
        return tuple(groups)

    def renamed(self, flag: str) -> str:
        """Return a flag with the present spelling of its option."""
        name, is_joined, value = flag.partition("=")
        spelling = f"--{name[2:].replace('-', '_')}"
        if not name.startswith("--") or spelling not in self.former:
            return flag
        present = self.former[spelling]
        logger.warning(f"{name} is now called {present}; the old name will go in the next version.")
        return f"{present}{is_joined}{value}"

    def unknown_option(self, word: str) -> str:
        """Say that an option is unknown, and which one may be meant."""
        name = word.partition("=")[0]
        if not name.startswith("-"):
            return f"{word!r} is the value of no option; write options as --name value."
        names = [option for action in self._actions for option in action.option_strings]
        close = difflib.get_close_matches(name.replace("-", "_").replace("__", "--", 1), names, n=1)
        meant = f" Did you mean {close[0]}?" if close else f" `{self.prog} --help` lists all."
        return f"There is no option {name}.{meant}"

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print below a page of usage.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"{message[:1].upper()}{message[1:]}. `{self.prog} --help` lists all options.")

    def format_help(self) -> str:
        """List the options, a line each: those without a default first, each class's own before the Trainer's."""
        lines = [f"usage: {self.prog} [settings.yaml] --option value ...", ""]
        lines += [self.description.strip(), ""] if self.description else []
        shown = [action for action in self._actions if action.help != SUPPRESS and not is_negation(action)]
        names = {action.dest: action.option_strings[0] for action in shown}
        groups = [("options", shown[:1])]
        for argument_class in self.dataclass_types:
            own = {field.name for field in fields(argument_class)}
            of_trainer = argument_class.__module__.startswith("transformers.")
            groups.append(
                (TRAINER_TITLE if of_trainer else "options", [action for action in shown if action.dest in own])
            )
        merged: dict[str, list[Action]] = {}
        for title, actions in groups:
            merged.setdefault(title, []).extend(actions)
        for title, actions in merged.items():
            column = max(len(names[action.dest]) for action in actions)
            width = TRAINER_HELP_WIDTH - column - 4 if title == TRAINER_TITLE else None
            lines.append(f"{title}:")
            for action in sorted(actions, key=lambda action: not action.required):
                lines.append(f"  {names[action.dest]:{column}}  {help_line(action, width)}")
            lines.append("")
        return "\n".join(lines)


def is_negation(action: Action) -> bool:
    """Tell whether an option is `HfArgumentParser`'s `--no_x` of an option `--x` that is on by default."""
    return action.option_strings[0].startswith("--no_") and action.dest == action.option_strings[0][5:]


def help_line(action: Action, width: int | None) -> str:
    """Say in one line what an option does, what it may be, and what it is by default.

    Args:
        action: The option.
        width: In columns. What is longer is cut to its first sentence, and if need be further; None cuts nothing.
    """
    text = " ".join((action.help or "").replace("%%", "%").split())
    notes = ["required"] if action.required else []
    if action.choices:
        notes.append("one of " + ", ".join(map(str, action.choices)))
    if action.default not in (None, SUPPRESS, False, "", []):
        default = action.default
        notes.append(f"default: {' '.join(map(str, default)) if isinstance(default, list) else default}")
    if width is None:
        return text + (f" ({'; '.join(notes)})" if notes else "")
    note = f" ({notes[-1]})" if notes and len(notes[-1]) < width // 2 else ""
    if len(text) + len(note) > width:
        text = re.split(r"(?<=[a-z`)]{2}\.) ", text, maxsplit=1)[0]
    return textwrap.shorten(text, width - len(note), placeholder=" …") + note


def run(
    function: Callable[..., Any], *argument_classes: type, description: str | None = None, program: str | None = None
) -> None:
    """Call a function with arguments from the command line.

    A first argument that ends in .json or .yaml is a file of options; flags after it win over it. What the package
    reports goes to standard error. Tokens are taken out of the options, so that nothing which a run writes holds one.

    Args:
        function: Called with one object of each class.
        *argument_classes: Dataclasses, each field an option.
        description: Text above the options in `--help`.
        program: What the command is called in `--help`. None takes the name of the script.
    """
    report_to_standard_error()
    join_processes_on_cpus()
    parser = OptionParser(argument_classes, program, description)
    try:
        flags = sys.argv[1:] if program is None else sys.argv[2:]
        if flags and flags[0].endswith((".json", ".yaml", ".yml")):
            flags = read_flags(Path(flags[0])) + flags[1:]
        groups = parser.parse(flags)
        move_tokens_to_environment(groups)
        function(*groups)
        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()  # its threads may else abort a process that has done its work
    except KeyboardInterrupt:
        parser.exit(
            INTERRUPTED, "Interrupted. The same command goes on from the last checkpoint, where there is one.\n"
        )
    except Exception as error:
        message = message_of(error)
        if message is None:
            trace = "".join(traceback.format_exception(error))
            if hide(trace) == trace:
                raise
            raise RuntimeError(f"Without the secrets in it, the error is:\n{hide(trace)}") from None
        logger.debug("The error arose here:", exc_info=True)
        parser.exit(2, f"error: {message}\n")


class ReportHandler(logging.StreamHandler):
    """Writes to standard error what the package reports during a command."""


def report_to_standard_error() -> None:
    """Send what the package logs to standard error, and hide secrets in all that is logged there."""
    package = logging.getLogger("linformer_hf")
    for earlier in [handler for handler in package.handlers if isinstance(handler, ReportHandler)]:
        package.removeHandler(earlier)  # of a command in this process before, or each line would come twice
    handler = ReportHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    package.addHandler(handler)
    is_first = os.environ.get("RANK", "0") == "0"  # of several processes one reports
    package.setLevel(logging.INFO if is_first else logging.WARNING)
    for name in LOGGERS:
        for handler in logging.getLogger(name).handlers:
            if not any(isinstance(one, HidingFilter) for one in handler.filters):
                handler.addFilter(HidingFilter())


def message_of(error: Exception) -> str | None:
    """Return what a user is to be told of an error, in one line without secrets; None of an error in the program."""
    full = next((str(cause) for cause in causes(error) if FULL_DISK.search(str(cause))), None)
    if full is not None:
        message = f"{full}. Make room, and give the same command again; partly written files are ignored."
    elif isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
        message = f"There is not enough memory: {error}. Take smaller batches, shorter texts or a smaller model."
    elif isinstance(error, StrictDataclassError):  # a field of a config.json, in several lines
        message = f"A configuration is damaged: {error}"
    elif isinstance(error, ValueError | OSError | PackageNotFoundError) or (
        isinstance(error, ImportError) and "pip install" in str(error)
    ):
        message = str(error)
    elif isinstance(error, HTTPError):
        message = f"The Hub could not be reached: {error}"
    else:
        return None
    return hide(" ".join(message.split()))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class SettingsLoader(yaml.SafeLoader):
    """Reads YAML, but the word `no` as it is written: it is a value of the Trainer, as in `eval_strategy: no`.

    An option that is a switch reads the word too. An option that stands twice is refused.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the options of a file, or what stands inside one of them."""
        names = [str(key.value) for key, _ in node.value]
        if twice := {name for name in names if names.count(name) > 1}:
            raise yaml.constructor.ConstructorError(problem=f"{min(twice)} stands twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


BOOLEAN = "tag:yaml.org,2002:bool"
SettingsLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if first not in "nN" or tag != BOOLEAN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_flags(file: Path) -> list[str]:
    """Turn a file of options into the flags it stands for; an option without a value is left at its default.

    Raises:
        ValueError: If the file does not hold options by name.
    """
    try:
        options = yaml.load(file.read_text(encoding="utf-8"), SettingsLoader)  # JSON is YAML
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is neither YAML nor JSON: {error}") from error
    if not isinstance(options, Mapping):
        raise ValueError(f"{file} must hold options by name, as in `max_steps: 100`.")
    flags = []
    for name, value in options.items():
        if value is None or value == []:
            continue
        values = value if isinstance(value, list) else [value]
        flags += [f"--{name}", *(json.dumps(item) if isinstance(item, dict) else str(item) for item in values)]
    return flags
