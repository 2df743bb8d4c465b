"""Outputs at real tokens do not depend on padding: its content, length and place, or the other texts of the batch."""

import pytest
import torch
from conftest import (
    FIRST_WORD,
    KINDS,
    VOCABULARY,
    assert_close,
    assert_same_tensors,
    for_kinds,
    gradients,
    random_ids,
    random_like,
    tiny_model,
)

from linformer_hf import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    modeling_linformer,
)


REAL = 20  # tokens; 22, 26 and 32 are the lengths they are padded to
PLACES = {
    "right": lambda length: list(range(REAL)),
    "left": lambda length: list(range(length - REAL, length)),
    # a gap of all the padding but one after the seventh token, the last one in front
    "middle": lambda length: list(range(1, 8)) + list(range(length - REAL + 7, length)),
}
PADDED = [(side, length) for side in PLACES for length in (22, 26, 32)]
FILLERS = (FIRST_WORD + 4, VOCABULARY - 1)  # words that stand under the mask

for_attention = pytest.mark.parametrize("attention", ["eager", "sdpa"])


def pad(values, places, length, filler):
    """Put the real entries of a sequence in their places among filler, `(tokens, ...)` to `(length, ...)`."""
    padded = torch.full((length, *values.shape[1:]), filler, dtype=values.dtype)
    padded[places] = values
    return padded


def padded_inputs(ids, places, length, filler):
    """Make a batch of one from one sequence."""
    inputs = {
        "input_ids": pad(ids, places, length, filler),
        "attention_mask": pad(torch.ones_like(ids), places, length, 0),
        "token_type_ids": pad(segments_of(ids), places, length, filler % 2),
    }
    return {name: tensor[None] for name, tensor in inputs.items()}


def segments_of(ids):
    return torch.arange(ids.shape[-1]) // 9 % 2


def deep_model(projection_type, projection_sharing, attention="sdpa", **fields):
    """Three layers: what padding leaks into one layer's slots shows in the next one's tokens."""
    return tiny_model(
        projection_type=projection_type,
        projection_sharing=projection_sharing,
        attn_implementation=attention,
        num_hidden_layers=3,
        **fields,
    )


@for_kinds(KINDS)
@for_attention
def test_padding_changes_no_real_token(projection_type, projection_sharing, attention):
    model = deep_model(projection_type, projection_sharing, attention)
    ids = random_ids(REAL)
    with torch.no_grad():
        plain = model(ids[None], token_type_ids=segments_of(ids)[None], output_hidden_states=True).hidden_states
        for side, length in PADDED:
            places = PLACES[side](length)
            for filler in FILLERS:
                inputs = padded_inputs(ids, places, length, filler)
                padded = model(**inputs, output_hidden_states=True).hidden_states
                for depth, (actual, expected) in enumerate(zip(padded, plain, strict=True)):
                    what = f"{REAL} tokens in {length}, {side}, over word {filler}, after {depth} layers"
                    assert_close(actual[0, places], expected[0], what=what)


@for_kinds(KINDS)
def test_padding_changes_no_parameter_gradient(projection_type, projection_sharing):
    model = deep_model(projection_type, projection_sharing)
    ids = random_ids(REAL)
    states = model(ids[None], token_type_ids=segments_of(ids)[None]).last_hidden_state
    weight = random_like(states)
    (states * weight).sum().backward()
    expected = gradients(model)
    for side, length in (("right", 26), ("left", 32), ("middle", 22)):
        places = PLACES[side](length)
        model.zero_grad()
        states = model(**padded_inputs(ids, places, length, FILLERS[0])).last_hidden_state
        (states[:, places] * weight).sum().backward()
        assert_same_tensors(gradients(model), expected, what=f"{REAL} tokens in {length}, {side}: gradient of")


def ragged_batch(length=27):
    """Four sequences of different lengths and sides in one batch."""
    places = [list(range(length)), list(range(9)), list(range(length - 14, length)), [2, 3, 11, 20, 21]]
    ids, mask = random_ids(len(places), length), torch.zeros(len(places), length, dtype=torch.long)
    for row, real in zip(mask, places):
        row[real] = 1
    return ids, mask, places


