"""With k = n and identity projections, a Linformer computes the same as RoBERTa."""

import pytest
import torch
from conftest import (
    SHARINGS,
    TYPES,
    assert_close,
    assert_same_tensors,
    gradients,
    random_ids,
    random_like,
)
from roberta_twins import LONGEST, PAD, our_tensors, twins
from transformers import (
    RobertaForMaskedLM,
    RobertaForMultipleChoice,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
)

from linformer_hf import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)


def segments_of(ids):
    return torch.arange(ids.shape[-1]).expand_as(ids) // 5 % 2


def compare_gradients(ours, theirs, our_sum, their_sum, dtype=None):
    our_sum.backward()
    their_sum.backward()
    actual = {name: gradient for name, gradient in gradients(ours).items() if "projection" not in name}
    assert_same_tensors(actual, our_tensors(ours, gradients(theirs)), dtype, "gradient of")


for_identities = pytest.mark.parametrize(
    ("projection_type", "projection_sharing"),
    [(projection_type, sharing) for projection_type in TYPES for sharing in SHARINGS],
)


@for_identities
@pytest.mark.parametrize("length", [1, 2, 7, LONGEST - 1, LONGEST])
def test_identity_projections_give_roberta_at_every_length(projection_type, projection_sharing, length):
    ours, theirs = twins(LinformerForMaskedLM, RobertaForMaskedLM, projection_type, projection_sharing)
    ids = random_ids(3, length)
    inputs = {"input_ids": ids, "token_type_ids": segments_of(ids), "output_hidden_states": True}
    actual, expected = ours(**inputs), theirs(**inputs)
    for depth, (our_states, their_states) in enumerate(zip(actual.hidden_states, expected.hidden_states, strict=True)):
        assert_close(our_states, their_states, what=f"after {depth} layers")
    assert_close(actual.logits, expected.logits)
    weight = random_like(expected.logits)
    compare_gradients(ours, theirs, (actual.logits * weight).sum(), (expected.logits * weight).sum())


@for_identities
@pytest.mark.parametrize("records", [False, True], ids=["packed", "whole"])
@pytest.mark.parametrize("width", [17, LONGEST])
@pytest.mark.parametrize("first", [0, 6], ids=["right-padded", "left-padded"])
def test_identity_projections_give_roberta_under_padding_too(
    projection_type, projection_sharing, first, width, records
):
    ours, theirs = twins(LinformerForMaskedLM, RobertaForMaskedLM, projection_type, projection_sharing)
    ids = torch.full((3, width), PAD)
    ids[0, first : first + 11] = random_ids(11)
    ids[1] = random_ids(width, seed=1)
    ids[2, first] = 9
    is_token = ids != PAD
    inputs = {"input_ids": ids, "attention_mask": is_token.long()}
    actual, expected = ours(**inputs, output_hidden_states=records).logits, theirs(**inputs).logits
    assert_close(actual[is_token], expected[is_token])
    weight = random_like(expected[is_token])
    compare_gradients(ours, theirs, (actual[is_token] * weight).sum(), (expected[is_token] * weight).sum())


def masked_words(ids):
    return {"labels": torch.where(torch.arange(LONGEST) % 3 == 0, random_ids(*ids.shape, seed=2), -100)}


HEADS = {
    "masked-lm": (LinformerForMaskedLM, RobertaForMaskedLM, {}, masked_words),
    "masked-lm-untied": (LinformerForMaskedLM, RobertaForMaskedLM, {"tie_word_embeddings": False}, masked_words),
    "one-label": (
        LinformerForSequenceClassification,
        RobertaForSequenceClassification,
        {"num_labels": 5},
        lambda ids: {"labels": torch.tensor([4, 0, 2])},
    ),
    "many-labels": (
        LinformerForSequenceClassification,
        RobertaForSequenceClassification,
        {"num_labels": 5},
        lambda ids: {"labels": (random_ids(3, 5) % 2).float()},
    ),
    "regression": (
        LinformerForSequenceClassification,
        RobertaForSequenceClassification,
        {"num_labels": 1},
        lambda ids: {"labels": torch.tensor([0.3, -1.7, 2.2])},
    ),
    "regression-3-targets": (
        LinformerForSequenceClassification,
        RobertaForSequenceClassification,
        {"num_labels": 3, "problem_type": "regression"},
        lambda ids: {"labels": random_like(torch.zeros(3, 3))},
    ),
    "tokens": (
        LinformerForTokenClassification,
        RobertaForTokenClassification,
        {"num_labels": 5},
        lambda ids: {"labels": torch.where(torch.arange(LONGEST) % 4 == 1, ids % 5, -100)},
    ),
    "question": (
        LinformerForQuestionAnswering,
        RobertaForQuestionAnswering,
        {},
        # the third answer lies outside the input and does not count
        lambda ids: {"start_positions": torch.tensor([2, 7, 40]), "end_positions": torch.tensor([5, 7, 40])},
    ),
    "choice": (
        LinformerForMultipleChoice,
        RobertaForMultipleChoice,
        {},
        lambda ids: {"labels": torch.tensor([1, 0])},
    ),
}


@pytest.mark.parametrize("head", HEADS)
def test_every_head_has_the_scores_and_loss_of_roberta(head):
    our_class, their_class, fields, make_labels = HEADS[head]
    ours, theirs = twins(our_class, their_class, **fields)
    shape = (2, 4, LONGEST) if head == "choice" else (3, LONGEST)
    ids = random_ids(*shape)
    inputs = {"input_ids": ids, "token_type_ids": segments_of(ids), **make_labels(ids)}
    actual, expected = ours(**inputs), theirs(**inputs)
    for name in ("start_logits", "end_logits") if head == "question" else ("logits",):
        assert_close(actual[name], expected[name])
    # losses are computed in float32 on both sides
    assert_close(actual.loss, expected.loss, torch.float32)
    compare_gradients(ours, theirs, actual.loss, expected.loss, torch.float32)
