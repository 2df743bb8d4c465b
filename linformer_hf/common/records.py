"""One JSON record for each folder: what was asked for, on what, and what was measured, call by call."""

import json
import os
import platform
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from .files import check_own_folder, read_json, spell_non_finite, write_json
from .secrets import hide_everywhere, hide_in_command, is_token_field


FILE_NAME = "results.json"
PACKAGE = Path(__file__).resolve().parents[1]
TRAINED = "train_runtime"  # the number that the Trainer gives where it has trained
PACKAGES = (
    *("linformer_hf", "torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "scikit-learn"),
    *("onnx", "onnxscript", "onnxruntime"),
)
NON_FINITE = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


def write_results(
    folder: str | Path,
    numbers: Mapping[str, Any],
    arguments: Sequence[Any] = (),
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write what a call measured into the record of a folder, `results.json`.

    The record grows: `numbers` that an earlier call measured of the same model stay, unless this call measured them
    again or trained the model further; each call that contributed stays in `calls` with its command. `command`,
    `arguments`, `about`, `commit`, `device` and `versions` are of the last call that trained; where none did, of the
    last call. A call trained if `train_runtime` is among its numbers. Secrets are replaced by `<TOKEN>`.

    Args:
        folder: Where to write.
        numbers: What was measured, by name; infinity and NaN are values.
        arguments: The dataclasses the call was given; fields at their defaults are left out.
        about: What a model card says of the call: task, data, base model, and which numbers are results.

    Returns:
        The file written.
    """
    file = Path(folder) / FILE_NAME
    words = hide_in_command(sys.argv)  # before the next call may change what is known
    current = hide_everywhere(
        {
            "command": shlex.join(command_words(words)),
            "arguments": {name: value for options in arguments for name, value in changed_fields(options).items()},
            "about": dict(about or {}),
            "device": device_name(),
            "versions": {"python": platform.python_version(), **installed_versions()},
            "commit": commit(),
        }
    )
    current = json.loads(json.dumps(spell_non_finite(current), default=str))  # to compare with what was read
    earlier = read_results(folder) if file.is_file() else {"numbers": {}}
    uses_trainer = any(hasattr(options, "do_train") for options in arguments)
    is_same = uses_trainer or subject(earlier) == subject(current)
    trained = TRAINED in numbers
    kept = {} if trained or not is_same else earlier["numbers"]
    calls = earlier_calls(earlier) if is_same else []
    calls = [{**call, "numbers": sorted(kept.keys() & set(call["numbers"]) - set(numbers))} for call in calls]
    calls.append(
        {
            "command": current["command"],
            "commit": current["commit"],
            "device": current["device"],
            "trained": trained,
            "numbers": sorted(numbers),
        }
    )
    calls = [call for call in calls if call["numbers"] or call["trained"]]
    was_trained = is_same and any(call["trained"] for call in calls[:-1])
    record = {**earlier, **current} if trained or not was_trained else {**current, **earlier}
    record |= {"numbers": hide_everywhere({**kept, **numbers}), "calls": calls}
    return write_json(file, record, indent=2, default=str)


def subject(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the numbers of a record are of: models and setting."""
    arguments = record.get("arguments", {})
    models = {name: value for name, value in arguments.items() if name.endswith("name_or_path")}
    return {"about": record.get("about"), **models}


def earlier_calls(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the calls that a record tells of; one written by version 0.1.0 tells of one."""
    if "calls" in record or "command" not in record:
        return record.get("calls", [])
    numbers = sorted(record["numbers"])
    call = {name: record.get(name) for name in ("command", "commit", "device")}
    return [{**call, "trained": TRAINED in numbers, "numbers": numbers}]


def read_results(folder: str | Path) -> dict[str, Any]:
    """Read the record of a run, infinity and NaN among its numbers as floats, without secrets.

    Raises:
        ValueError: If the folder has none, or the file is damaged.
    """
    file = Path(folder) / FILE_NAME
    if not file.is_file():
        raise ValueError(f"{folder} has no {FILE_NAME}; run the command that makes it.")
    record = hide_everywhere(read_json(file))  # version 0.1.0 recorded tokens
    numbers = record.get("numbers", {})
    if not all(isinstance(part, dict) for part in (numbers, record.get("arguments", {}), record.get("about") or {})):
        raise ValueError(f"{file} is no record of this package; move it away.")
    record["numbers"] = {
        name: NON_FINITE.get(value, value) if isinstance(value, str) else value for name, value in numbers.items()
    }
    return record


def check_record(folder: str | Path) -> None:
    """Check that the record of a folder, where it has one, can be read, before work whose numbers it will get.

    Raises:
        ValueError: If it is damaged.
    """
    if (Path(folder) / FILE_NAME).is_file():
        read_results(folder)


def check_record_folder(folder: str | Path, fact: str) -> Path:
    """Return the folder that a record is written into, once more or for the first time.

    Args:
        folder: The folder.
        fact: What the record says under `about`, and the record of no other task says.

    Raises:
        ValueError: If it holds something else.
    """
    return check_own_folder(
        folder, lambda names: FILE_NAME in names and fact in (read_results(folder).get("about") or {})
    )


def changed_fields(arguments: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults and were given by the user; no tokens."""
    changed = {}
    for field in fields(arguments):
        if not field.init or field.name.startswith("_") or is_token_field(field.name):
            continue
        value = getattr(arguments, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if isinstance(value, str | int | float | list) and value != default:
            changed[field.name] = value
    return changed


def model_facts(model: PreTrainedModel) -> dict[str, Any]:
    """Return what a card says of a model: its size, and of a Linformer n, k and how it projects."""
    names = ("model_type", "max_position_embeddings", "projected_length", "projection_type", "projection_sharing")
    facts = {name: getattr(model.config, name) for name in names if hasattr(model.config, name)}
    return {**facts, "num_parameters": model.num_parameters()}


def command_words(argv: Sequence[str]) -> list[str]:
    """Return the words of the command that started a process, so that a reader can give it again.

    Args:
        argv: As `sys.argv`. Empty, or with an empty name or `-c`, it is an interactive session's.
    """
    if not argv or argv[0] in ("", "-c", "-m"):
        return ["python"]
    program, options = Path(argv[0]), list(argv[1:])
    is_module = program.name == "__main__.py"
    if program.stem == "linformer" or is_module:
        words, script = ["linformer"], ["-m", "linformer_hf"]
    else:
        try:
            name = os.path.relpath(program)
        except ValueError:  # on another drive of Windows
            name = program.name
        words, script = ["python", name], [name]
    if "TORCHELASTIC_RUN_ID" in os.environ:
        words = ["torchrun", f"--nproc_per_node={os.environ.get('LOCAL_WORLD_SIZE', '1')}", *script]
    return [*words, *options]


def device_name() -> str:
    """Name what torch computes on."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that a result depends on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit(package: Path = PACKAGE) -> str | None:
    """Return the commit of this package's source tree, with `-dirty` where files were changed.

    Args:
        package: The folder of the package.

    Returns:
        None where the package does not lie at the top of its own repository: installed, perhaps into an environment
        inside the repository of somebody's own project, whose commit says nothing of this code.
    """
    git = ["git", "-C", str(package)]
    try:
        top = output_of([*git, "rev-parse", "--show-toplevel"])
        project = tomllib.loads((package.parent / "pyproject.toml").read_text("utf-8")).get("project", {})
        if Path(top).resolve() != package.parent or project.get("name") != package.name:
            return None
        return output_of([*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"])
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def output_of(command: list[str]) -> str:
    """Return what a command writes to standard output."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
