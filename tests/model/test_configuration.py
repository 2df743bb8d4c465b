"""The fields of a configuration, the values that it refuses, and what the messages name."""

import pytest
from conftest import KINDS, SHARINGS, TYPES, for_kinds, random_ids, tiny_config
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig, RobertaConfig

from linformer_hf import (
    LinformerConfig,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
    configuration_linformer,
)


# wrong fields, and the field, the value and the repair that the message must name
WRONG = [
    ({"projected_length": 0}, ["projected_length", "0", "between 1 and", "32"]),
    ({"projected_length": -4}, ["projected_length", "-4", "between 1 and", "32"]),
    ({"projected_length": 33}, ["projected_length", "33", "max_position_embeddings", "32"]),
    ({"projected_length": [8, 33]}, ["projected_length", "[8, 33]", "between 1 and", "32"]),
    ({"projected_length": [8, 0]}, ["projected_length", "[8, 0]", "between 1 and", "32"]),
    ({"projected_length": [8, 8, 8]}, ["projected_length", "3", "num_hidden_layers", "2"]),
    ({"projected_length": []}, ["projected_length", "0", "num_hidden_layers", "2"]),
    ({"projected_length": 5, "projection_type": "mean_pool"}, ["projected_length", "5", "mean_pool", "divide", "32"]),
    ({"projected_length": 12, "projection_type": "max_pool"}, ["projected_length", "12", "max_pool", "divide", "32"]),
    (
        {"projected_length": [8, 7], "projection_type": "conv", "projection_sharing": "none"},
        ["projected_length", "[8, 7]", "conv", "divide", "32"],
    ),
    (
        {"projected_length": [8, 4], "projection_type": "conv"},
        ["projected_length", "[8, 4]", "conv", "layerwise", "key_value"],
    ),
    ({"projection_sharing": "per_head"}, ["projection_sharing", "per_head", *SHARINGS]),
    ({"projection_type": "attention"}, ["projection_type", "attention", *TYPES]),
    ({"position_init": "learned"}, ["position_init", "learned", "sinusoidal", "normal"]),
    ({"attention_init": "identity"}, ["attention_init", "identity", "mimetic", "normal"]),
    ({"projection_init": "pick"}, ["projection_init", "pick", "linear", "window", "folded", "normal", "None"]),
    (
        {"projection_init": "folded", "projection_type": "conv"},
        ["projection_init", "folded", "conv", "pick", "window"],
    ),
    (
        {"projection_init": "window", "projected_length": [8, 4]},
        ["projected_length", "[8, 4]", "layerwise", "window", "beginning", "key_value"],
    ),
    ({"classifier_pooling": "max"}, ["classifier_pooling", "max", "cls", "mean"]),
    ({"hidden_size": 15}, ["hidden_size", "15", "num_attention_heads", "2", "multiple"]),
    ({"hidden_size": 0}, ["hidden_size", "0", "at least 1"]),
    ({"num_attention_heads": 0}, ["num_attention_heads", "0", "at least 1"]),
    ({"vocab_size": 0, "pad_token_id": None}, ["vocab_size", "0", "at least 1"]),
    ({"max_position_embeddings": 0}, ["max_position_embeddings", "0", "at least 1"]),
    ({"pad_token_id": 61}, ["pad_token_id", "61", "60", "None"]),
    ({"pad_token_id": -1}, ["pad_token_id", "-1", "60", "None"]),
    ({"is_decoder": True}, ["is_decoder", "True", "encoder", "causal"]),
]


def names_of(fields):
    return "-".join(f"{name}={value}" for name, value in fields.items()).replace(" ", "")


@pytest.mark.parametrize(("fields", "words"), WRONG, ids=[names_of(fields) for fields, _ in WRONG])
def test_a_wrong_value_is_refused_with_field_value_and_repair(fields, words):
    with pytest.raises(ValueError) as error:
        tiny_config(**fields)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(("fields", "words"), WRONG, ids=[names_of(fields) for fields, _ in WRONG])
def test_a_value_made_wrong_later_is_refused_by_the_model(fields, words):
    config = tiny_config()
    for name, value in fields.items():
        setattr(config, name, value)
    with pytest.raises(ValueError) as error:
        LinformerModel(config)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("field", ["projected_length", "max_position_embeddings", "projection_sharing"])
def test_a_value_of_another_kind_is_refused_by_name(field):
    with pytest.raises(StrictDataclassFieldValidationError, match=field):
        tiny_config(**{field: 2.5})


@pytest.mark.parametrize(
    ("slip", "meant"), [("projected_lenght", "projected_length"), ("projection_sharring", "projection_sharing")]
)
def test_a_misspelled_field_is_refused_with_the_similar_one(slip, meant):
    with pytest.raises(ValueError, match=f"{slip}.*{meant}"):
        tiny_config(**{slip: 8})


