"""One JSON record for each run: what was asked for, on what, and what came out."""

import json
import os
import platform
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel


FILE_NAME = "results.json"
PACKAGES = (
    *("linformer_hf", "torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "scikit-learn"),
    *("onnx", "onnxscript", "onnxruntime"),
)


class Stopwatch:
    """Wall-clock seconds and peak memory since it was made."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def read(self) -> dict[str, float]:
        """Return `seconds`, and `peak_memory_bytes` of the process or, where there is one, of the GPU."""
        # the operating system counts in kilobytes, on macOS in bytes
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()
        return {"seconds": time.perf_counter() - self.start, "peak_memory_bytes": peak}


def check_new_folder(folder: str | Path) -> Path:
    """Return the folder that something is to be written into.

    Raises:
        ValueError: If it holds something already.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty; name a new folder.")
    return folder


@contextmanager
def whole_or_nothing(folder: Path) -> Iterator[None]:
    """Make a new folder, and take away what was written into it if an error ends the work."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_results(
    folder: str | Path,
    numbers: Mapping[str, Any],
    arguments: tuple[Any, ...] = (),
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write the record of a run beside what it made.

    Args:
        folder: Where to write `results.json`.
        numbers: What was measured, by name.
        arguments: The dataclasses the run was given; fields at their defaults are left out.
        about: What a model card says of the run: task, data, base model, and which numbers are results.

    Returns:
        The file written.
    """
    record = {
        "command": shlex.join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
        "arguments": {name: value for dataclass in arguments for name, value in changed_fields(dataclass).items()},
        "numbers": {name: None if value != value else value for name, value in numbers.items()},  # JSON has no NaN
        "about": dict(about or {}),
        "device": device_name(),
        "versions": {"python": platform.python_version(), **installed_versions()},
        "commit": commit(),
    }
    return write_json(Path(folder) / FILE_NAME, record, indent=2, default=str)


def write_json(file: Path, content: Mapping[str, Any], **options: Any) -> Path:
    """Write a JSON object, so that a reader finds the old one or the new one, and never half of one."""
    unfinished = file.with_suffix(".json.part")
    unfinished.write_text(json.dumps(content, sort_keys=True, **options) + "\n", encoding="utf-8")
    os.replace(unfinished, file)
    return file


def read_results(folder: str | Path) -> dict[str, Any]:
    """Read the record of a run.

    Raises:
        ValueError: If the folder has none.
    """
    file = Path(folder) / FILE_NAME
    if not file.is_file():
        raise ValueError(f"{folder} has no {FILE_NAME}; run the script that makes it.")
    return json.loads(file.read_text(encoding="utf-8"))


def changed_fields(arguments: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults and were given by the user."""
    return {
        field.name: getattr(arguments, field.name)
        for field in fields(arguments)
        if field.init and not field.name.startswith("_") and getattr(arguments, field.name) != field.default
        if isinstance(getattr(arguments, field.name), str | int | float | list)
    }


def model_facts(model: PreTrainedModel) -> dict[str, Any]:
    """Return what a card says of a model: its size, and of a Linformer n, k and how it projects."""
    fields = ("model_type", "max_position_embeddings", "projected_length", "projection_type", "projection_sharing")
    facts = {name: getattr(model.config, name) for name in fields if hasattr(model.config, name)}
    return {**facts, "num_parameters": model.num_parameters()}


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


def commit() -> str | None:
    """Return the commit of the source tree, with `-dirty` where files were changed; None outside one."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parents[1]),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
