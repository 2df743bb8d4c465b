"""Measurements in a process of their own: what they see, what ends them, and what is kept of them."""

import os
import signal
from itertools import count

import pytest
import torch

from linformer_hf.benchmark import cells
from linformer_hf.benchmark.cells import Cells
from linformer_hf.benchmark.isolation import KILLED, in_own_process, reason
from linformer_hf.common.measurement import STATUS, peak_bytes


CPU = torch.device("cpu")
only_linux = pytest.mark.skipif(not STATUS.is_file(), reason="memory is limited and its peak reset on Linux only")


def peak_after_a_larger_one():
    torch.ones(2**26)  # 256 MiB, freed at once
    held = torch.ones(2**22)
    peak = peak_bytes(lambda: torch.ones(2**24), CPU)  # 64 MiB
    del held
    return peak


def peak_of_one_after_many():
    def step():
        many = [torch.ones(size) for size in [2**18, 2**12] * 64]  # 64 times 1 MiB, with small ones between that stay
        few = many[1::2]
        del many
        return few, torch.ones(2**23)  # 32 MiB

    return peak_bytes(step, CPU)


def measure_peaks():
    """Measure all in one process, as to start one takes seconds."""
    return {"many": peak_of_one_after_many(), "larger": peak_after_a_larger_one(), "process": os.getpid()}


@only_linux
def test_the_peak_in_another_process_is_of_what_the_step_holds_and_not_of_what_was_freed():
    record = in_own_process(measure_peaks)
    assert record["process"] != os.getpid()
    assert 60 * 2**20 < record["many"] < 80 * 2**20
    assert 60 * 2**20 < record["larger"] < 100 * 2**20


def test_a_process_that_is_killed_is_a_failure_like_any_other():
    assert in_own_process(signal.raise_signal, signal.SIGKILL) == {"failure": KILLED}


@only_linux
def test_a_process_fails_at_its_limit_before_the_machine_does():
    assert in_own_process(torch.zeros, 2**30, memory_limit=2**31) == {"failure": "out of memory"}


def test_a_failure_is_told_in_one_line():
    assert reason(ValueError("too\n long")) == "ValueError: too long"
    assert reason(MemoryError()) == reason(RuntimeError("CUDA out of memory. Tried")) == "out of memory"


def test_measurements_are_kept_and_failures_are_tried_again(tmp_path, monkeypatch):
    calls = count()
    monkeypatch.setattr(cells, "in_own_process", lambda function, *arguments, memory_limit: function(*arguments))
    file = tmp_path / "new" / "cells.json"

    def call(value):
        return {"value": value, "call": next(calls)}

    first = Cells(file, {"width": 16})
    first.measure("good", call, 7)
    first.measure("bad", lambda: {"failure": "out of memory"})
    second = Cells(file, {"width": 16})
    assert second.measure("good", call, 8) == {"value": 7, "call": 0}
    assert second.measure("bad", call, 9) == {"value": 9, "call": 1}
    with pytest.raises(ValueError, match="measured with width = 16, not 32; name a new --output_dir"):
        Cells(file, {"width": 32})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").touch()
    with pytest.raises(ValueError, match=r"holds something else \(model.safetensors\); name a new --output_dir"):
        Cells(tmp_path / "other" / "cells.json", {})
