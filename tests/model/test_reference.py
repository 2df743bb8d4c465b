"""The encoder against the equations written out in loops: outputs and the gradient of every parameter."""

import json

import pytest
import torch
from conftest import (
    KINDS,
    assert_close,
    assert_same_tensors,
    for_kinds,
    gradients,
    random_ids,
    random_like,
    tiny_model,
)
from reference_linformer import Settings, encode

from linformer_hf import LinformerModel


# places of the real tokens of each sequence, and the length that all are padded to
CASES = {
    "1x19": ([list(range(19))], 19),
    "2x5-below-k": ([list(range(5))] * 2, 5),
    "1x32-full": ([list(range(32))], 32),
    "4x27-padded": (
        [
            list(range(19)),  # on the right
            list(range(14, 27)),  # on the left
            [0, 1, 5, 6, 7, 11, 13, 14, 20, 21, 25],  # in the middle
            [9],
        ],
        27,
    ),
}


def settings_of(config):
    return Settings(
        num_heads=config.num_attention_heads,
        longest=config.max_position_embeddings,
        slots=config.projected_lengths,
        sharing=config.projection_sharing,
        projection_type=config.projection_type,
        epsilon=config.layer_norm_eps,
    )


def compare_with_reference(model, real, num_tokens):
    """Run both, compare all hidden states at real tokens, then the gradients of a random sum of the last."""
    ids = random_ids(len(real), num_tokens)
    segments = torch.arange(num_tokens).expand_as(ids) % 2
    mask = torch.zeros_like(ids)
    for row, places in zip(mask, real):
        row[places] = 1
    outputs = model(ids, None if mask.all() else mask, token_type_ids=segments, output_hidden_states=True)
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}

    loss = reference_loss = torch.zeros((), dtype=torch.float64)
    for i, places in enumerate(real):
        expected = encode(weights, settings_of(model.config), ids[i].tolist(), segments[i].tolist(), places)
        for depth, rows in enumerate(expected):
            actual = outputs.hidden_states[depth][i, places]
            assert_close(actual, torch.stack(rows), what=f"sequence {i} after {depth} layers")
        weight = random_like(actual, seed=i)
        loss = loss + (actual * weight).sum()
        reference_loss = reference_loss + (torch.stack(rows) * weight).sum()

    loss.backward()
    reference_loss.backward()
    reference_gradients = {name: weight.grad for name, weight in weights.items()}
    assert_same_tensors(gradients(model), reference_gradients, what="gradient of")


@for_kinds(KINDS)
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_follow_the_equations(projection_type, projection_sharing, case):
    model = tiny_model(projection_type=projection_type, projection_sharing=projection_sharing)
    compare_with_reference(model, *CASES[case])


@for_kinds(KINDS)
def test_a_checkpoint_of_version_0_1_0_follows_the_equations_at_full_length(
    projection_type, projection_sharing, tmp_path
):
    model = tiny_model(projection_type=projection_type, projection_sharing=projection_sharing)
    model.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    for name in ("position_init", "attention_init", "projection_init"):
        del fields[name]
    (tmp_path / "config.json").write_text(json.dumps({**fields, "linformer_version": "0.1.0"}))
    loaded = LinformerModel.from_pretrained(tmp_path)
    assert_same_tensors(loaded.state_dict(), model.state_dict(), what="loaded")
    compare_with_reference(loaded, *CASES["1x32-full"])


@for_kinds([kind for kind in KINDS if kind != ("conv", "layerwise")])
def test_each_layer_may_have_its_own_k(projection_type, projection_sharing):
    model = tiny_model(
        projection_type=projection_type,
        projection_sharing=projection_sharing,
        num_hidden_layers=3,
        projected_length=[4, 16, 8],
    )
    compare_with_reference(model, [list(range(19)), list(range(8, 19))], 23)
