"""How long computations take, measured in turns so that a slow moment of the machine slows all of them."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch


def seconds_in_turns(
    steps: Mapping[str, Callable[[], Any]], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Time steps in turns: each once, then each once more.

    What slows the machine for a while then slows all of them, so that the median over rounds of the ratio within a
    round is fair where a ratio of times measured one after the other is not.

    Args:
        steps: What to time, by name; each must have run once before.
        rounds: How often.
        device: What they compute on.

    Returns:
        Seconds of each round, by name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            wait(device)
            start = time.perf_counter()
            step()
            wait(device)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def wait(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