@for_kinds(KINDS)
@for_attention
def test_the_other_texts_of_a_batch_change_nothing(projection_type, projection_sharing, attention):
    model = deep_model(projection_type, projection_sharing, attention)
    ids, mask, places = ragged_batch()
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        together = model(ids, mask).last_hidden_state
        swapped = model(ids[order], mask[order]).last_hidden_state
        for i, real in enumerate(places):
            alone = model(ids[i : i + 1, real]).last_hidden_state[0]
            assert_close(together[i, real], alone, what=f"sequence {i} in the batch")
            assert_close(swapped[order.argsort()[i], real], alone, what=f"sequence {i} in another order")
            assert_close(model(ids[i : i + 1], mask[i : i + 1]).last_hidden_state[0, real], alone)


@for_kinds([("linear", "layerwise"), ("linear", "none"), ("mean_pool", "headwise"), ("conv", "key_value")])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.uint8, torch.float32, torch.float16, torch.bfloat16])
def test_a_mask_means_the_same_in_every_dtype(projection_type, projection_sharing, dtype):
    model = deep_model(projection_type, projection_sharing)
    ids, mask, _ = ragged_batch()
    with torch.no_grad():
        expected = model(ids, mask).last_hidden_state
        assert torch.equal(model(ids, mask.to(dtype)).last_hidden_state, expected)


@for_kinds(KINDS)
@for_attention
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_the_values_of_padded_embeddings_are_never_read(projection_type, projection_sharing, attention, poison):
    model = deep_model(projection_type, projection_sharing, attention)
    _, mask, _ = ragged_batch()
    is_token = mask == 1
    clean = random_like(torch.zeros(*mask.shape, model.config.hidden_size, dtype=torch.float64))
    weight = random_like(clean[is_token], seed=1)
    results = []
    for filler in (0.0, poison):
        embeds = clean.masked_fill(~is_token[..., None], filler).requires_grad_()
        model.zero_grad()
        states = model(inputs_embeds=embeds, attention_mask=mask).last_hidden_state
        (states[is_token] * weight).sum().backward()
        results.append((states, embeds.grad, gradients(model)))
    (states, embeds_gradient, parameter_gradients), poisoned = results
    assert torch.isfinite(poisoned[0]).all()
    assert torch.equal(poisoned[0], states)
    assert torch.equal(poisoned[1][~is_token], torch.zeros_like(poisoned[1][~is_token]))
    assert (embeds_gradient[is_token] != 0).any(-1).all()
    assert_close(poisoned[1], embeds_gradient)
    assert_same_tensors(poisoned[2], parameter_gradients, what="gradient of")


@for_kinds(KINDS)
def test_words_under_the_mask_get_no_gradient(projection_type, projection_sharing):
    model = deep_model(projection_type, projection_sharing)
    ids, mask, _ = ragged_batch()
    ids[ids == FILLERS[0]] += 1
    ids[mask == 0] = FILLERS[0]
    states = model(ids, mask).last_hidden_state
    (states[mask == 1] * random_like(states[mask == 1])).sum().backward()
    table = model.get_input_embeddings().weight
    assert not table.grad[FILLERS[0]].any()
    assert table.grad[ids[mask == 1]].any(-1).all()


@for_kinds(KINDS)
@for_attention
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_a_text_that_is_all_padding_is_finite_and_changes_no_other_text(
    projection_type, projection_sharing, attention, dtype
):
    model = deep_model(projection_type, projection_sharing, attention).to(dtype)
    ids, mask, _ = ragged_batch()
    states = model(ids, mask).last_hidden_state
    (states[:3] * random_like(states[:3])).sum().backward()
    expected = gradients(model)
    model.zero_grad()
    mask[3] = 0
    with_empty = model(ids, mask).last_hidden_state
    assert torch.isfinite(with_empty).all()
    assert_close(with_empty[:3], states[:3])
    (with_empty[:3] * random_like(states[:3])).sum().backward()
    assert_same_tensors(gradients(model), expected, what="gradient of")
    model.zero_grad()
    model(ids, mask).last_hidden_state.sum().backward()
    assert all(torch.isfinite(gradient).all() for gradient in gradients(model).values())


