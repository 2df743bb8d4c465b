"""Conversion in memory: a dense encoder of every family and head, as a Linformer."""

import pytest
import torch
from conftest import SHARINGS, assert_close, random_ids, random_like
from dense_models import FAMILIES, LONGEST, PAIRS, dense_model, inputs_for

from linformer_hf.conversion.convert import convert_model


each_pair = pytest.mark.parametrize(("family", "head"), PAIRS, ids=["".join(pair) for pair in PAIRS])


def shared_outputs(ours, theirs):
    """Pair the outputs that both models give."""
    theirs = dict(theirs)
    if "prediction_logits" in theirs:
        theirs["logits"] = theirs.pop("prediction_logits")
    ours = {name: value for name, value in ours.items() if torch.is_tensor(value)}
    return {name: (value, theirs[name]) for name, value in ours.items()}


@each_pair
def test_with_a_slot_for_each_token_the_outputs_are_those_of_the_dense_model(family, head):
    dense = dense_model(family, head)
    model, _ = convert_model(dense, projected_length=LONGEST)
    inputs = inputs_for(family, head)
    ours, theirs = (each(**inputs, output_hidden_states=True) for each in (model, dense))
    if (family, head) != ("Electra", "ForPreTraining"):  # whose head finds replaced tokens, and is left out
        pairs = shared_outputs(ours, theirs)
        assert pairs
        for name, (actual, expected) in pairs.items():
            assert_close(actual, expected, torch.float32, name)
    assert len(ours.hidden_states) == len(theirs.hidden_states) == 3
    for actual, expected in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        assert_close(actual, expected, torch.float32, "hidden states")


