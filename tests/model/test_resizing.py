"""A change of the longest input or of the vocabulary keeps what the model has learned."""

import logging

import pytest
import torch
from conftest import KINDS, VOCABULARY, assert_close, for_kinds, gradients, random_ids, tiny_model
from transformers import AutoModelForMaskedLM

from linformer_hf import LinformerForMaskedLM, LinformerForSequenceClassification, LinformerModel


SIZES = (44, 20)  # up and down from n = 32, both whole windows of 4 tokens


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def leave_unread(model, longest):
    """Let no slot of a matrix read a position from `longest` on, so that a cut takes nothing from any slot."""
    for name, weight in model.named_parameters():
        if "projection" in name and model.config.projection_type == "linear":
            weight.data[..., longest:] = 0


def resized_lengths(config, new):
    """The k of each layer after a change of n: learned matrices keep theirs, windows keep their length."""
    old, lengths = config.max_position_embeddings, config.projected_lengths
    return lengths if config.projection_type == "linear" else [length * new // old for length in lengths]


@for_kinds(KINDS)
@pytest.mark.parametrize("new", SIZES)
def test_short_inputs_give_the_same_after_the_longest_has_changed(projection_type, projection_sharing, new):
    model = tiny_model(LinformerForMaskedLM, projection_type=projection_type, projection_sharing=projection_sharing)
    leave_unread(model, new)
    ids = random_ids(3, min(new, 32))
    mask = (torch.arange(ids.shape[1]) < torch.tensor([[20], [13], [1]])).long()
    with torch.no_grad():
        before = model(ids).logits, model(ids, mask).logits
        lengths = resized_lengths(model.config, new)
        model.resize_position_embeddings(new)
        assert_close(model(ids).logits, before[0])
        assert_close(model(ids, mask).logits[mask == 1], before[1][mask == 1])
    assert model.config.max_position_embeddings == new
    assert model.config.projected_length == lengths[0]
    assert model.config.projected_lengths == lengths
    assert model.get_position_embeddings().weight.shape == (new, 16)
    if projection_type == "linear":
        shapes = {tuple(weight.shape[-2:]) for name, weight in model.named_parameters() if "projection" in name}
        assert shapes == {(8, new)}


@for_kinds([kind for kind in KINDS if kind != ("conv", "layerwise")])
@pytest.mark.parametrize("new", SIZES)
def test_the_k_of_each_layer_changes_with_n(projection_type, projection_sharing, new):
    # windows of 4 and 2 tokens
    model = tiny_model(
        projection_type=projection_type, projection_sharing=projection_sharing, projected_length=[8, 16]
    )
    leave_unread(model, new)
    ids = random_ids(2, 19)
    before = model(ids).last_hidden_state
    lengths = resized_lengths(model.config, new)
    model.resize_position_embeddings(new)
    assert model.config.projected_length == lengths
    assert_close(model(ids).last_hidden_state, before)


def test_a_smaller_n_that_leaves_slots_without_weights_warns(caplog):
    model = tiny_model()
    model.projection.weight.data[2:5, :20] = 0
    with caplog.at_level(logging.WARNING):
        model.resize_position_embeddings(24)
        assert not caplog.records
        model.resize_position_embeddings(20)
    (message,) = (record.getMessage() for record in caplog.records)
    assert "3 rows" in message and "`projected_length` to 5" in message
    assert "20" in message


@for_kinds(KINDS)
def test_a_model_with_a_larger_n_computes_and_learns_from_longer_inputs(projection_type, projection_sharing):
    model = tiny_model(LinformerForMaskedLM, projection_type=projection_type, projection_sharing=projection_sharing)
    learned = model.linformer.embeddings.position_embeddings.weight.detach().clone()
    matrices = {name: weight.detach().clone() for name, weight in model.named_parameters() if "projection" in name}
    model.resize_position_embeddings(44)
    grown = model.linformer.embeddings.position_embeddings.weight
    assert torch.equal(grown[:32], learned)
    assert torch.equal(grown[32:], learned[:12])
    for name, matrix in matrices.items() if projection_type == "linear" else ():
        assert torch.equal(model.get_parameter(name)[..., :32], matrix)
        assert not model.get_parameter(name)[..., 32:].any()
    ids = random_ids(2, 44)
    mask = torch.ones_like(ids)
    mask[0, 3:6] = 0
    is_token = mask[0] == 1
    outputs = model(ids, mask, labels=ids)
    alone = model(ids[:1, is_token]).logits
    assert_close(outputs.logits[0, is_token], alone[0])
    outputs.loss.backward()
    assert set(gradients(model)) == {name for name, _ in model.named_parameters()}
    for name, gradient in gradients(model).items():
        if name.endswith("position_embeddings.weight"):
            assert gradient.any(-1).all()
        elif projection_type == "linear" and "projection" in name:
            assert gradient[..., 32:].any()
    with pytest.raises(ValueError, match="45.*44"):
        model(random_ids(1, 45))


@for_kinds(KINDS)
@pytest.mark.parametrize("new", SIZES)
def test_a_resized_model_saves_and_loads(projection_type, projection_sharing, new, tmp_path):
    model = tiny_model(
        LinformerForMaskedLM, torch.float32, projection_type=projection_type, projection_sharing=projection_sharing
    )
    model.resize_position_embeddings(new)
    model.save_pretrained(tmp_path)
    loaded, report = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert loaded.config.max_position_embeddings == new
    ids = random_ids(2, new)
    assert torch.equal(loaded(ids).logits, model(ids).logits)


REFUSED = [
    ("linear", 7, ["8", "7"]),  # less than k
    ("linear", 0, ["max_position_embeddings", "0"]),
    ("linear", -5, ["max_position_embeddings", "-5"]),
    ("mean_pool", 42, ["42", "4", "multiple"]),
    ("max_pool", 30, ["30", "4", "multiple"]),
    ("conv", 33, ["33", "4", "multiple"]),
    ("conv", 0, ["0"]),
]


@pytest.mark.parametrize(("projection_type", "new", "words"), REFUSED)
@pytest.mark.parametrize("model_class", [LinformerModel, LinformerForSequenceClassification])
def test_a_refused_size_changes_nothing(model_class, projection_type, new, words):
    model = tiny_model(model_class, projection_type=projection_type)
    state, config = state_of(model), model.config.to_dict()
    with pytest.raises(ValueError) as error:
        model.resize_position_embeddings(new)
    for word in words:
        assert word in str(error.value)
    assert model.config.to_dict() == config
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_frozen_weights_stay_frozen_through_resizing():
    model = tiny_model().requires_grad_(False)
    model.resize_position_embeddings(44)
    assert not any(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("new", [VOCABULARY + 8, VOCABULARY - 10], ids=["up", "down"])
def test_the_vocabulary_changes_with_decoder_and_bias(new, tied, tmp_path):
    model = tiny_model(LinformerForMaskedLM, torch.float32, tie_word_embeddings=tied)
    kept = min(new, VOCABULARY)
    ids = random_ids(2, 19).clamp(max=kept - 1)
    bias = model.lm_head.decoder.bias.detach().clone()
    with torch.no_grad():
        before = model(ids).logits
    model.resize_token_embeddings(new, mean_resizing=False)
    assert model.config.vocab_size == new
    assert model.get_input_embeddings().weight.shape == (new, 16)
    decoder = model.get_output_embeddings()
    assert (decoder.weight.shape, decoder.bias.shape, decoder.out_features) == ((new, 16), (new,), new)
    assert (decoder.weight is model.get_input_embeddings().weight) == tied
    assert torch.equal(decoder.bias[:kept], bias[:kept])
    with torch.no_grad():
        after = model(ids).logits
    assert after.shape == (2, 19, new)
    assert_close(after[..., :kept], before[..., :kept])
    model(ids, labels=ids).loss.backward()

    model.save_pretrained(tmp_path)
    loaded, report = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert torch.equal(loaded(ids).logits, after)
