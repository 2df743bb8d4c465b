"""Inputs that the encoder accepts and refuses, attention maps and implementations, and half precision."""

import logging

import pytest
import torch
from conftest import KINDS, SHARINGS, assert_close, for_kinds, random_ids, random_like, tiny_config, tiny_model
from torch._subclasses import FakeTensorMode
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as host_logging

from linformer_hf import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
)
from linformer_hf.modeling_linformer import (
    eager_attention_forward,
    mask_padding,
    pool_sequence,
    pool_windows,
    token_positions,
)


HEADS = (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
for_attention = pytest.mark.parametrize("attention", ["eager", "sdpa"])


@for_kinds(KINDS)
@for_attention
@pytest.mark.parametrize("length", [1, 5, 10, 31])
def test_a_short_input_equals_the_one_padded_to_the_full_length(
    projection_type, projection_sharing, attention, length
):
    model = tiny_model(
        projection_type=projection_type, projection_sharing=projection_sharing, attn_implementation=attention
    )
    ids = random_ids(2, 32)
    mask = (torch.arange(32) < length).expand_as(ids).long()
    with torch.no_grad():
        short = model(ids[:, :length]).last_hidden_state
        padded = model(ids, mask).last_hidden_state
    assert short.shape == (2, length, 16)
    assert torch.isfinite(padded).all()
    assert_close(padded[:, :length], short)


@pytest.mark.parametrize("model_class", [LinformerModel, *HEADS])
@pytest.mark.parametrize("given", ["input_ids", "inputs_embeds"])
def test_an_input_longer_than_n_is_refused_with_both_numbers(model_class, given):
    model = tiny_model(model_class)
    shape = (1, 2, 33) if model_class is LinformerForMultipleChoice else (2, 33)
    inputs = random_ids(*shape) if given == "input_ids" else torch.zeros(*shape, 16, dtype=torch.float64)
    for mask in (None, torch.ones(shape, dtype=torch.long)):
        with pytest.raises(ValueError) as error:
            model(**{given: inputs}, attention_mask=mask)
        for word in ("33", "32", "max_position_embeddings", "resize_position_embeddings"):
            assert word in str(error.value)


def test_a_long_input_is_refused_even_if_its_last_tokens_are_padding():
    mask = (torch.arange(40) < 20).long()[None]
    with pytest.raises(ValueError, match="40.*32"):
        tiny_model()(random_ids(1, 40), mask)


@pytest.mark.parametrize(
    "shape",
    [(19,), (2, 18), (3, 19), (2, 19, 19), (2, 1, 19, 19), (2, 1, 1, 19), (1, 19)],
    ids=str,
)
def test_a_mask_of_another_shape_is_refused_with_the_reason(shape):
    with pytest.raises(ValueError) as error:
        tiny_model()(random_ids(2, 19), torch.ones(shape))
    for word in ("attention_mask", str(shape), "(2, 19)", "every slot mixes all positions"):
        assert word.lower() in str(error.value).lower()


def test_a_causal_mask_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="(?i)attention_mask.*causal.*cannot be applied"):
        tiny_model()(random_ids(2, 19), torch.ones(19, 19).tril().expand(2, 19, 19))


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("position_ids", torch.arange(19)[None], ["position_ids", "attention_mask"]),
        ("position_ids", torch.zeros(1, 1, dtype=torch.long), ["position_ids", "attention_mask"]),
        ("is_causal", True, ["is_causal", "future", "encoder"]),
        ("past_key_values", ((),), ["past_key_values", "cache", "encoder"]),
        ("encoder_hidden_states", torch.zeros(2, 19, 16), ["encoder_hidden_states", "pair"]),
    ],
)
@pytest.mark.parametrize("model_class", [LinformerModel, LinformerForMaskedLM, LinformerForTokenClassification])
def test_an_unsupported_argument_is_refused_with_the_reason_and_an_alternative(model_class, argument, value, words):
    with pytest.raises(ValueError) as error:
        tiny_model(model_class)(random_ids(2, 19), **{argument: value})
    for word in words:
        assert word in str(error.value)


def test_a_configuration_that_asks_for_causal_attention_is_refused_as_the_argument_is():
    model = tiny_model()
    model.config.is_causal = True
    with pytest.raises(ValueError, match="is_causal.*future.*encoder"):
        model(random_ids(2, 19))