def labelled_heads():
    """Each head with the labels of a batch of real tokens; a function places labels of tokens among padding."""
    ids = random_ids(2, REAL)
    words = torch.where(torch.arange(REAL) % 3 == 1, random_ids(2, REAL, seed=3), -100)
    classes = torch.where(torch.arange(REAL) % 4 == 1, ids % 5, -100)
    numbers = torch.tensor([0.4, -1.2])
    sequence = LinformerForSequenceClassification
    return {
        "masked-lm": (LinformerForMaskedLM, {}, {"labels": words}),
        "masked-lm-sparse": (LinformerForMaskedLM, {"sparse_prediction": True}, {"labels": words}),
        "tokens": (LinformerForTokenClassification, {"num_labels": 5}, {"labels": classes}),
        "one-label": (sequence, {"num_labels": 5}, {"labels": torch.tensor([3, 1])}),
        "many-labels": (sequence, {"num_labels": 5}, {"labels": (random_ids(2, 5) % 2).float()}),
        "regression": (sequence, {"num_labels": 1}, {"labels": numbers}),
        "choice": (LinformerForMultipleChoice, {}, {"labels": torch.tensor(1)[None]}),
        "question": (
            LinformerForQuestionAnswering,
            {},
            {"start_positions": torch.tensor([4, 9]), "end_positions": torch.tensor([6, 19])},
        ),
    }


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("side", PLACES)
@pytest.mark.parametrize("head", labelled_heads())
def test_padding_changes_no_loss_score_or_gradient_of_a_head(head, side, pooling):
    model_class, fields, labels = labelled_heads()[head]
    model = tiny_model(model_class, classifier_pooling=pooling, **fields)
    ids = random_ids(2, REAL)
    places = torch.tensor(PLACES[side](26))
    padded = [padded_inputs(row, places, 26, FILLERS[0]) for row in ids]
    padded = {name: torch.cat([row[name] for row in padded]) for name in padded[0]}
    plain = {"input_ids": ids, "token_type_ids": segments_of(ids).expand_as(ids)}
    if head == "choice":
        plain, padded = ({name: tensor[None] for name, tensor in batch.items()} for batch in (plain, padded))
    if head == "question":
        padded_labels = {name: places[answers] for name, answers in labels.items()}
    elif labels["labels"].shape == ids.shape:
        padded_labels = {"labels": torch.stack([pad(row, places, 26, -100) for row in labels["labels"]])}
    else:
        padded_labels = labels

    expected = model(**plain, **labels)
    expected.loss.backward()
    expected_gradients = gradients(model)
    model.zero_grad()
    actual = model(**padded, **padded_labels)
    actual.loss.backward()
    for name in ("start_logits", "end_logits") if head == "question" else ("logits",):
        scores, expected_scores = actual[name], expected[name]
        if head in ("masked-lm", "tokens", "question"):
            scores = scores[:, places]
        assert_close(scores, expected_scores)
    assert_close(actual.loss, expected.loss, torch.float32)
    assert_same_tensors(gradients(model), expected_gradients, torch.float32, "gradient of")


@for_kinds(KINDS)
def test_a_mask_of_ones_equals_no_mask(projection_type, projection_sharing):
    model = deep_model(projection_type, projection_sharing)
    ids = random_ids(3, 23)
    with torch.no_grad():
        assert_close(model(ids, torch.ones_like(ids)).last_hidden_state, model(ids).last_hidden_state)


@for_kinds(KINDS)
def test_token_wise_layers_see_real_tokens_only_and_records_change_nothing(projection_type, projection_sharing):
    """A call that records hidden states keeps the batch whole, the other way to the same outputs and gradients."""
    ids = random_ids(3, 19)
    mask = torch.ones(3, 19, dtype=torch.long)
    mask[0, 5:] = mask[1, :6] = mask[2, 7:9] = 0
    found, shapes = [], []
    for records in (False, True):
        model = tiny_model(projection_type=projection_type, projection_sharing=projection_sharing)
        model.layers[1].mlp.register_forward_hook(lambda module, given, output: shapes.append(tuple(output.shape)))
        states = model(ids, mask, output_hidden_states=records).last_hidden_state[mask == 1]
        (states * random_like(states)).sum().backward()
        found.append((states, gradients(model)))
    assert shapes == [(1, 5 + 13 + 17, 16), (3, 19, 16)]
    assert_close(found[0][0], found[1][0])
    assert_same_tensors(found[0][1], found[1][1])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_traced_model_keeps_reading_the_mask():
    model = tiny_model().requires_grad_(False)
    ids, mask = random_ids(2, 9), torch.ones(2, 9, dtype=torch.long)
    traced = torch.jit.trace(lambda ids, mask: model(ids, mask).last_hidden_state, (ids, mask))
    mask[0, 5:] = 0
    assert_close(traced(ids, mask)[mask == 1], model(ids, mask).last_hidden_state[mask == 1])


def test_a_mask_without_padding_computes_no_positions(monkeypatch):
    monkeypatch.setattr(modeling_linformer, "token_positions", lambda *given: pytest.fail("positions were counted"))
    tiny_model()(random_ids(2, 9), torch.ones(2, 9))
