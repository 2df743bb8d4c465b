"""Costs on paper against costs that are counted, and the measurements: fair, kept, and never fatal."""

import json
import os
import signal
import sys
from itertools import count

import pytest
import torch
from conftest import KINDS, VOCABULARY, for_kinds, random_ids, tiny_config
from torch.utils.flop_counter import FlopCounterMode
from transformers import RobertaConfig, RobertaForMaskedLM, RobertaModel
from transformers.utils import logging

from linformer_hf import LinformerConfig, LinformerForMaskedLM, LinformerModel
from linformer_hf.benchmark import baselines, efficiency, isolation
from linformer_hf.benchmark.baselines import PEERS, build
from linformer_hf.benchmark.counting import (
    activation_bytes,
    count_multiplies,
    count_parameters,
    crossing_length,
    dense_activation_bytes,
    dense_multiplies,
    dense_parameters,
    predicted_speedup,
)
from linformer_hf.benchmark.efficiency import EfficiencyArguments, measure_efficiency
from linformer_hf.benchmark.isolation import Measurements, in_own_process, peak_bytes, reason, saved_bytes
from linformer_hf.benchmark.report import Row, crossing, growth, panels, row_numbers, speedup_panel, table
from linformer_hf.common.measurement import seconds_in_turns


BATCH = 3
CPU = torch.device("cpu")


def config_of(projection_type, projection_sharing, **fields):
    """Describe a model whose layers have different k, where its kind allows that."""
    one_kernel = (projection_type, projection_sharing) == ("conv", "layerwise")
    lengths = {"projected_length": 8 if one_kernel else [8, 4]}
    kind = {"projection_type": projection_type, "projection_sharing": projection_sharing}
    return tiny_config(**(kind | lengths | fields))


def with_attention(config, implementation):
    config._attn_implementation = implementation
    return config


def twin(model_class, implementation="eager", **fields):
    """Build the RoBERTa that has the shape of `tiny_config`."""
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    config = RobertaConfig(
        **{name: getattr(tiny_config(), name) for name in names},
        max_position_embeddings=34,
        type_vocab_size=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=implementation,
    )
    return model_class(config, **fields)