def test_there_is_no_causal_language_model():
    with pytest.raises(ValueError, match="LinformerConfig"):
        AutoModelForCausalLM.from_config(tiny_config())


@pytest.mark.parametrize("model_class", [LinformerModel, *HEADS])
def test_ids_and_embeddings_together_are_refused(model_class):
    shape = (1, 2, 19) if model_class is LinformerForMultipleChoice else (2, 19)
    model = tiny_model(model_class)
    ids = random_ids(*shape)
    embeds = model.get_input_embeddings()(ids)
    with pytest.raises(ValueError, match="input_ids.*inputs_embeds"):
        model(input_ids=ids, inputs_embeds=embeds)
    if model_class is not LinformerForMultipleChoice:
        with pytest.raises(ValueError, match="input_ids.*inputs_embeds"):
            model()


@for_attention
def test_embeddings_instead_of_ids_give_the_same_output(attention):
    model = tiny_model(LinformerForMaskedLM, attn_implementation=attention)
    ids, mask = random_ids(2, 19), (torch.arange(19) < torch.tensor([[19], [7]])).long()
    embeds = model.get_input_embeddings()(ids)
    assert_close(model(inputs_embeds=embeds, attention_mask=mask).logits, model(ids, mask).logits)


@for_kinds(KINDS)
def test_attention_maps_have_one_column_per_slot_and_rows_that_sum_to_one(projection_type, projection_sharing):
    lengths = 8 if (projection_type, projection_sharing) == ("conv", "layerwise") else [8, 4]
    model = tiny_model(
        projection_type=projection_type,
        projection_sharing=projection_sharing,
        projected_length=lengths,
        attn_implementation="eager",
    )
    ids = random_ids(3, 32)
    mask = (torch.arange(32) < torch.tensor([[32], [19], [1]])).long()
    for inputs in ((ids,), (ids, mask)):
        maps = model(*inputs, output_attentions=True).attentions
        assert [tuple(each.shape) for each in maps] == [(3, 2, 32, k) for k in model.config.projected_lengths]
        for each in maps:
            assert_close(each.sum(-1), torch.ones_like(each[..., 0]))
    if projection_type != "linear":
        # 19 tokens fill the windows of 4 up to the fifth, and a single token only the first
        assert not maps[0][1, :, :, 5:].any()
        assert (maps[0][1, :, :, :5] > 0).all()
        assert_close(maps[0][2, :, :, 0], torch.ones_like(maps[0][2, :, :, 0]))


@pytest.mark.parametrize("projection_type", ["mean_pool", "max_pool", "conv"])
def test_a_short_input_has_only_the_slots_that_its_tokens_fill(projection_type):
    model = tiny_model(projection_type=projection_type, attn_implementation="eager")
    assert model(random_ids(2, 19), output_attentions=True).attentions[0].shape == (2, 2, 19, 5)


@pytest.mark.parametrize("model_class", [LinformerModel, *HEADS])
def test_attention_maps_requested_from_sdpa_are_returned_with_a_warning(model_class, caplog):
    eager = tiny_model(model_class, attn_implementation="eager")
    model = tiny_model(model_class, attn_implementation="sdpa")
    ids = random_ids(*((2, 3, 19) if model_class is LinformerForMultipleChoice else (2, 19)))
    host_logging.warning_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        maps = model(ids, output_attentions=True).attentions
    warned = [record.getMessage() for record in caplog.records if "attention maps" in record.getMessage()]
    assert len(warned) == 1
    for word in ("sdpa", 'attn_implementation="eager"'):
        assert word in warned[0]
    for actual, expected in zip(maps, eager(ids, output_attentions=True).attentions, strict=True):
        assert_close(actual, expected)


def test_attention_maps_are_returned_only_on_request():
    outputs = tiny_model(attn_implementation="eager")(random_ids(2, 19))
    assert outputs.attentions is None
    assert outputs.hidden_states is None


@for_kinds(KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sdpa_computes_what_eager_does(projection_type, projection_sharing, dtype):
    fields = {"projection_type": projection_type, "projection_sharing": projection_sharing}
    ids, mask = random_ids(3, 27), (torch.arange(27) < torch.tensor([[27], [13], [1]])).long()
    with torch.no_grad():
        for inputs in ((ids,), (ids, mask)):
            eager, sdpa = (
                tiny_model(dtype=dtype, attn_implementation=attention, **fields)(*inputs).last_hidden_state
                for attention in ("eager", "sdpa")
            )
            assert_close(sdpa, eager)


def attend_by_sdpa(module, query, key, value, attention_mask, **kwargs):
    assert attention_mask is None
    return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, None, **kwargs)


