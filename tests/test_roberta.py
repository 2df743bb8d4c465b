"""With k = n and projections that change nothing, a Linformer is RoBERTa: the proof that all the rest is right."""

import pytest
import torch
from conftest import (
    SHARINGS,
    assert_close,
    assert_same_tensors,
    enliven,
    gradients,
    random_ids,
    random_like,
    tiny_config,
)
from transformers import (
    RobertaConfig,
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


LONGEST, PAD = 19, 1

# RoBERTa's names and ours, replaced from the first row to the last
NAMES = (
    ("roberta.encoder.layer.", "linformer.layers."),
    ("roberta.", "linformer."),
    ("embeddings.LayerNorm", "embeddings.layer_norm"),
    ("attention.output.LayerNorm", "attention_layer_norm"),
    ("attention.output.dense", "attention.output"),
    ("attention.self.", "attention."),
    ("intermediate.dense", "mlp.intermediate"),
    (".output.dense", ".mlp.output"),
    (".output.LayerNorm", ".mlp_layer_norm"),
    ("lm_head.bias", "lm_head.decoder.bias"),
    ("classifier.out_proj", "classifier.output"),
)


def names_for(model):
    """The table for one of our models: the head for multiple choice is a pooler and a bare linear map in RoBERTa."""
    if not isinstance(model, LinformerForMultipleChoice):
        return NAMES
    (head,) = (name for name, _ in model.named_children() if name != "linformer")
    return (("classifier.", f"{head}.output."), ("roberta.pooler.dense", f"{head}.dense"), *NAMES)


def our_tensors(model, tensors):
    """Rename RoBERTa's tensors to those of our model; its position table starts with rows that no token reads."""
    renamed = {}
    for name, tensor in tensors.items():
        for theirs, ours in names_for(model):
            name = name.replace(theirs, ours)
        renamed[name] = tensor[PAD + 1 :] if "position_embeddings" in name else tensor
    return renamed


def make_identity(model):
    """Let every slot be one token: a unit matrix, or a convolution kernel of one."""
    for name, weight in model.named_parameters():
        if "projection" in name:
            weight.data.copy_(torch.eye(weight.shape[-1]) if weight.shape[-1] == LONGEST else torch.ones_like(weight))


def twins(our_class, their_class, projection_type="linear", projection_sharing="layerwise", **fields):
    """Build a RoBERTa and the Linformer with k = n that has its weights, both in float64."""
    config = tiny_config(
        max_position_embeddings=LONGEST,
        projected_length=LONGEST,
        projection_type=projection_type,
        projection_sharing=projection_sharing,
        **fields,
    )
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    shared = {name: getattr(config, name) for name in (*names, "layer_norm_eps")}
    theirs = their_class(
        RobertaConfig(
            **shared,
            max_position_embeddings=LONGEST + PAD + 1,
            type_vocab_size=2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            **fields,
        )
    )
    theirs = enliven(theirs).double().eval()
    ours = our_class(config).double().eval()
    missing, unexpected = ours.load_state_dict(our_tensors(ours, theirs.state_dict()), strict=False)
    assert not unexpected and all("projection" in name for name in missing)
    make_identity(ours)
    return ours, theirs


def segments_of(ids):
    return torch.arange(ids.shape[-1]).expand_as(ids) // 5 % 2


def compare_gradients(ours, theirs, our_sum, their_sum, dtype=None):
    our_sum.backward()
    their_sum.backward()
    actual = {name: gradient for name, gradient in gradients(ours).items() if "projection" not in name}
    assert_same_tensors(actual, our_tensors(ours, gradients(theirs)), dtype, "gradient of")


@pytest.mark.parametrize("projection_sharing", SHARINGS)
@pytest.mark.parametrize("projection_type", ["linear", "mean_pool", "max_pool", "conv"])
def test_identity_projections_give_roberta(projection_type, projection_sharing):
    ours, theirs = twins(LinformerForMaskedLM, RobertaForMaskedLM, projection_type, projection_sharing)
    ids = random_ids(3, LONGEST)
    inputs = {"input_ids": ids, "token_type_ids": segments_of(ids), "output_hidden_states": True}
    actual, expected = ours(**inputs), theirs(**inputs)
    for depth, (our_states, their_states) in enumerate(zip(actual.hidden_states, expected.hidden_states, strict=True)):
        assert_close(our_states, their_states, what=f"after {depth} layers")
    assert_close(actual.logits, expected.logits)
    weight = random_like(expected.logits)
    compare_gradients(ours, theirs, (actual.logits * weight).sum(), (expected.logits * weight).sum())


@pytest.mark.parametrize("projection_type", ["mean_pool", "max_pool", "conv"])
@pytest.mark.parametrize("real", [slice(0, 11), slice(6, 17)], ids=["right-padded", "left-padded"])
def test_windows_of_one_token_give_roberta_under_padding_too(projection_type, real):
    ours, theirs = twins(LinformerForMaskedLM, RobertaForMaskedLM, projection_type)
    ids = torch.full((2, 17), PAD)
    ids[0, real] = random_ids(11)
    ids[1] = random_ids(17, seed=1)
    inputs = {"input_ids": ids, "attention_mask": (ids != PAD).long()}
    actual, expected = ours(**inputs).logits, theirs(**inputs).logits
    is_token = ids != PAD
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
def test_every_head_scores_and_loses_as_roberta_does(head):
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
