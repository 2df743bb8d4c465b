"""Bytes that are saved for the backward pass: by formula, and counted by hooks."""

import pytest
import torch
from conftest import KINDS, enliven, random_ids, tiny_config
from dense_shapes import BATCH, dense_twin, mixed_config, with_attention
from transformers import RobertaModel

from linformer_hf import LinformerModel
from linformer_hf.benchmark.saved_activations import activation_bytes, dense_activation_bytes
from linformer_hf.common.measurement import saved_activation_bytes


# SDPA computes the one that is left out in plain steps, as the docstring of the formula says
SAVED_KINDS = [(*kind, how) for kind in KINDS for how in ("sdpa", "eager") if (*kind, how) != ("conv", "none", "sdpa")]


@pytest.mark.parametrize(
    ("projection_type", "projection_sharing", "implementation"),
    SAVED_KINDS,
    ids=["-".join(kind) for kind in SAVED_KINDS],
)
@pytest.mark.parametrize(
    ("num_tokens", "dtype"),
    [
        (32, torch.float32),
        (21, torch.float32),
        (5, torch.float32),
        (32, torch.bfloat16),
        (21, torch.bfloat16),
    ],
)
def test_saved_bytes_are_those_that_hooks_see(projection_type, projection_sharing, implementation, num_tokens, dtype):
    config = with_attention(mixed_config(projection_type, projection_sharing), implementation)
    model = enliven(LinformerModel(config)).train().to(dtype)
    counted = saved_activation_bytes(model, lambda: model(random_ids(BATCH, num_tokens)))
    assert activation_bytes(config, num_tokens, BATCH, implementation, dtype.itemsize) == counted


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_saved_bytes_of_the_dense_twin_are_those_that_hooks_see(implementation):
    model = dense_twin(RobertaModel, implementation, add_pooling_layer=False).train()
    counted = saved_activation_bytes(model, lambda: model(random_ids(BATCH, 21)))
    assert dense_activation_bytes(tiny_config(), 21, BATCH, implementation) == counted
