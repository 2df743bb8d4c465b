"""How the weights of a new model are initialized, and that loaded weights are not initialized again."""

import json
import logging

import pytest
import torch
from conftest import SHARINGS, assert_close, random_ids, tiny_config, tiny_model
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers.utils import logging as host_logging

from linformer_hf import LinformerConfig, LinformerForMaskedLM, LinformerModel
from linformer_hf.configuration_linformer import ATTENTION_INITS, POSITION_INITS, PROJECTION_INITS
from linformer_hf.modeling_linformer import sinusoidal_positions


EVERY_PROJECTION_INIT = [(kind, start) for kind, starts in PROJECTION_INITS.items() for start in (None, *starts)]


def new_model(model_class=LinformerModel, seed=0, **fields):
    torch.manual_seed(seed)
    return model_class(tiny_config(**fields)).eval()


def projections(model):
    return [weight for name, weight in model.named_parameters() if "projection" in name]


@pytest.mark.parametrize("projection_sharing", SHARINGS)
@pytest.mark.parametrize(("projection_type", "projection_init"), EVERY_PROJECTION_INIT)
def test_a_new_model_takes_a_training_step_with_every_initialization(
    projection_type, projection_init, projection_sharing
):
    for position_init in POSITION_INITS:
        for attention_init in ATTENTION_INITS:
            model = new_model(
                LinformerForMaskedLM,
                projection_type=projection_type,
                projection_sharing=projection_sharing,
                projection_init=projection_init,
                position_init=position_init,
                attention_init=attention_init,
            ).train()
            ids = random_ids(3, 32)
            model(ids, labels=ids).loss.backward()
            for name, weight in model.named_parameters():
                assert torch.isfinite(weight).all(), name
                assert torch.isfinite(weight.grad).all(), name


@pytest.mark.parametrize("sharing", SHARINGS)
def test_window_projections_average_neighbouring_tokens(sharing):
    model = new_model(projection_sharing=sharing, projection_init="window")
    states = torch.randn(32, 16)
    for weight in projections(model):
        for matrix in weight.reshape(-1, 8, 32):
            assert_close(matrix @ states, states.reshape(8, 4, 16).mean(1))


def test_windows_of_a_fractional_length_share_the_token_on_their_border():
    (weight,) = projections(new_model(projection_init="window", max_position_embeddings=5, projected_length=2))
    assert_close(weight.detach(), torch.tensor([[0.4, 0.4, 0.2, 0.0, 0.0], [0.0, 0.0, 0.2, 0.4, 0.4]]))


@pytest.mark.parametrize("sharing", SHARINGS)
def test_folded_projections_are_an_identity_folded_into_the_slots(sharing):
    model = new_model(projection_sharing=sharing, projection_init="folded", max_position_embeddings=40)
    for weight in projections(model):
        for matrix in weight.reshape(-1, 8, 40):
            assert torch.equal(matrix[:, :8], torch.eye(8))
            assert torch.equal(matrix[:, 8:], 0.5 * torch.eye(8).repeat(1, 4))  # four more, together as large as one


def test_normal_projections_have_the_standard_deviation_of_the_paper():
    (weight,) = projections(new_model(projection_init="normal", max_position_embeddings=512, projected_length=64))
    assert weight.std().item() == pytest.approx(512**-0.5, rel=0.05)
    assert abs(weight.mean().item()) < 1e-3


def test_convolutions_pick_a_token_of_the_window_or_average_it():
    for kernel in projections(new_model(projection_type="conv", projection_sharing="none")):
        for channel, row in enumerate(kernel):
            assert row.tolist() == [float(place == channel % 4) for place in range(4)]
    (kernel,) = projections(new_model(projection_type="conv", projection_init="window"))
    assert torch.equal(kernel, torch.full((16, 4), 0.25))


def test_the_amplitude_of_sinusoidal_positions_is_three_standard_deviations_of_words():
    model = new_model(position_init="sinusoidal", initializer_range=0.05)
    table = model.embeddings.position_embeddings.weight.detach()
    for position in range(32):
        for pair in range(8):
            angle = torch.tensor(position / 10000 ** (2 * pair / 16))
            expected = 0.15 * torch.stack([angle.sin(), angle.cos()])
            assert_close(table[position, 2 * pair : 2 * pair + 2], expected)
    assert new_model(hidden_size=15, num_attention_heads=3).embeddings.position_embeddings.weight.shape == (32, 15)


