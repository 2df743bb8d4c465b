"""torch.compile captures the whole model as one graph for all batch sizes and lengths."""

import pytest
import torch
from conftest import assert_close, assert_same_tensors, gradients, random_ids, tiny_model
from torch._dynamo.testing import CompileCounterWithBackend

from linformer_hf import LinformerForMaskedLM


SHAPES = ((2, 19), (3, 27), (5, 9), (4, 30), (7, 23), (6, 13))


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs_of(batch, length, masked):
    ids = random_ids(batch, length, seed=length)
    if not masked:
        return {"input_ids": ids}
    lengths = torch.arange(batch)[:, None] * 3 % length + 1
    return {"input_ids": ids, "attention_mask": (torch.arange(length) < lengths).long()}


@pytest.mark.parametrize(
    ("projection_type", "projection_sharing", "masked"),
    [
        ("linear", "layerwise", False),
        ("linear", "layerwise", True),
        ("linear", "none", True),
        ("mean_pool", "headwise", False),
        ("mean_pool", "headwise", True),
        ("max_pool", "none", True),
        ("conv", "key_value", True),
    ],
)
def test_one_graph_serves_every_batch_and_length(projection_type, projection_sharing, masked):
    model = tiny_model(projection_type=projection_type, projection_sharing=projection_sharing, num_hidden_layers=1)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch, length in SHAPES:
            inputs = inputs_of(batch, length, masked)
            is_token = inputs.get("attention_mask", torch.ones(batch, length)) == 1
            actual, expected = compiled(**inputs).last_hidden_state, model(**inputs).last_hidden_state
            assert_close(actual[is_token], expected[is_token], what=f"{batch} x {length}")
    # at most one for the first shape and a second for all that follow
    assert counter.frame_count <= 2


def test_a_compiled_training_step_has_the_gradients_of_a_plain_one():
    model = tiny_model(LinformerForMaskedLM).train()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for batch, length in SHAPES[:3]:
        inputs = inputs_of(batch, length, masked=True)
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
        model.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        expected = gradients(model)
        model.zero_grad()
        compiled(**inputs, labels=labels).loss.backward()
        assert_same_tensors(gradients(model), expected, torch.float32, f"{batch} x {length}: gradient of")


def test_the_default_compiler_computes_the_same():
    model = tiny_model(dtype=torch.float32)
    counter = CompileCounterWithBackend("inductor")  # torch's default
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch, length in SHAPES[:3]:
            inputs = inputs_of(batch, length, masked=True)
            is_token = inputs["attention_mask"] == 1
            actual, expected = compiled(**inputs).last_hidden_state, model(**inputs).last_hidden_state
            assert_close(actual[is_token], expected[is_token])
    assert counter.frame_count <= 2