@for_kinds(KINDS)
@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention"])
def test_kernels_without_masks_are_replaced_by_sdpa_where_slots_are_empty(
    projection_type, projection_sharing, attention, monkeypatch, caplog
):
    calls = []
    monkeypatch.setitem(
        ALL_ATTENTION_FUNCTIONS,
        attention,
        lambda *given, **kwargs: calls.append(1) or attend_by_sdpa(*given, **kwargs),
    )
    fields = {"projection_type": projection_type, "projection_sharing": projection_sharing}
    eager, model = (tiny_model(attn_implementation=name, **fields) for name in ("eager", "sdpa"))
    model.config._attn_implementation_internal = attention
    ids, mask = random_ids(2, 32), (torch.arange(32) < torch.tensor([[32], [7]])).long()
    for inputs, is_masked in (((ids,), False), ((ids[:, :19],), projection_type == "linear"), ((ids, mask), True)):
        is_masked = is_masked or attention == "flex_attention"  # which is unsafe on a CPU, mask or not
        calls.clear()
        host_logging.warning_once.cache_clear()
        with caplog.at_level(logging.WARNING), torch.no_grad():
            caplog.clear()
            actual = model(*inputs).last_hidden_state
        assert_close(actual, eager(*inputs).last_hidden_state)
        assert len(calls) == (0 if is_masked else 2)
        warned = [record.getMessage() for record in caplog.records if "'sdpa'" in record.getMessage()]
        assert len(warned) == is_masked
        assert all(attention in message for message in warned)


