"""Seconds and peak memory, measured the same way everywhere in the package.

There are two kinds of peak memory. `peak_bytes` is what the operating system or the GPU counts, scratch memory of
kernels included; on a CPU it needs a process of its own. `peak_tensor_bytes` counts tensors, in any process.
"""

import ctypes
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


try:
    import resource
except ImportError:  # Windows does not have this module
    resource = None


STEADY_SECONDS = 5.0  # a single time of a short step scatters; the median over this long does not
STATUS = Path("/proc/self/status")  # of Linux, as is the next file
CLEAR_PEAK = Path("/proc/self/clear_refs"), "5"
MMAP_THRESHOLD = -3, 1 << 16  # of glibc: larger blocks have pages of their own, which `free` returns to the system


class Stopwatch:
    """Wall-clock seconds since it was made, and peak memory."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def read(self) -> dict[str, float]:
        """Return `seconds` and `peak_memory_bytes`.

        The peak is that of the GPU since the start where there is a GPU, else that of the process since it began. It
        is left out where the operating system does not tell it.
        """
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else process_peak_bytes()
        seconds = {"seconds": time.perf_counter() - self.start}
        return seconds if peak is None else seconds | {"peak_memory_bytes": peak}


def seconds_in_turns(
    steps: Mapping[str, Callable[[], Any]], rounds: int, device: torch.device, least_seconds: float = 0.0
) -> dict[str, list[float]]:
    """Time steps in turns: in each round each step once.

    When the machine slows down for a while, it slows all steps of a round. `median_speedup` is therefore fair, and a
    ratio of times measured one after the other is not.

    Args:
        steps: What to time, by name; each must have run once before.
        rounds: Number of rounds.
        device: The device that the steps compute on.
        least_seconds: Short steps, whose times scatter, take further rounds until all rounds together took this
            long, up to ten times `rounds`.

    Returns:
        Seconds of each round, by name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    began = time.perf_counter()
    for done in range(10 * rounds):
        if done >= rounds and time.perf_counter() - began >= least_seconds:
            break
        for name, step in steps.items():
            synchronize(device)
            start = time.perf_counter()
            step()
            synchronize(device)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median_speedup(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Return the median over rounds of how many times faster the second of two steps was in a round."""
    return median(other / own for other, own in zip(slow, fast))


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work; calls on a CPU return when theirs is finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(step: Callable[[], Any], device: torch.device, runs: int = 2) -> int | None:
    """Return by how many bytes a step raises the memory in use at its peak.

    On a CPU this is the resident memory of the process, so call it in a process that does nothing else. Freed memory
    is returned to Linux meanwhile, so that only memory in use counts, as on a GPU. On other systems it is the growth
    of the highest peak of the process since its start, and None where the system does not tell that either.

    Args:
        step: What to run. What it computes on its first call only is included.
        device: The device it computes on.
        runs: How often to run it. From the second run on memory is laid out as in a long run.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        for _ in range(runs):
            step()
        return torch.cuda.max_memory_allocated(device) - before
    return_freed_memory()
    start_torch()
    if os.access(CLEAR_PEAK[0], os.W_OK):
        CLEAR_PEAK[0].write_text(CLEAR_PEAK[1])
    before = status_bytes("VmRSS") if STATUS.is_file() else process_peak_bytes()
    for _ in range(runs):
        step()
    peak = status_bytes("VmHWM") if STATUS.is_file() else process_peak_bytes()
    return None if peak is None or before is None else peak - before


def return_freed_memory() -> None:
    """Make this process return freed tensors to Linux, which its C library would keep for the next ones."""
    if STATUS.is_file() and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(*MMAP_THRESHOLD)


def start_torch() -> None:
    """Make torch start its threads and load its kernels, whose memory is not that of a step."""
    layer = nn.Linear(64, 64)
    layer(torch.zeros(64, 64)).sum().backward()


def status_bytes(name: str) -> int:
    """Return an entry of Linux's status of this process, in bytes."""
    return int(STATUS.read_text().partition(f"{name}:")[2].split()[0]) * 1024


def process_peak_bytes() -> int | None:
    """Return the most memory that this process has had since its start, in bytes; None where that is unknown."""
    if resource is None:
        return None
    # the operating system counts in kilobytes, macOS in bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_tensor_bytes(call: Callable[[], Any]) -> int:
    """Return the most bytes of new tensors that are alive together during a call.

    It does not depend on what else the process does, and does not include scratch memory inside an operation.
    """
    with TensorBytes() as counted:
        call()
    return counted.peak


class TensorBytes(TorchDispatchMode):
    """Count the bytes of tensors that operations make, for as long as each is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0

    def __torch_dispatch__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count the storages of its results that are not those of its inputs."""
        result = func(*args, **(kwargs or {}))
        inputs = {storage.data_ptr() for storage in storages((args, kwargs))}
        for storage in storages(result):
            if storage.data_ptr() not in inputs:  # neither a view nor a change in place
                self.alive += storage.nbytes()
                weakref.finalize(storage, self.release, storage.nbytes())
        self.peak = max(self.peak, self.alive)
        return result

    def release(self, num_bytes: int) -> None:
        """Subtract bytes that were freed."""
        self.alive -= num_bytes


def storages(tree: Any) -> list[torch.UntypedStorage]:
    """List the storages of all tensors in nested arguments."""
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def saved_activation_bytes(model: nn.Module, forward: Callable[[], Any]) -> int:
    """Count the bytes that a forward pass saves for the backward pass, each piece of memory once.

    Args:
        model: Its parameters are not counted.
        forward: The forward pass.
    """
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        outputs = forward()
    del outputs  # alive until here, so that no memory is freed and counted again under the same address
    return sum(saved.values())