def multiplies(call):
    """Count multiplies as torch sees them, two operations each."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops() / 2


def labels_for(input_ids):
    labels = input_ids.clone()
    labels[:, 3:] = -100
    return labels


@for_kinds(KINDS)
@pytest.mark.parametrize("num_tokens", [32, 21, 5])
def test_multiplies_are_those_that_torch_counts(projection_type, projection_sharing, num_tokens):
    config = with_attention(config_of(projection_type, projection_sharing), "eager")
    model = LinformerModel(config)
    counted = multiplies(lambda: model(random_ids(BATCH, num_tokens)))
    assert count_multiplies(config, num_tokens, BATCH) == counted


@pytest.mark.parametrize("sparse", [True, False])
def test_multiplies_of_the_head_are_those_of_the_tokens_that_it_scores(sparse):
    model = LinformerForMaskedLM(with_attention(tiny_config(sparse_prediction=sparse), "eager"))
    input_ids = random_ids(BATCH, 32)
    counted = multiplies(lambda: model(input_ids, labels=labels_for(input_ids)))
    scored = BATCH * 3 if sparse else BATCH * 32
    assert count_multiplies(model.config, batch_size=BATCH, num_predictions=scored) == counted


def test_multiplies_of_the_dense_twin_are_those_that_torch_counts():
    input_ids = random_ids(BATCH, 21)
    encoder, model = twin(RobertaModel, add_pooling_layer=False), twin(RobertaForMaskedLM)
    assert dense_multiplies(tiny_config(), 21, BATCH) == multiplies(lambda: encoder(input_ids))
    assert dense_multiplies(tiny_config(), 21, BATCH, BATCH * 21) == multiplies(lambda: model(input_ids))


@pytest.mark.parametrize("projection_sharing", ["headwise", "key_value", "layerwise"])
def test_a_training_step_takes_three_times_the_multiplies_of_a_forward_pass(projection_sharing):
    model = LinformerModel(with_attention(tiny_config(projection_sharing=projection_sharing), "eager"))
    counted = multiplies(lambda: model(random_ids(BATCH, 32)).last_hidden_state.sum().backward())
    assert 3 * count_multiplies(model.config, batch_size=BATCH) == counted


@for_kinds(KINDS)
def test_parameters_are_those_of_the_model(projection_type, projection_sharing):
    config = config_of(projection_type, projection_sharing)
    assert count_parameters(config) == LinformerModel(config).num_parameters()
    assert count_parameters(config, with_head=True) == LinformerForMaskedLM(config).num_parameters()


def test_parameters_of_the_dense_twin_are_those_of_the_model():
    assert dense_parameters(tiny_config()) == twin(RobertaModel, add_pooling_layer=False).num_parameters()
    assert dense_parameters(tiny_config(), with_head=True) == twin(RobertaForMaskedLM).num_parameters()


# SDPA computes this one in plain steps, as the formula's docstring says
KEPT_KINDS = [(*kind, how) for kind in KINDS for how in ("sdpa", "eager") if (*kind, how) != ("conv", "none", "sdpa")]


@pytest.mark.parametrize(("projection_type", "projection_sharing", "implementation"), KEPT_KINDS, ids="-".join)
@pytest.mark.parametrize(
    ("num_tokens", "dtype"), [(32, torch.float32), (21, torch.float32), (5, torch.float32), (32, torch.bfloat16)]
)
def test_kept_bytes_are_those_that_hooks_see(projection_type, projection_sharing, implementation, num_tokens, dtype):
    config = with_attention(config_of(projection_type, projection_sharing), implementation)
    model = LinformerModel(config).train().to(dtype)
    counted = saved_bytes(model, lambda: model(random_ids(BATCH, num_tokens)))
    assert activation_bytes(config, num_tokens, BATCH, implementation, dtype.itemsize) == counted


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_kept_bytes_of_the_dense_twin_are_those_that_hooks_see(implementation):
    model = twin(RobertaModel, implementation, add_pooling_layer=False).train()
    counted = saved_bytes(model, lambda: model(random_ids(BATCH, 21)))
    assert dense_activation_bytes(tiny_config(), 21, BATCH, implementation) == counted


def test_kept_bytes_count_memory_once_and_no_parameters():
    layer = torch.nn.Linear(3, 5, bias=False)
    inputs = torch.zeros(2, 3, requires_grad=True)
    # the input of the map, seen twice, and the output of exp; the weight is a parameter
    assert saved_bytes(layer, lambda: (layer(inputs) + layer(inputs.view(2, 3))).exp()) == 4 * (2 * 3 + 2 * 5)


@pytest.mark.parametrize(("num_tokens", "ratio"), [(512, 1.19), (4096, 2.11), (65536, 17)])
def test_the_predicted_speedup_is_that_of_a_layer_of_roberta_base(num_tokens, ratio):
    config = LinformerConfig(max_position_embeddings=num_tokens, projected_length=128, projection_sharing="headwise")
    assert predicted_speedup(config) == pytest.approx(ratio, rel=0.01)


def test_the_predicted_speedup_with_a_head_counts_the_labelled_tokens_alone():
    config = tiny_config(sparse_prediction=True)
    width, words, num_tokens = config.hidden_size, config.vocab_size, 20
    ours = count_multiplies(config, num_tokens) + 3 * width * (width + words)
    dense = dense_multiplies(config, num_tokens) + 20 * width * (width + words)
    assert predicted_speedup(config, num_tokens, labelled_share=0.15) == pytest.approx(dense / ours)
    config.sparse_prediction = False
    ours += 17 * width * (width + words)
    assert predicted_speedup(config, num_tokens, labelled_share=0.15) == pytest.approx(dense / ours)


@for_kinds([("linear", "none"), ("linear", "headwise"), ("linear", "layerwise"), ("mean_pool", "key_value")])
def test_the_crossing_is_the_shortest_input_that_takes_fewer_multiplies(projection_type, projection_sharing):
    config = config_of(projection_type, projection_sharing, max_position_embeddings=64)
    cheaper = [count_multiplies(config, n) <= dense_multiplies(config, n) for n in range(1, 65)]
    assert crossing_length(config) == 1 + cheaper.index(True)


def test_a_model_that_is_never_cheaper_has_no_crossing():
    assert crossing_length(tiny_config(projected_length=32, projection_sharing="headwise")) is None


@pytest.mark.parametrize("with_head", [False, True], ids=["encoder", "masked-lm"])
@pytest.mark.parametrize("name", ["linformer", "roberta sdpa", "roberta eager", *PEERS])
def test_every_contender_reads_the_same_and_learns(name, with_head):
    for peer, package in (("lucidrains", "linformer"), ("tatp22", "linformer_pytorch")):
        if name == peer:
            pytest.importorskip(package, reason=f"the peer {peer} is the package {package}, which is not installed")
    config = tiny_config(intermediate_size=64, num_hidden_layers=3)
    model = build(name, config, with_head)
    input_ids = random_ids(2, 32)
    outputs = model(input_ids, labels=labels_for(input_ids)) if with_head else model(input_ids)
    assert outputs.shape == (torch.Size([]) if with_head else (2, 32, 16))
    outputs.sum().backward()
    layers = max(len(module) for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    assert layers == (6 if name == "tatp22" else 3)  # it lists the two halves of a layer
    mlp = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module.in_features == 16]
    gated = name == "modernbert"
    wide = [module.out_features for module in mlp if module.out_features not in (16, 48, 8, VOCABULARY)]
    assert wide == 3 * [2 * (64 * 2 // 3) if gated else 64]


def test_a_peer_that_cannot_have_the_shape_says_why():
    with pytest.raises(ValueError, match="MLP is 4 times as wide as the model, 64, and cannot be 24"):
        build("lucidrains", tiny_config(), with_head=False)


def test_a_peer_that_is_missing_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "linformer_pytorch", None)
    with pytest.raises(ImportError, match="pip install linformer-pytorch"):
        build("tatp22", tiny_config(), with_head=False)


def test_steps_take_turns():
    calls = []
    steps = {name: lambda name=name: calls.append(name) for name in ("ours", "dense")}
    seconds = seconds_in_turns(steps, 3, CPU)
    assert calls == ["ours", "dense"] * 3
    assert {name: len(times) for name, times in seconds.items()} == {"ours": 3, "dense": 3}


def peak_after_a_larger_one():
    torch.ones(2**26)  # 256 MiB, freed at once
    held = torch.ones(2**22)
    peak = peak_bytes(lambda: torch.ones(2**24), CPU)  # 64 MiB
    del held
    return {"peak": peak}


def peak_of_one_after_many():
    def step():
        many = [torch.ones(size) for size in [2**18, 2**12] * 64]  # 64 times 1 MiB, and between them what stays
        few = many[1::2]
        del many
        return few, torch.ones(2**23)  # 32 MiB

    return {"peak": peak_bytes(step, CPU)}


@pytest.mark.skipif(not isolation.STATUS.is_file(), reason="only Linux lets a process forget its highest peak")
def test_the_peak_is_that_of_the_step_and_not_of_what_was_before():
    assert 60 * 2**20 < in_own_process(peak_after_a_larger_one)["peak"] < 100 * 2**20


@pytest.mark.skipif(not isolation.STATUS.is_file(), reason="freed memory is given back on Linux alone")
def test_the_peak_is_of_what_is_held_and_not_of_what_was_freed():
    assert 60 * 2**20 < in_own_process(peak_of_one_after_many)["peak"] < 80 * 2**20


def test_a_process_of_its_own_answers():
    assert in_own_process(os.getpid) not in (os.getpid(), None)


def test_a_process_that_is_killed_is_out_of_memory():
    assert in_own_process(signal.raise_signal, signal.SIGKILL) == {"failure": "out of memory"}


@pytest.mark.skipif(not isolation.STATUS.is_file(), reason="memory is limited on Linux alone")
def test_a_process_fails_at_its_limit_before_the_machine_does():
    assert in_own_process(torch.zeros, 2**30, memory_limit=2**31) == {"failure": "out of memory"}


def test_a_failure_is_told_in_one_line():
    assert reason(ValueError("too\n long")) == "ValueError: too long"
    assert reason(MemoryError()) == reason(RuntimeError("CUDA out of memory. Tried")) == "out of memory"


def test_what_was_measured_is_kept_and_failures_are_tried_again(tmp_path, monkeypatch):
    calls = count()
    monkeypatch.setattr(isolation, "in_own_process", lambda function, *arguments, memory_limit: function(*arguments))
    file = tmp_path / "new" / "cells.json"

    def call(value):
        return {"value": value, "call": next(calls)}

    first = Measurements(file, {"width": 16})
    first.measure("good", call, 7)
    first.measure("bad", lambda: {"failure": "out of memory"})
    second = Measurements(file, {"width": 16})
    assert second.measure("good", call, 8) == {"value": 7, "call": 0}
    assert second.measure("bad", call, 9) == {"value": 9, "call": 1}
    with pytest.raises(ValueError, match="measured with width = 16, not 32; name a new --output_dir"):
        Measurements(file, {"width": 32})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").touch()
    with pytest.raises(ValueError, match="not empty and has no cells.json"):
        Measurements(tmp_path / "other" / "cells.json", {})


SPEEDUPS = [(256, 0.5), (512, 2.0), (1024, 4.0)]


@pytest.mark.parametrize(
    ("points", "where"),
    [
        (SPEEDUPS, 256 * 2**0.5),
        (SPEEDUPS[1:], 512),
        ([(256, 0.5), (512, 0.9)], None),
        ([(256, 1.2), (512, 0.5), (1024, 2.0)], 512 * 2**0.5),
    ],
)
def test_the_crossing_lies_where_a_model_gets_faster_for_good(points, where):
    assert crossing(points) == pytest.approx(where)


def test_growth_is_the_exponent():
    assert growth([(n, 3 * n**1.5) for n in (512, 1024, 8192)]) == pytest.approx(1.5)


def test_a_table_and_numbers_tell_what_is_known():
    row = Row("mlm", 512, "linformer k=8", 8, seconds=0.5, speedup=1.5, predicted=2.0, peak_bytes=2**21)
    failed = Row("mlm", 512, "roberta eager", failure="out of memory")
    first, second = table([row, failed]).splitlines()[2:]
    assert first == "| 512 | linformer k=8 | 0.5 | 1.50 | 2.00 | 0.75 | 2 |  |  |  |"
    assert second == "| 512 | roberta eager | out of memory |  |  |  |  |  |  |  |"
    assert row_numbers(row)["mlm_n512_linformer_k8_speedup"] == 1.5
    assert row_numbers(failed) == {}


def test_figures_show_one_sequence_and_both_speedups():
    rows = [Row("mlm", n, "linformer k=8", 8, seconds=2.0, speedup=n / 100, predicted=n / 90) for n in (512, 256)]
    assert panels(rows, 1024) == {"Seconds a sequence": {"linformer k=8": [(256, 0.5), (512, 1.0)]}}
    assert speedup_panel(rows, "dense") == {
        "k = 8": [(256, 2.56), (512, 5.12)],
        "k = 8, by multiplies": [(256, 256 / 90), (512, 512 / 90)],
        "dense": [(256, 1.0), (512, 1.0)],
    }


@pytest.fixture
def here(monkeypatch):
    """Measure in this process, and list what is measured; names that hold the word in `fails` run out of memory."""
    asked = {"fails": None, "baselines": []}

    def call(function, arguments, *what, memory_limit=None):
        asked["baselines"].append(what[0])
        if asked["fails"] is not None and asked["fails"] == str(what[0]):
            return {"failure": "out of memory"}
        try:
            return function(arguments, *what)
        except Exception as error:
            return {"failure": reason(error)}

    monkeypatch.setattr(isolation, "in_own_process", call)
    return asked


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
    assert numbers[f"mlm_{ours}_parameters"] == count_parameters(config, with_head=True)
    assert {name for name in numbers if "eager" in name or "tatp22" in name} == set()
    assert {name for name in numbers if "n32_roberta" in name or "n32_fnet" in name} == set()
    assert numbers["inference_n16_roberta_sdpa_speedup"] == 1.0
    for task in ("inference", "training", "mlm"):
        assert numbers[f"{task}_n16_fnet_speedup"] > 0
        assert numbers[f"{task}_n32_linformer_k4_seconds"] > 0
        assert f"{task}_crossing_k4" in numbers
    cells = json.loads((tmp_path / "out" / "efficiency.json").read_text())["cells"]
    rounds = cells["seconds, mlm, n=16, linformer k=4, roberta sdpa, fnet"]["seconds"]
    ratios = [dense / mine for dense, mine in zip(rounds["roberta sdpa"], rounds["linformer k=4"])]
    assert numbers[f"mlm_{ours}_speedup"] == pytest.approx(sum(ratios) / 2)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["numbers"].keys() == numbers.keys()
    assert "| 16 | roberta eager | out of memory |" in report.text
    assert "pip install linformer-pytorch" in report.text
    assert "32 tokens in each batch" in report.text
    assert "peak memory of a sequence grows as n^" in report.text


def test_padding_is_a_share_of_the_batch_and_has_no_labels():
    inputs = baselines.make_inputs(64, 100, VOCABULARY, 0.6, True, torch.Generator().manual_seed(0))
    mask = inputs["attention_mask"]
    lengths = mask.sum(-1)
    assert lengths.max() == 100 and lengths.unique().numel() > 30
    assert 1 - mask.float().mean().item() == pytest.approx(0.6, abs=0.01)
    assert torch.equal(mask, (torch.arange(100) < lengths[:, None]).long())
    is_labelled = inputs["labels"] != -100
    assert is_labelled.any() and not (is_labelled & (mask == 0)).any()
    assert torch.equal(inputs["labels"][is_labelled], inputs["input_ids"][is_labelled])


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
    assert "this package takes no mask for padding" in report.text


def test_a_run_that_was_stopped_goes_on_and_draws(tmp_path, here):
    pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib, which is not installed")
    arguments = tiny_arguments(tmp_path, tasks=["inference"], dense=["sdpa"])
    first = measure_efficiency(arguments)
    measured = len(here["baselines"])
    assert measured == 6
    assert measure_efficiency(arguments) == first
    assert len(here["baselines"]) == measured
    assert {"inference_cost.png", "inference_speedup.png"} <= {file.name for file in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="hidden_size = 16, not 32"):
        measure_efficiency(tiny_arguments(tmp_path, hidden_size=32))


def test_a_model_that_fails_beside_the_others_stops_none_of_them(tmp_path, here, monkeypatch):
    loaded = count()
    load = efficiency.load

    def load_twice(arguments, contender, *what):
        if contender.name == "linformer" and next(loaded) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return load(arguments, contender, *what)

    monkeypatch.setattr(efficiency, "load", load_twice)
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
        ({"padded_share": 1.0}, "The share of padding is 1.0"),
        ({"padded_share": 0.5}, "Of 2 texts of up to 16 tokens no share of 0.5 can be padding"),
        ({"lengths": [24, 32]}, "--lengths has 24, of which --batch_tokens = 32 is no multiple"),
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
    assert here["baselines"] == []
    assert not (tmp_path / "out").exists()
