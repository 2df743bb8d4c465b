"""A benchmark from its options to its record, measured in the process of the tests."""

import json
import sys
from itertools import count

import pytest
import torch
from conftest import VOCABULARY, tiny_config
from transformers.utils import logging

from linformer_hf import LinformerForMaskedLM, LinformerModel
from linformer_hf.benchmark import baselines, cases, cells
from linformer_hf.benchmark.baselines import MeasuredModel
from linformer_hf.benchmark.cases import Case
from linformer_hf.benchmark.efficiency import EfficiencyArguments, measure_efficiency
from linformer_hf.benchmark.isolation import reason
from linformer_hf.benchmark.macs import predicted_speedup
from linformer_hf.benchmark.saved_activations import activation_bytes, dense_activation_bytes


@pytest.fixture
def here(monkeypatch):
    """Measure in this process, and list what is measured; the model named in `fails` runs out of memory."""
    state = {"fails": None, "measured": []}

    def call(function, case, *others, memory_limit=None):
        state["measured"].append(case)
        if isinstance(case, Case) and str(case.model) == state["fails"]:
            return {"failure": "out of memory"}
        try:
            return function(case, *others)
        except Exception as error:
            return {"failure": reason(error)}

    monkeypatch.setattr(cells, "in_own_process", call)
    return state


def tiny_arguments(folder, **fields):
    defaults = {
        "output_dir": str(folder),
        "lengths": [16, 32],
        "projected_lengths": [4],
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "repeats": 2,
        "threads": 1,
        "device": "cpu",
    }
    return EfficiencyArguments(**(defaults | fields))


@pytest.fixture
def report(caplog):
    """What the package logs."""
    logger = logging.get_logger("linformer_hf")
    logger.addHandler(caplog.handler)
    caplog.set_level("INFO", logger="linformer_hf")
    yield caplog
    logger.removeHandler(caplog.handler)


def test_a_run_measures_the_grid_and_reports_what_fails(tmp_path, here, report, monkeypatch):
    monkeypatch.setattr(baselines, "PEER_BUILDERS", {"fnet": baselines.fnet, "tatp22": baselines.tatp22})
    monkeypatch.setitem(sys.modules, "linformer_pytorch", None)
    here["fails"] = "roberta eager"
    arguments = tiny_arguments(tmp_path / "out", peers=["fnet", "tatp22"], compare_up_to=16)
    numbers = measure_efficiency(arguments)

    config = tiny_config(max_position_embeddings=16, projected_length=4, intermediate_size=64, sparse_prediction=True)
    ours = "n16_linformer_k4"
    assert numbers[f"inference_{ours}_predicted"] == predicted_speedup(config)
    assert numbers[f"mlm_{ours}_predicted"] == predicted_speedup(config, labelled_share=0.15)
    assert numbers[f"training_{ours}_saved_bytes"] == activation_bytes(config, 16, 2)
    assert numbers["training_n16_roberta_sdpa_saved_bytes"] == dense_activation_bytes(config, 16, 2)
    assert numbers[f"mlm_{ours}_parameters"] == LinformerForMaskedLM(config).num_parameters()
    assert {name for name in numbers if "eager" in name or "tatp22" in name} == set()
    assert {name for name in numbers if "n32_roberta" in name or "n32_fnet" in name} == set()
    assert numbers["inference_n16_roberta_sdpa_speedup"] == 1.0
    for task in ("inference", "training", "mlm"):
        assert numbers[f"{task}_n16_fnet_speedup"] > 0
        assert numbers[f"{task}_n32_linformer_k4_seconds"] > 0
        assert f"{task}_crossing_k4" in numbers
    saved = json.loads((tmp_path / "out" / "efficiency.json").read_text())["cells"]
    rounds = saved["seconds, mlm, n=16, linformer k=4, roberta sdpa, fnet"]["seconds"]
    ratios = [dense / mine for dense, mine in zip(rounds["roberta sdpa"], rounds["linformer k=4"])]
    assert numbers[f"mlm_{ours}_speedup"] == pytest.approx(sum(ratios) / 2)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["numbers"].keys() == numbers.keys()
    assert "| 16 | roberta eager | out of memory |" in " ".join(report.text.split())
    assert "pip install linformer-pytorch" in report.text
    assert "32 tokens in each batch" in report.text
    assert "peak memory of a sequence grows as n^" in report.text


def test_padded_batches_are_measured_and_what_cannot_mask_them_says_so(tmp_path, here, report, monkeypatch):
    def reads_all(config, with_head):
        return baselines.PeerModel(torch.nn.Module(), torch.nn.Identity())

    monkeypatch.setattr(baselines, "PEER_BUILDERS", {"lucidrains": reads_all})
    grid = {"lengths": [16], "dense": ["sdpa"], "peers": ["lucidrains"]}
    numbers = measure_efficiency(tiny_arguments(tmp_path / "out", **grid, batch_tokens=64, padded_share=0.5))
    for task in ("inference", "training", "mlm"):
        assert numbers[f"{task}_n16_linformer_k4_speedup"] > 0
    assert not [name for name in numbers if "predicted" in name]
    assert "50 % of them padding" in report.text
    assert "this package does not support a padding mask" in report.text


