"""What a slot does not read at the start of a training it does not read at the end."""

import pytest
import torch
from conftest import SHARINGS, random_ids, random_like, tiny_config, tiny_model

from linformer_hf import LinformerModel
from linformer_hf.conversion.projections import start_projections
from linformer_hf.training.leading_zeros import keep_leading_zeros


def projections(model):
    return {name: weight for name, weight in model.named_parameters() if name.endswith("projection.weight")}


def train(model, steps=3):
    """Take steps of AdamW with weight decay, as the Trainer does."""
    keep_leading_zeros(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for step in range(steps):
        states = model(random_ids(2, 32, seed=step)).last_hidden_state
        (states * random_like(states)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("start", ["leading", "graded", "window"])
def test_zeros_before_the_first_weight_of_a_row_stay_and_all_else_learns(start, sharing):
    model = tiny_model(projection_sharing=sharing)
    start_projections(model, start)
    before = {name: weight.detach().clone() for name, weight in projections(model).items()}
    train(model)
    for name, weight in projections(model).items():
        for old, new in zip(before[name].flatten(0, -2), weight.flatten(0, -2)):
            first = int(old.nonzero()[0])
            assert not new[:first].any()
            assert (new[first:] != old[first:]).all()


def test_a_short_text_needs_the_slots_of_its_tokens_after_training():
    model = tiny_model(projection_sharing="key_value")
    start_projections(model, "graded")  # 4 tokens in slots of their own, and 7 in each of 4 windows
    train(model)
    for length, slots in ((3, 3), (4, 4), (5, 5), (12, 6), (32, 8)):
        assert [int(weight[:, :length].any(1).sum()) for weight in projections(model).values()] == [slots, slots]


def test_frozen_projections_stay_as_they_are():
    model = tiny_model(projection_sharing="key_value")
    start_projections(model, "graded")
    before = {name: weight.requires_grad_(False).clone() for name, weight in projections(model).items()}
    train(model, steps=1)
    for name, weight in projections(model).items():
        assert weight.equal(before[name])


def test_a_model_that_will_be_sharded_learns_everywhere_and_says_so(caplog):
    model = tiny_model(projection_sharing="key_value")
    start_projections(model, "graded")
    keep_leading_zeros(model, is_sharded=True)
    assert "--keep_leading_zeros has no effect on a model that FSDP shards" in caplog.text
    model(random_ids(2, 32)).last_hidden_state.square().sum().backward()
    assert all(weight.grad.all() for weight in projections(model).values())
    caplog.clear()
    keep_leading_zeros(LinformerModel(tiny_config(projection_type="conv")), is_sharded=True)
    keep_leading_zeros(tiny_model(), is_sharded=True)  # without zeros
    keep_leading_zeros(model.requires_grad_(False), is_sharded=True)
    assert caplog.text == ""


def test_rows_of_zeros_and_convolutions_learn_everywhere():
    model = tiny_model(projection_sharing="key_value")
    weight = model.layers[0].attention.projection.weight
    weight.data[5] = 0
    weight.data[5, 3] = 1e-3
    weight.data[6] = 0
    train(model, steps=1)
    assert weight[5].nonzero().min() == 3
    assert weight[6].all()
    conv = LinformerModel(tiny_config(projection_type="conv", projection_sharing="key_value"))
    assert (conv.layers[0].attention.projection.weight == 0).any()
    train(conv, steps=1)
    assert conv.layers[0].attention.projection.weight.all()


def test_gradients_are_masked_before_they_are_clipped():
    model = tiny_model(projection_sharing="layerwise")
    start_projections(model, "graded")
    keep_leading_zeros(model)
    states = model(random_ids(2, 32)).last_hidden_state
    (states * random_like(states)).sum().backward()
    is_zero = (model.projection.weight == 0).cumprod(-1).bool()
    assert is_zero.any() and not model.projection.weight.grad[is_zero].any()
    assert model.projection.weight.grad[~is_zero].all()
