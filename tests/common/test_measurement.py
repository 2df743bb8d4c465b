"""Seconds in turns, and memory as tensors, as activations and as the process counts it."""

import importlib.util
import sys
import time

import torch

from linformer_hf.common import measurement
from linformer_hf.common.measurement import Stopwatch, peak_tensor_bytes, saved_activation_bytes, seconds_in_turns


def test_steps_take_turns():
    calls = []
    steps = {name: lambda name=name: calls.append(name) for name in ("ours", "dense")}
    seconds = seconds_in_turns(steps, 3, torch.device("cpu"))
    assert calls == ["ours", "dense"] * 3
    assert {name: len(times) for name, times in seconds.items()} == {"ours": 3, "dense": 3}


def test_short_steps_take_up_to_ten_times_the_rounds():
    steps = {"short": lambda: None}
    assert len(seconds_in_turns(steps, 2, torch.device("cpu"), least_seconds=60.0)["short"]) == 20
    steps = {"long": lambda: time.sleep(0.02)}
    assert 2 <= len(seconds_in_turns(steps, 2, torch.device("cpu"), least_seconds=0.1)["long"]) <= 6


def test_the_peak_of_tensors_counts_what_is_alive_together_and_no_views():
    def step():
        first = torch.ones(1000)
        second = first.view(10, 100) + 1  # two tensors are alive
        del first
        return second.mul_(2).sum()

    assert peak_tensor_bytes(step) == 2 * 4000 + 0
    assert peak_tensor_bytes(lambda: [torch.ones(1000).sum() for _ in range(3)]) < 2 * 4000


def test_saved_activations_count_memory_once_and_no_parameters():
    layer = torch.nn.Linear(3, 5, bias=False)
    inputs = torch.zeros(2, 3, requires_grad=True)
    # the input of the map, seen twice, and the output of exp; the weight is a parameter
    counted = saved_activation_bytes(layer, lambda: (layer(inputs) + layer(inputs.view(2, 3))).exp())
    assert counted == 4 * (2 * 3 + 2 * 5)


def test_a_stopwatch_reads_seconds_and_the_peak_of_the_process():
    watch = Stopwatch()
    first, second = watch.read(), watch.read()
    assert 0 <= first["seconds"] <= second["seconds"]
    assert 2**20 < first["peak_memory_bytes"] <= second["peak_memory_bytes"]


def test_a_platform_that_does_not_tell_memory_imports_and_leaves_the_peak_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    specification = importlib.util.spec_from_file_location("measurement_elsewhere", measurement.__file__)
    elsewhere = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(elsewhere)
    assert elsewhere.Stopwatch().read().keys() == (
        {"seconds", "peak_memory_bytes"} if torch.cuda.is_available() else {"seconds"}
    )
    monkeypatch.setattr(elsewhere, "STATUS", measurement.STATUS.parent / "nowhere")
    assert elsewhere.peak_bytes(lambda: torch.ones(10), torch.device("cpu")) is None