def test_short_texts_are_read_by_one_model_of_a_larger_n(tmp_path, here, report):
    grid = {"lengths": [8, 24, 32], "projected_lengths": [16, 40], "dense": ["sdpa"], "tasks": ["training"]}
    numbers = measure_efficiency(tiny_arguments(tmp_path, max_position_embeddings=32, batch_size=2, **grid))
    config = tiny_config(projected_length=16, intermediate_size=64)
    for length in (8, 24, 32):
        ours, dense = f"training_n{length}_linformer_k16", f"training_n{length}_roberta_sdpa"
        assert numbers[f"{ours}_predicted"] == predicted_speedup(config, length)
        assert numbers[f"{ours}_saved_bytes"] == activation_bytes(config, length, 2)
        assert numbers[f"{ours}_parameters"] == LinformerModel(config).num_parameters()
        assert numbers[f"{ours}_speedup"] > 0 and numbers[f"{dense}_speedup"] == 1.0
    assert not [name for name in numbers if "k40" in name]  # no model of n = 32 can have it
    assert "n = 32; 2 texts in each batch" in report.text
    setting = json.loads((tmp_path / "results.json").read_text())["about"]["setting"]
    assert (setting["max_position_embeddings"], setting["batch_size"]) == (32, 2)


def test_a_measured_linformer_has_no_zeros_that_let_it_skip_slots():
    config = tiny_config()
    case = Case(MeasuredModel("linformer", 8), config, "inference", 8, 1, 0.0, "float32", "cpu", 1, compiled=False)
    (weight,) = [weight for name, weight in cases.load(case).named_parameters() if "projection" in name]
    assert weight.shape == (8, 32)
    assert weight.abs().min() > 0


def test_a_run_that_was_stopped_continues_and_draws(tmp_path, here):
    pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib, which is not installed")
    arguments = tiny_arguments(tmp_path, tasks=["inference"], dense=["sdpa"])
    first = measure_efficiency(arguments)
    measured = len(here["measured"])
    assert measured == 6
    assert measure_efficiency(arguments) == first
    assert len(here["measured"]) == measured
    assert {"inference_cost.png", "inference_speedup.png"} <= {file.name for file in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="hidden_size = 16, not 32"):
        measure_efficiency(tiny_arguments(tmp_path, hidden_size=32))


def test_a_model_that_fails_beside_the_others_stops_none_of_them(tmp_path, here, monkeypatch):
    loaded = count()
    load = cases.load

    def load_once(case):
        if case.model.name == "linformer" and next(loaded) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return load(case)

    monkeypatch.setattr(cases, "load", load_once)
    numbers = measure_efficiency(tiny_arguments(tmp_path, lengths=[16], tasks=["inference"], dense=["sdpa"]))
    assert "inference_n16_linformer_k4_seconds" not in numbers
    assert numbers["inference_n16_linformer_k4_peak_bytes"] >= 0
    assert numbers["inference_n16_roberta_sdpa_seconds"] > 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tasks": ["dreaming"]}, "--tasks has 'dreaming'; it takes inference, training, mlm"),
        ({"dense": ["flash"]}, "--dense has 'flash'"),
        ({"peers": ["bert"]}, "--peers has 'bert'"),
        ({"dtype": "int8"}, "--dtype has 'int8'"),
        ({"padded_share": 0.5}, "--padded_share is 0.5, but of 2 texts of up to 16 tokens less can be padding"),
        ({"lengths": [24, 32]}, "--lengths has 24, and --batch_tokens, 32, is not a multiple of it"),
        ({"max_position_embeddings": 16}, "--lengths has 32, more than --max_position_embeddings 16"),
        ({"batch_tokens": 32, "batch_size": 1}, "--batch_tokens is 32 and --batch_size 1; give one"),
        ({"batch_size": 0}, "--batch_size is 0"),
        ({"lengths": [0, 32]}, "--lengths has 0"),
        ({"num_attention_heads": 3}, "`hidden_size` is 16"),
        ({"projection_type": "conv", "projected_lengths": [5]}, "`projected_length` is 5"),
        ({"repeats": 0}, "--repeats is 0"),
        ({"vocab_size": 3}, "--vocab_size is 3"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(tmp_path, here, fields, message):
    with pytest.raises(ValueError, match=message):
        measure_efficiency(tiny_arguments(tmp_path / "out", **fields))
    assert here["measured"] == []
    assert not (tmp_path / "out").exists()