@for_kinds(KINDS)
@for_attention
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_finite_and_close_to_single_precision(projection_type, projection_sharing, attention, dtype):
    torch.manual_seed(0)
    config = tiny_config(
        max_position_embeddings=512,
        projected_length=64,
        projection_type=projection_type,
        projection_sharing=projection_sharing,
        attn_implementation=attention,
        position_init="normal",
        attention_init="normal",
    )
    model = LinformerModel(config).eval()
    ids = random_ids(4, 512)
    # the second sequence is one real token in 512, and the third is its mirror image
    mask = torch.ones_like(ids)
    mask[1, 1:] = 0
    mask[2, :-1] = 0
    mask[3, 200:] = 0
    with torch.no_grad():
        expected = model(ids, mask).last_hidden_state
        actual = model.to(dtype)(ids, mask).last_hidden_state
        without_mask = model(ids).last_hidden_state
    assert torch.isfinite(actual).all()
    assert torch.isfinite(without_mask).all()
    assert_close(actual[mask == 1].float(), expected[mask == 1], dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gradients_are_finite_with_one_real_token_in_512(dtype):
    model = LinformerForMaskedLM(tiny_config(max_position_embeddings=512, projected_length=64)).to(dtype)
    ids = random_ids(2, 512)
    mask = (torch.arange(512) == 100).long().expand_as(ids)
    model(ids, mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
    for name, weight in model.named_parameters():
        assert torch.isfinite(weight.grad).all(), name


def test_dropout_acts_in_training_only():
    model = tiny_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5, attn_implementation="sdpa")
    ids = random_ids(2, 19)
    calm = model(ids).last_hidden_state
    assert torch.equal(model(ids).last_hidden_state, calm)
    assert not torch.allclose(model.train()(ids).last_hidden_state, calm)
    model = tiny_model(hidden_dropout_prob=0.5).train()
    assert not torch.allclose(model(ids).last_hidden_state, calm)


def test_the_first_state_is_the_embeddings_and_the_last_the_output():
    model = tiny_model()
    ids = random_ids(2, 19)
    outputs = model(ids, output_hidden_states=True)
    assert len(outputs.hidden_states) == model.config.num_hidden_layers + 1
    assert torch.equal(outputs.hidden_states[-1], outputs.last_hidden_state)
    assert_close(model(ids, return_dict=False)[0], outputs.last_hidden_state)


@pytest.mark.parametrize("masked", [False, True], ids=["no-mask", "mask"])
def test_the_mean_of_a_long_input_does_not_overflow_in_half_precision(masked):
    states = torch.full((1, 8192, 4), 60.0, dtype=torch.float16)  # their sum is 7.5 times the largest number
    mask = torch.arange(8192)[None] < 8000 if masked else None
    pooled = pool_sequence(states, mask, "mean")
    assert pooled.dtype == torch.float16
    assert torch.equal(pooled, states[:, 0])
    slots = pool_windows(states, "mean_pool", 4096, None, token_positions(mask, 8192) if masked else None)
    assert torch.equal(slots, states[:, :2])


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_mask_on_another_device_moves_to_the_device_of_the_states(pooling):
    states = torch.empty(2, 19, 16, device="meta")  # the one other device that every machine has
    assert pool_sequence(states, torch.ones(2, 19), pooling).device.type == "meta"
    assert mask_padding(states, torch.ones(2, 19)).device.type == "meta"


@pytest.mark.parametrize("sharing", SHARINGS)
def test_slots_after_the_last_one_with_tokens_are_not_computed(sharing, monkeypatch):
    shapes = []

    def attend(module, query, key, value, attention_mask, **kwargs):
        columns = key.shape[2] if attention_mask is None else attention_mask.shape[-1]
        shapes.append((key.shape[2], value.shape[2], columns))
        return eager_attention_forward(module, query, key, value, attention_mask, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", attend)
    fields = {"projection_init": "folded", "projected_length": [8, 4], "projection_sharing": sharing}
    model = LinformerModel(tiny_config(**fields)).eval()
    ids, mask = random_ids(2, 6), (torch.arange(6) < torch.tensor([[3], [2]])).long()
    model(ids[:, :5])
    model(ids, mask)
    model(ids[:, :1], torch.zeros(2, 1))
    model(ids[:, :3], output_hidden_states=True)
    assert shapes == [(5, 5, 5), (4, 4, 4), (3, 3, 3), (3, 3, 3), (1, 1, 1), (1, 1, 1), (3, 3, 3), (3, 3, 3)]


@pytest.mark.parametrize("sharing", SHARINGS)
def test_slots_that_are_not_computed_change_neither_outputs_nor_gradients(sharing):
    fields = {"projection_init": "folded", "projected_length": 8, "projection_sharing": sharing}
    model = LinformerModel(tiny_config(**fields)).double().eval()
    ids, mask = random_ids(2, 6), (torch.arange(6) < torch.tensor([[5], [2]])).long()
    found = []
    for options in ({}, {"output_attentions": True}):
        for inputs in ((ids[:, :5],), (ids, mask)):
            model.zero_grad()
            states = model(*inputs, **options).last_hidden_state
            if len(inputs) > 1:
                states = states * mask[..., None]
            (states * random_like(states)).sum().backward()
            found.append((states.detach(), {name: weight.grad.clone() for name, weight in model.named_parameters()}))
    for cut, kept in zip(found[:2], found[2:]):
        assert_close(cut[0], kept[0])
        for name, gradient in cut[1].items():
            assert_close(gradient, kept[1][name])


@pytest.mark.parametrize("sharing", SHARINGS)
def test_where_no_number_can_be_read_all_slots_are_computed(sharing):
    fields = {"projection_init": "folded", "projection_sharing": sharing}
    models = [LinformerModel(tiny_config(**fields)).double().eval() for _ in range(2)]
    ids = random_ids(2, 6)

    def compute(weights, buffers):
        return torch.func.functional_call(models[0], (weights, buffers), (ids,)).last_hidden_state

    found = torch.vmap(compute)(*torch.func.stack_module_state(models))
    for own, model in zip(found, models):
        assert_close(own, model(ids).last_hidden_state)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert models[0](torch.ones(2, 6, dtype=torch.long)).last_hidden_state.shape == (2, 6, 16)


def test_nothing_is_added_to_scores_where_every_token_of_a_short_text_has_a_slot(monkeypatch):
    masks = []

    def attend(module, query, key, value, attention_mask, **kwargs):
        masks.append(attention_mask)
        return eager_attention_forward(module, query, key, value, attention_mask, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", attend)
    model = LinformerModel(tiny_config(projected_length=32, projection_sharing="key_value")).eval()
    model(random_ids(2, 6))
    assert masks == [None, None]