@pytest.mark.parametrize("num_tokens", [1, 2, 7, LONGEST - 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_a_slot_for_each_token_short_and_padded_texts_give_the_same_too(family, num_tokens):
    dense = dense_model(family)
    model, _ = convert_model(dense, projected_length=LONGEST)
    ids, mask = random_ids(2, LONGEST), torch.zeros(2, LONGEST, dtype=torch.long)
    mask[:, :num_tokens] = 1
    ids[mask == 0] = dense.config.pad_token_id
    for inputs in ({"input_ids": ids[:, :num_tokens]}, {"input_ids": ids, "attention_mask": mask}):
        ours, theirs = (each(**inputs).last_hidden_state[:, :num_tokens] for each in (model, dense))
        assert_close(ours, theirs, torch.float32)


@each_pair
def test_the_report_names_every_tensor_of_both_models_once(family, head):
    dense = dense_model(family, head)
    model, report = convert_model(dense, projected_length=5)
    theirs, ours = dense.state_dict(), model.state_dict()
    assert sorted([*report.copied, *report.left_out]) == sorted(theirs)
    assert set(report.copied.values()) | set(report.new) == set(ours)
    assert set(report.copied.values()) & set(report.new) == set()
    for name, target in report.copied.items():
        assert torch.equal(ours[target], theirs[name][-len(ours[target]) :]), name
    dropped = {name.split(".")[-3] for name in report.left_out if name.count(".") > 1}
    assert dropped <= {"pooler", "cls", "bert", "roberta", "discriminator_predictions"}
    expected = {"projection.weight", *(["token_type_embeddings.weight"] if family == "DistilBert" else [])}
    assert {name.split(".", 1)[-1].removeprefix("embeddings.") for name in report.new} <= expected | {"weight"}


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_the_dense_model(family):
    dense = dense_model(family, "ForMaskedLM")
    model, report = convert_model(dense, projected_length=LONGEST)
    inputs = inputs_for(family, "ForMaskedLM")
    for each in (model, dense):
        logits = each(**inputs).logits
        (logits * random_like(logits)).sum().backward()
    theirs, ours = dict(dense.named_parameters()), dict(model.named_parameters())
    for name, target in report.copied.items():
        if name in theirs and target in ours:
            gradient = theirs[name].grad[-len(ours[target]) :]
            assert_close(ours[target].grad, gradient, torch.float32, name)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMultipleChoice"])
def test_the_configuration_says_what_the_dense_one_said(family, head):
    fields = {"problem_type": "multi_label_classification", "pad_token_id": 1, "bos_token_id": 7, "eos_token_id": 9}
    dense = dense_model(family, head, hidden_act="silu", initializer_range=0.7, **fields)
    if family == "DistilBert":
        dense = dense_model(family, head, activation="silu", initializer_range=0.7, **fields)
    config = convert_model(dense, projected_length=5)[0].config
    assert {name: getattr(config, name) for name in fields} == fields
    assert config.id2label == {0: "bad", 1: "fair", 2: "good"}
    assert (config.hidden_act, config.initializer_range) == ("silu", 0.7)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.25, 0.15)
    assert config.layer_norm_eps == (1e-12 if family == "DistilBert" else 1e-3)
    assert config.type_vocab_size == (1 if family == "DistilBert" else 3)
    activation = {"DistilBert": "relu", "Electra": "gelu"}.get(family, "tanh")
    assert config.classifier_activation == activation
    dropout = {"DistilBert": 0.2, "Electra": 0.1 if head == "ForMultipleChoice" else 0.35}.get(family, 0.35)
    assert config.classifier_dropout == dropout


def test_a_distilbert_drops_tokens_and_sequences_at_different_rates():
    heads = ("ForTokenClassification", "ForSequenceClassification")
    configs = [convert_model(dense_model("DistilBert", head), projected_length=5)[0].config for head in heads]
    assert [config.classifier_dropout for config in configs] == [0.25, 0.2]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_of_its_own_words_stays_its_own(family):
    dense = dense_model(family, "ForMaskedLM", tie_word_embeddings=False)
    head, table = dense.get_output_embeddings().weight, dense.get_input_embeddings().weight
    assert not torch.equal(head, table)
    model, _ = convert_model(dense, projected_length=LONGEST)
    assert not model.config.tie_word_embeddings
    assert torch.equal(model.get_output_embeddings().weight, head)
    assert torch.equal(model.get_input_embeddings().weight, table)


def test_a_tied_head_stays_tied():
    model, _ = convert_model(dense_model("Bert", "ForMaskedLM"), projected_length=5)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_the_dense_model_stays_as_it_is_and_dtype_goes_over():
    dense = dense_model("Roberta", dtype=torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in dense.state_dict().items()}
    model, _ = convert_model(dense, projected_length=5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.bfloat16}
    assert all(torch.equal(before[name], tensor) for name, tensor in dense.state_dict().items())


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
@pytest.mark.parametrize("length", [7, 20, 47])
def test_positions_are_cut_or_repeated(family, length):
    dense = dense_model(family)
    model, report = convert_model(dense, max_position_embeddings=length, projected_length=length)
    table = dense.embeddings.position_embeddings.weight[-LONGEST:]
    ours = model.embeddings.position_embeddings.weight
    assert ours.shape == (length, 16)
    for position in range(length):
        assert torch.equal(ours[position], table[position % LONGEST])
    assert len(report.notes) == (length != LONGEST)
    short = random_ids(2, min(length, LONGEST))
    assert_close(model(short).last_hidden_state[:, 0].isfinite().double(), torch.ones(2, 16).double())


def test_interpolated_positions_go_from_the_first_to_the_last():
    dense = dense_model("Bert")
    model, _ = convert_model(dense, 39, 39, position_growth="interpolate")
    table, ours = dense.embeddings.position_embeddings.weight, model.embeddings.position_embeddings.weight
    assert_close(ours[::2], table, torch.float32)
    assert_close(ours[1::2], (table[1:] + table[:-1]) / 2, torch.float32)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_texts_of_up_to_k_tokens_are_read_exactly_by_default(sharing):
    dense = dense_model("Bert")
    model, _ = convert_model(dense, projected_length=8, projection_sharing=sharing)
    for num_tokens in (1, 2, 5, 8):
        ids = random_ids(2, num_tokens)
        assert_close(model(ids).last_hidden_state, dense(ids).last_hidden_state, torch.float32)
    model, _ = convert_model(dense, projected_length=8, projection_sharing=sharing, projection_start="window")
    assert not torch.allclose(model(ids).last_hidden_state, dense(ids).last_hidden_state, atol=1e-2)


@pytest.mark.parametrize("projection_type", ["linear", "conv", "mean_pool", "max_pool"])
def test_every_type_and_sharing_takes_the_weights(projection_type):
    dense = dense_model("Roberta", "ForMaskedLM")
    inputs = inputs_for("Roberta", "ForMaskedLM")
    for sharing in SHARINGS:
        options = {"projection_type": projection_type, "projection_sharing": sharing}
        model, _ = convert_model(dense, projected_length=LONGEST, **options)
        assert_close(model(**inputs).logits, dense(**inputs).logits, torch.float32, sharing)
        small, _ = convert_model(dense, projected_length=5, **options)
        assert small(**inputs).logits.isfinite().all()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"projection_start": "spectral"}, "`projection_start` is 'spectral'"),
        ({"position_growth": "copy"}, "`position_growth` is 'copy'"),
        ({"projected_length": 21}, "between 1 and"),
        ({"projected_length": [4, 2], "projection_start": "window"}, "start from 'leading'"),
        ({"projected_length": [4, 2], "projection_start": "graded"}, "start from 'leading'"),
        ({"projected_length": 3, "projection_type": "mean_pool"}, "must divide"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, reason):
    with pytest.raises(ValueError, match=reason):
        convert_model(dense_model("Bert"), **{"projected_length": 5, **options})
