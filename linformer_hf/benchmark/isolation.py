"""How a computation is measured: in a process of its own, in turns with others, and by its peak of memory."""

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.utils import logging


logger = logging.get_logger(__name__)

OUT_OF_MEMORY = "out of memory"
STATUS = Path("/proc/self/status")  # of Linux, and so are the next ones
CLEAR_PEAK = Path("/proc/self/clear_refs"), "5"
DIE_FIRST = Path("/proc/self/oom_score_adj"), "1000"
OWN_PAGES = -3, 1 << 16  # of glibc: M_MMAP_THRESHOLD, in bytes; smaller tensors share pages

Record = dict[str, Any]  # what a measurement gives, in numbers that JSON holds; `failure` says why there are none


class Measurements:
    """What is measured, kept in a file cell by cell, so that a run that was stopped goes on with what is there.

    Args:
        file: Where it is kept. Its folder is new, empty, or holds this file.
        setting: What all cells have in common, as JSON holds it.

    Raises:
        ValueError: If the file was measured in another setting, or the folder holds something else.
    """

    def __init__(self, file: Path, setting: dict[str, Any]) -> None:
        self.file = file
        self.setting = setting
        self.cells: dict[str, Record] = {}
        if file.is_file():
            kept = json.loads(file.read_text(encoding="utf-8"))
            for name, value in setting.items():
                if kept["setting"].get(name) != value:
                    raise ValueError(
                        f"{file} was measured with {name} = {kept['setting'].get(name)}, not {value}; name a new "
                        "--output_dir."
                    )
            self.cells = kept["cells"]
        elif file.parent.is_dir() and any(file.parent.iterdir()):
            raise ValueError(f"{file.parent} is not empty and has no {file.name}; name a new --output_dir.")

    def measure(
        self, name: str, function: Callable[..., Record], *arguments: Any, memory_limit: int | None = None
    ) -> Record:
        """Measure a cell as `in_own_process` does and keep it, unless it is there; one that failed is tried again."""
        kept = self.cells.get(name, {"failure": "not measured yet"})
        if "failure" in kept or kept.get("failures"):
            self.cells[name] = in_own_process(function, *arguments, memory_limit=memory_limit)
            logger.info(f"{name}: {self.cells[name].get('failure', 'measured')}")
            self.file.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self.file.with_suffix(".json.part")
            unfinished.write_text(json.dumps({"setting": self.setting, "cells": self.cells}, indent=1), "utf-8")
            os.replace(unfinished, self.file)  # a run that is stopped here keeps the old record
        return self.cells[name]


def in_own_process(function: Callable[..., Record], *arguments: Any, memory_limit: int | None = None) -> Record:
    """Call a function in a fresh process, so that nothing before it counts and its failure stops nothing else.

    Args:
        function: A function of a module, and no local one; the process finds it by name.
        *arguments: What it is called with.
        memory_limit: Bytes that the process may take, where the operating system is Linux; beyond, its allocations
            fail. By default what the machine has free, so that it neither swaps nor dies.

    Returns:
        What the function returns. If it fails, one entry, `failure`: `"out of memory"`, or what went wrong.
    """
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(sender, memory_limit, function, arguments), daemon=True)
    process.start()
    sender.close()  # so that the end of the process is the end of the pipe
    try:
        record = receiver.recv()
    except EOFError:
        record = None
    process.join()
    if record is not None:
        return record
    # the operating system kills what takes more memory than there is
    killed = process.exitcode == -signal.SIGKILL
    return {"failure": OUT_OF_MEMORY if killed else f"the process ended with exit code {process.exitcode}"}


def answer(
    sender: Connection, memory_limit: int | None, function: Callable[..., Record], arguments: tuple[Any, ...]
) -> None:
    """Call the function, and send what comes of it."""
    logging.set_verbosity_error()
    limit_memory(memory_limit)
    try:
        record = function(*arguments)
    except Exception as error:
        record = {"failure": reason(error)}
    sender.send(record)


def reason(error: Exception) -> str:
    """Say in one line why a computation failed."""
    text = " ".join(str(error).split())
    signs = ("can't allocate memory", "out of memory", "bad_alloc", "bad allocation")
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(sign in text.lower() for sign in signs):
        return OUT_OF_MEMORY
    return f"{type(error).__name__}: {text[:300]}"


def limit_memory(limit: int | None) -> None:
    """Let allocations fail once this process holds so many bytes, and let it be the first to be killed."""
    if not STATUS.is_file():
        return
    write_setting(*DIE_FIRST)
    taken = status_bytes("VmData")
    room = int(Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]) * 1024
    if limit is not None:
        room = min(room, max(0, limit - status_bytes("VmRSS")))
    # a GPU's driver reserves far more addresses than it will ever fill
    if not torch.cuda.is_available():
        resource.setrlimit(resource.RLIMIT_DATA, (taken + room, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def peak_bytes(step: Callable[[], Any], device: torch.device, runs: int = 2) -> int:
    """Return by how many bytes a step raises the memory in use at its peak.

    On a CPU it is the resident memory of the process, so call it in a process of its own. What a step frees is given
    back meanwhile, so that only what it holds counts, as on a GPU. Where the operating system is not Linux, it is the
    growth of the highest peak that the process ever had.

    Args:
        step: What to run; what it computes for the first time counts.
        device: What it computes on.
        runs: How often to run it; the second time memory lies as in a long run.
    """
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    else:
        give_back_what_is_freed()
        wake_up()
        write_setting(*CLEAR_PEAK)
        before = status_bytes("VmRSS") if STATUS.is_file() else highest_peak()
    for _ in range(runs):
        step()
    if on_gpu:
        return torch.cuda.max_memory_allocated(device) - before
    return (status_bytes("VmHWM") if STATUS.is_file() else highest_peak()) - before


def give_back_what_is_freed() -> None:
    """Let this process return freed tensors to Linux, which its C library would keep for the next ones."""
    if STATUS.is_file() and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(*OWN_PAGES)


def wake_up() -> None:
    """Let torch start its threads and load its kernels, which stay."""
    layer = nn.Linear(64, 64)
    layer(torch.zeros(64, 64)).sum().backward()


def status_bytes(name: str) -> int:
    """Return an entry of Linux's status of this process, in bytes."""
    return int(STATUS.read_text().partition(f"{name}:")[2].split()[0]) * 1024


def highest_peak() -> int:
    """Return the most memory that this process ever had, in bytes."""
    # the operating system counts in kilobytes, on macOS in bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def write_setting(file: Path, value: str) -> None:
    """Change a setting of this process where the operating system has it and lets it be changed."""
    if os.access(file, os.W_OK):
        file.write_text(value)


def saved_bytes(model: nn.Module, forward: Callable[[], Any]) -> int:
    """Count the bytes that a forward pass keeps for the backward pass, each piece of memory once.

    Args:
        model: Its parameters are not counted.
        forward: The forward pass.
    """
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = forward()
    del outputs  # held until here, so that no memory is freed and counted again under the same address
    return sum(kept.values())
