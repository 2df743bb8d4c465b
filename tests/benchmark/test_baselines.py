"""The models that are measured: of one shape, and clear about what they cannot do."""

import sys

import pytest
import torch
from conftest import VOCABULARY, random_ids, tiny_config
from dense_shapes import labels_for

from linformer_hf.benchmark.baselines import PEERS, build
from linformer_hf.benchmark.inputs import make_inputs, padding_mask


@pytest.mark.parametrize("with_head", [False, True], ids=["encoder", "masked-lm"])
@pytest.mark.parametrize("name", ["linformer", "roberta sdpa", "roberta eager", *PEERS])
def test_every_model_reads_the_same_input_and_gets_gradients(name, with_head):
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


def test_padding_is_a_share_of_the_batch_and_has_no_labels():
    inputs = make_inputs(64, 100, VOCABULARY, 0.6, True, torch.Generator().manual_seed(0))
    mask = inputs["attention_mask"]
    lengths = mask.sum(-1)
    assert lengths.max() == 100 and lengths.unique().numel() > 30
    assert 1 - mask.float().mean().item() == pytest.approx(0.6, abs=0.01)
    assert torch.equal(mask, (torch.arange(100) < lengths[:, None]).long())
    is_labelled = inputs["labels"] != -100
    assert is_labelled.any() and not (is_labelled & (mask == 0)).any()
    assert torch.equal(inputs["labels"][is_labelled], inputs["input_ids"][is_labelled])


@pytest.mark.parametrize(
    ("share", "message"), [(1.0, "--padded_share is 1.0"), (0.5, "of 2 texts of up to 16 tokens less can be padding")]
)
def test_padding_that_does_not_fit_into_a_batch_is_refused(share, message):
    with pytest.raises(ValueError, match=message):
        padding_mask(2, 16, share)