@pytest.mark.parametrize("version", ["0.3.0", "0.10", "1.0.0"])
def test_a_configuration_of_a_newer_minor_version_is_refused_with_both_versions(version, monkeypatch):
    monkeypatch.setattr(configuration_linformer, "VERSION", "0.2.1")
    with pytest.raises(ValueError, match=rf"linformer_hf {version}; this is 0\.2\.1.*pip install --upgrade"):
        tiny_config(linformer_version=version)


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.2.9", None])
def test_a_configuration_of_an_older_or_a_patch_version_is_read_and_gets_this_version(version, monkeypatch):
    monkeypatch.setattr(configuration_linformer, "VERSION", "0.2.1")
    assert tiny_config(linformer_version=version).linformer_version == "0.2.1"


def test_0_1_0_refuses_configurations_of_this_version(monkeypatch):
    saved_by = LinformerConfig().linformer_version
    monkeypatch.setattr(configuration_linformer, "VERSION", "0.1.0")
    with pytest.raises(ValueError, match="pip install --upgrade"):
        tiny_config(linformer_version=saved_by)


def test_defaults_are_those_of_roberta():
    ours, theirs = LinformerConfig(), RobertaConfig()
    fields = {name for name in vars(theirs) if name in vars(ours) and not name.startswith("_")}
    assert {"hidden_size", "num_hidden_layers", "intermediate_size", "hidden_act", "initializer_range"} <= fields
    different = {name for name in fields if getattr(ours, name) != getattr(theirs, name)}
    assert different <= {"dtype", "transformers_version", "architectures", "auto_map"}
    assert (ours.max_position_embeddings, ours.projected_length) == (512, 128)
    assert (ours.projection_sharing, ours.projection_type) == ("layerwise", "linear")


def test_k_is_one_number_or_one_per_layer():
    assert tiny_config(num_hidden_layers=3).projected_lengths == [8, 8, 8]
    assert tiny_config(projected_length=[4, 2]).projected_lengths == [4, 2]


def test_the_last_k_of_a_list_holds_for_all_further_layers():
    config = tiny_config(num_hidden_layers=5, projected_length=[16, 8, 2])
    assert config.projected_lengths == [16, 8, 2, 2, 2]
    assert config.projected_length == [16, 8, 2]
    assert tiny_config(num_hidden_layers=3, projected_length=[4]).projected_lengths == [4, 4, 4]


@for_kinds(KINDS)
def test_a_saved_configuration_loads_with_the_same_fields(projection_type, projection_sharing, tmp_path):
    lengths = 8 if projection_type == "conv" else [8, 4]
    config = tiny_config(
        projection_type=projection_type,
        projection_sharing=projection_sharing,
        projected_length=lengths,
        classifier_pooling="mean",
        classifier_dropout=0.25,
        sparse_prediction=True,
        position_init="normal",
        attention_init="normal",
        projection_init="normal" if projection_type == "linear" else None,
        pad_token_id=None,
    )
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is LinformerConfig
    actual, expected = loaded.to_dict(), config.to_dict()
    for written_by_the_host in ("transformers_version", "_name_or_path"):
        actual.pop(written_by_the_host, None), expected.pop(written_by_the_host, None)
    assert actual == expected
    assert loaded.projected_length == lengths


@pytest.mark.parametrize("sparse_prediction", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("tie_word_embeddings", [True, False], ids=["tied", "untied"])
@for_kinds(KINDS)
def test_every_masked_language_model_of_the_options_takes_a_step(
    projection_type, projection_sharing, tie_word_embeddings, sparse_prediction
):
    config = tiny_config(
        projection_type=projection_type,
        projection_sharing=projection_sharing,
        tie_word_embeddings=tie_word_embeddings,
        sparse_prediction=sparse_prediction,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    model = LinformerForMaskedLM(config).train()
    tied = model.lm_head.decoder.weight is model.linformer.embeddings.word_embeddings.weight
    assert tied == tie_word_embeddings
    ids = random_ids(3, 19)
    loss = model(ids, labels=ids).loss
    # before training every word is as likely as any other: ln(61) = 4.11
    assert 4.0 < loss.item() < 4.25
    loss.backward()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_sequence_is_its_first_real_token_or_the_mean_of_them(pooling):
    model = LinformerForSequenceClassification(tiny_config(classifier_pooling=pooling)).eval()
    pooled = []
    model.classifier.register_forward_pre_hook(lambda module, inputs: pooled.append(inputs[0]))
    ids = random_ids(1, 9)
    mask = (ids != 0).long()
    mask[0, [0, 1, 4]] = 0
    states = model.linformer(ids, mask).last_hidden_state[0, mask[0] == 1]
    model(ids, mask)
    expected = states[0] if pooling == "cls" else states.sum(0) / 6
    assert (pooled[0][0] - expected).abs().max() < 1e-6


def test_classifier_dropout_falls_back_to_the_hidden_one():
    def of_head(**fields):
        head = LinformerForSequenceClassification(tiny_config(hidden_dropout_prob=0.3, **fields)).classifier
        return head.dropout.p

    assert of_head() == 0.3
    assert of_head(classifier_dropout=0.0) == 0.0
    assert of_head(classifier_dropout=0.2) == 0.2


def test_the_padding_word_starts_at_zero_where_there_is_one():
    table = LinformerModel(tiny_config(pad_token_id=5)).embeddings.word_embeddings.weight
    assert not table[5].any()
    assert table[6].any()
    table = LinformerModel(tiny_config(pad_token_id=None)).embeddings.word_embeddings.weight
    assert table.any(-1).all()