def test_normal_positions_and_maps_are_those_of_roberta():
    model = new_model(
        hidden_size=64, max_position_embeddings=512, position_init="normal", attention_init="normal", vocab_size=500
    )
    for weight in (model.embeddings.position_embeddings.weight, model.layers[0].attention.key.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)


def scores_of_first_layer(model, states):
    attention = model.layers[0].attention
    query, key = (states @ module.weight.T for module in (attention.query, attention.key))
    query, key = (rows.unflatten(-1, (-1, attention.head_dim)).transpose(0, 1) for rows in (query, key))
    return query @ key.transpose(1, 2) * attention.scaling


def test_with_mimetic_maps_tokens_attend_to_similar_tokens():
    model = new_model(hidden_size=128, num_attention_heads=4)
    states = F.layer_norm(torch.randn(200, 128), (128,))
    with torch.no_grad():
        scores = scores_of_first_layer(model, states)
    # the truncated singular value decomposition of the paper gives the same scores: 0.7 (I + Z), Z ~ N(0, 1/M)
    for head in scores:
        left, values, right = torch.linalg.svd(0.7 * (torch.eye(128) + torch.randn(128, 128) * 128**-0.5))
        expected = states @ (left[:, :32] * values[:32]) @ right[:32] @ states.T * 32**-0.5
        assert head.diagonal().mean().item() == pytest.approx(expected.diagonal().mean().item(), rel=0.2)
        assert head.std().item() == pytest.approx(expected.std().item(), rel=0.2)
    layers = [layer.attention.query.weight for layer in model.layers]
    assert not torch.allclose(*layers)


@pytest.mark.parametrize("model_class", [LinformerModel, LinformerForMaskedLM])
def test_the_seed_decides_every_weight(model_class):
    first, again, other = (new_model(model_class, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first[name := next(name for name in first if "query.weight" in name)], other[name])


def test_loading_changes_no_weight_whatever_the_initialization(tmp_path):
    model = tiny_model(LinformerForMaskedLM, torch.float32)
    model.save_pretrained(tmp_path)
    loaded = LinformerForMaskedLM.from_pretrained(tmp_path)
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name


@pytest.mark.parametrize("missing", ["query.weight", "key.weight", "position_embeddings.weight", "projection.weight"])
def test_only_what_a_file_lacks_is_initialized(missing, tmp_path):
    model = tiny_model(LinformerForMaskedLM, torch.float32)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(missing)}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = LinformerForMaskedLM.from_pretrained(tmp_path, ignore_mismatched_sizes=True).state_dict()
    for name, tensor in tensors.items():
        assert torch.isfinite(loaded[name]).all()
        assert torch.equal(loaded[name], tensor) == (name in kept), name


def test_a_configuration_of_0_1_0_loads_with_its_weights(tmp_path):
    model = tiny_model(LinformerForMaskedLM, torch.float32, projected_length=[8, 4])
    model.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    for name in ("position_init", "attention_init", "projection_init"):
        del fields[name]
    (tmp_path / "config.json").write_text(json.dumps({**fields, "linformer_version": "0.1.0"}))
    loaded = LinformerForMaskedLM.from_pretrained(tmp_path)
    ids = random_ids(2, 19)
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_a_model_on_the_meta_device_has_shapes_and_no_values():
    with torch.device("meta"):
        model = LinformerForMaskedLM(LinformerConfig())
    assert all(weight.is_meta for weight in model.parameters())


def test_layers_of_different_k_that_share_a_matrix_start_folded_and_warn(caplog):
    host_logging.warning_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        (weight,) = projections(new_model(projected_length=[8, 4]))
    assert torch.equal(weight[:, :8], torch.eye(8))
    assert any("key_value" in record.getMessage() for record in caplog.records)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        first, second = projections(new_model(projected_length=[8, 4], projection_sharing="key_value"))
    assert not caplog.records
    assert_close(first.sum(1), torch.ones(8))
    assert_close(second.detach() @ torch.ones(32), torch.ones(4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_built_in_half_precision_starts_as_one_in_single(dtype):
    config = tiny_config(dtype=dtype)
    torch.manual_seed(0)
    table = LinformerModel._from_config(config).embeddings.position_embeddings.weight
    assert table.dtype == dtype
    assert torch.equal(table, sinusoidal_positions(32, 16, 0.02).to(dtype))
