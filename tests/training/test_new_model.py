"""What a new model looks like: options, overrides, and the initialization of a dense twin."""

import pytest
import torch
from conftest import assert_close
from pretraining_tasks import TINY
from transformers import AutoModelForMaskedLM

from linformer_hf import LinformerForMaskedLM
from linformer_hf.common.loading import model_length
from linformer_hf.data.tokenizers import train_tokenizer
from linformer_hf.training.new_model import initialize_like_linformer, new_config


TOKENIZER = train_tokenizer(["one two three four"], vocab_size=270, max_length=32)


def config_of(overrides=TINY, model_type=None, max_seq_length=32, projected_length=(8,), **projection):
    lengths = None if projected_length is None else list(projected_length)
    return new_config(TOKENIZER, model_type, max_seq_length, lengths, projection, overrides)


def test_options_and_overrides_become_fields():
    config = config_of(projection_sharing="key_value")
    assert (config.max_position_embeddings, config.projected_length, config.projection_sharing) == (32, 8, "key_value")
    assert (config.hidden_size, config.vocab_size, config.pad_token_id) == (32, len(TOKENIZER), 1)
    assert config_of(projected_length=(8, 4), projection_sharing="key_value").projected_length == [8, 4]


def test_an_override_wins_over_the_default_of_another_option():
    config = config_of(
        f"{TINY},max_position_embeddings=64,projected_length=16,projection_type=mean_pool,vocab_size=320",
        max_seq_length=None,
        projected_length=None,
    )
    assert (config.max_position_embeddings, config.projected_length, config.vocab_size) == (64, 16, 320)
    assert config.projection_type == "mean_pool"
    starts = config_of(f"{TINY},position_init=normal,attention_init=normal,projection_init=folded")
    assert (starts.position_init, starts.attention_init, starts.projection_init) == ("normal", "normal", "folded")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"overrides": "projected_length=4"},
            "--projected_length is 8, and --config_overrides .* projected_length=4",
        ),
        ({"overrides": "max_position_embeddings=64"}, "--max_seq_length is 32, and .* max_position_embeddings=64"),
        (
            {"overrides": "projection_type=conv", "projection_type": "linear"},
            "--projection_type is linear, and --config_overrides says projection_type=conv",
        ),
        ({"overrides": "pad_token_id=3"}, "--config_overrides says pad_token_id=3, which the tokenizer says"),
        ({"overrides": "hidden_size"}, "--config_overrides has 'hidden_size'; it must name fields as in hidden_size="),
        ({"model_type": "gpt2", "projected_length": None}, "'gpt2', of which there is no model for masked words"),
        ({"model_type": "robreta", "projected_length": None}, "robreta"),
        ({"model_type": "bert"}, "--projected_length is 8, which has no effect with --model_type bert"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config_of(**changes)


def test_the_table_of_a_dense_twin_is_as_long_as_an_override_says():
    overridden = config_of("max_position_embeddings=40", "roberta", max_seq_length=None, projected_length=None)
    assert overridden.max_position_embeddings == 40
    by_option = config_of(TINY, "roberta", projected_length=None)
    assert by_option.max_position_embeddings == 34
    assert model_length(AutoModelForMaskedLM.from_config(by_option)) == 32


@pytest.mark.parametrize("model_type", ["roberta", "bert"])
def test_a_dense_twin_starts_with_the_positions_and_the_attention_of_a_linformer(model_type):
    twin = AutoModelForMaskedLM.from_config(config_of(TINY, model_type, projected_length=None))
    initialize_like_linformer(twin)
    linformer = LinformerForMaskedLM(config_of())
    positions = twin.base_model.embeddings.position_embeddings.weight
    assert_close(positions[-32:], linformer.get_position_embeddings().weight)
    for layer, reference in zip(twin.base_model.encoder.layer, linformer.base_model.layers):
        # the bases are random; that query and key of a head are alike, and by how much, is what both have in common
        products = [
            torch.stack([q @ k.T for q, k in zip(one.query.weight.chunk(2), one.key.weight.chunk(2))]).detach()
            for one in (layer.attention.self, reference.attention)
        ]
        likeness = [float(product.diagonal(dim1=1, dim2=2).mean()) for product in products]
        assert likeness[0] == pytest.approx(likeness[1], rel=0.15)
        assert likeness[0] > 5 * float((products[0] - likeness[0] * torch.eye(16)).abs().mean())


def test_a_family_without_query_and_key_maps_is_refused():
    config = config_of("dim=32,n_layers=1,n_heads=2,hidden_dim=64", "distilbert", projected_length=None)
    with pytest.raises(ValueError, match="--linformer_init does not support --model_type distilbert"):
        initialize_like_linformer(AutoModelForMaskedLM.from_config(config))
