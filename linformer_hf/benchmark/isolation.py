"""A computation in a process of its own: nothing before it is measured with it, and its failure stops nothing else."""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from ..common.measurement import STATUS, status_bytes


try:
    import resource
except ImportError:  # Windows does not have this module
    resource = None


OUT_OF_MEMORY = "out of memory"
KILLED = "the process was killed, most likely for lack of memory"
OOM_SCORE = Path("/proc/self/oom_score_adj")  # of Linux: 1000 makes this process the first to be killed

Record = dict[str, Any]  # what a measurement returns, in numbers that JSON holds; `failure` says why there are none


def in_own_process(function: Callable[..., Record], *arguments: Any, memory_limit: int | None = None) -> Record:
    """Call a function in a new process.

    Args:
        function: A function of a module; the process finds it by name, so it cannot be a local one.
        *arguments: Its arguments.
        memory_limit: Bytes that the process may take, on Linux; beyond them its allocations fail. By default the
            memory that the machine has free, so that it neither swaps nor kills other processes.

    Returns:
        The record that the function returns. If it fails, a record of one entry, `failure`: `"out of memory"`, or the
        error.
    """
    # after its one task the process ends by itself, even where this one was killed meanwhile
    pool = ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), max_tasks_per_child=1)
    with pool:
        try:
            return pool.submit(call, function, arguments, memory_limit).result()
        except BrokenProcessPool:
            return {"failure": KILLED}


def call(function: Callable[..., Record], arguments: tuple[Any, ...], memory_limit: int | None) -> Record:
    """Call the function under the limit, and return its record or its failure."""
    logging.set_verbosity_error()
    limit_memory(memory_limit)
    try:
        return function(*arguments)
    except Exception as error:  # any failure of a model is a result of the benchmark
        return {"failure": reason(error)}


def reason(error: Exception) -> str:
    """Say in one line why a computation failed."""
    text = " ".join(str(error).split())
    signs = ("can't allocate memory", "out of memory", "bad_alloc", "bad allocation")
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(sign in text.lower() for sign in signs):
        return OUT_OF_MEMORY
    return f"{type(error).__name__}: {text[:300]}"


def limit_memory(limit: int | None) -> None:
    """Let allocations of this process fail beyond this many bytes, and let Linux kill it before any other process."""
    if resource is None or not STATUS.is_file():
        return
    if os.access(OOM_SCORE, os.W_OK):
        OOM_SCORE.write_text("1000")
    data = status_bytes("VmData")
    free = int(Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]) * 1024
    if limit is not None:
        free = min(free, max(0, limit - status_bytes("VmRSS")))
    # with a GPU there is no limit, as its driver reserves far more addresses than it uses
    if not torch.cuda.is_available():
        resource.setrlimit(resource.RLIMIT_DATA, (data + free, resource.getrlimit(resource.RLIMIT_DATA)[1]))
