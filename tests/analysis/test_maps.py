"""Attention maps: what a Linformer's amount to between tokens, and which models have none."""

import numpy as np
import pytest
import torch
from conftest import assert_close, random_ids, tiny_model
from padded_maps import MASK, NUM_TOKENS, cut, random_maps
from roberta_twins import LONGEST
from spectrum_models import TINY_BERT, identity_twins
from transformers import BertConfig, BertModel

from linformer_hf.analysis.maps import attention_maps, relative_distance, token_maps


@pytest.mark.parametrize(
    "kind",
    [("linear", sharing) for sharing in ("none", "headwise", "key_value", "layerwise")]
    + [("mean_pool", "layerwise"), ("mean_pool", "none")],
    ids="-".join,
)
def test_the_map_between_tokens_does_what_the_attention_does(kind):
    """With value and output maps that change nothing, a head returns its map times its part of the input."""
    projection_type, projection_sharing = kind
    model = tiny_model(projection_type=projection_type, projection_sharing=projection_sharing, projected_length=[8, 4])
    seen = {}
    for index, layer in enumerate(model.layers):
        for linear in (layer.attention.value, layer.attention.output):
            linear.weight.data.copy_(torch.eye(16))
            linear.bias.data.zero_()
        layer.attention.register_forward_hook(
            lambda module, given, output, index=index: seen.update({index: (given[0], output[0])})
        )
    maps = attention_maps(model, random_ids(3, NUM_TOKENS), MASK)
    for index, found in enumerate(token_maps(model, maps, MASK)):
        states, output = (states.unflatten(-1, (2, 8)).transpose(1, 2) for states in seen[index])
        is_token = MASK.bool()[:, None, :, None]
        assert_close((found @ states) * is_token, output * is_token)
        assert found.masked_fill(MASK.bool()[:, None, None], 0.0).abs().max() == 0  # nothing comes from padding


@pytest.mark.parametrize("projection_type", ["max_pool", "conv"])
def test_a_map_between_tokens_is_refused_where_there_is_none(projection_type):
    model = tiny_model(projection_type=projection_type)
    with pytest.raises(ValueError, match=f"`projection_type` is '{projection_type}'"):
        token_maps(model, attention_maps(model, random_ids(3, NUM_TOKENS), MASK), MASK)


def test_the_distance_is_that_of_numpy_without_the_padding():
    maps = random_maps()
    noise = torch.randn(maps.shape, generator=torch.Generator().manual_seed(1)).double()
    others = torch.where((MASK == 0)[:, None, None], 0.0, maps + noise)
    found = relative_distance(others, maps, MASK)
    for row in range(3):
        for head, (other, dense) in enumerate(zip(cut(others, row), cut(maps, row))):
            assert found[row, head] == pytest.approx(np.linalg.norm(other - dense) / np.linalg.norm(dense))


@pytest.mark.parametrize("num_tokens", [LONGEST, 7])
def test_an_identity_linformer_has_the_maps_of_its_roberta(num_tokens):
    ours, theirs = identity_twins()
    theirs.set_attn_implementation("eager")
    ids = random_ids(2, num_tokens)
    mask = torch.ones_like(ids)
    own, dense = attention_maps(ours, ids, mask), attention_maps(theirs, ids, mask)
    for between_tokens, reference in zip(token_maps(ours, own, mask), dense):
        assert relative_distance(between_tokens, reference, mask).max() < 1e-9


def test_a_model_without_maps_of_shares_between_tokens_is_refused():
    class Windowed(BertModel):
        def forward(self, **kwargs):
            outputs = super().forward(**kwargs)
            outputs.attentions = self.found(outputs.attentions)
            return outputs

    model = Windowed(BertConfig(**TINY_BERT, attn_implementation="eager")).eval()
    ids = random_ids(3, NUM_TOKENS)
    model.found = lambda maps: tuple(layer[..., :5] for layer in maps)
    with pytest.raises(ValueError, match=r"bert returns attention maps of shape \(3, 2, 10, 5\)"):
        attention_maps(model, ids, MASK)
    model.found = lambda maps: tuple(layer.log() for layer in maps)
    with pytest.raises(ValueError, match="The rows of bert's attention maps do not sum to one"):
        attention_maps(model, ids, MASK)
    for nothing in (lambda maps: None, lambda maps: (None, None)):
        model.found = nothing
        with pytest.raises(ValueError, match="bert returns no attention maps"):
            attention_maps(model, ids, MASK)
