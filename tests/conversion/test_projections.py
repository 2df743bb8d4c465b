"""How projections of converted models are initialized, and how a trained model gets another k."""

import pytest
import torch
from conftest import SHARINGS, assert_close, enliven, random_ids, tiny_config, tiny_model
from torch.nn import functional as F

import linformer_hf
from linformer_hf.conversion.projections import (
    change_projected_length,
    fewer_slots,
    more_slots,
    start_matrix,
    start_projections,
)
from linformer_hf.modeling_linformer import window_averages


@pytest.mark.parametrize(("slots", "tokens"), [(1, 7), (2, 9), (3, 8), (5, 5), (5, 12), (8, 11)])
def test_a_window_start_averages_its_share_of_the_tokens(slots, tokens):
    matrix = start_matrix("window", slots, tokens)
    ends = 1 if slots > 2 else 0
    fine = 1000  # the tokens, cut fine, laid into windows of equal length
    expected = torch.zeros(slots, tokens, dtype=torch.float64)
    for piece in range((tokens - 2 * ends) * fine):
        window = (piece * (slots - 2 * ends)) // ((tokens - 2 * ends) * fine)
        expected[ends + window, ends + piece // fine] += (slots - 2 * ends) / ((tokens - 2 * ends) * fine)
    if ends:
        expected[0, 0] = expected[-1, -1] = 1
    torch.testing.assert_close(matrix.double(), expected, rtol=0, atol=2e-3)
    assert_close(matrix.sum(1), torch.ones(slots))


def test_leading_gives_the_first_tokens_a_slot_and_later_ones_little():
    matrix = start_matrix("leading", 4, 12)
    assert torch.equal(matrix[:, :4], torch.eye(4))
    assert 0 < matrix[:, 4:].max() < 0.2
    assert (matrix > 0).sum(0).eq(1).all()


@pytest.mark.parametrize(("slots", "tokens"), [(1, 7), (4, 12), (5, 9)])
def test_graded_gives_half_of_the_slots_to_single_tokens_and_averages_with_the_others(slots, tokens):
    matrix = start_matrix("graded", slots, tokens)
    alone = slots // 2
    assert torch.equal(matrix[:alone, :alone], torch.eye(alone))
    assert not matrix[:alone, alone:].any() and not matrix[alone:, :alone].any()
    assert_close(matrix.sum(1), torch.ones(slots))
    widths = (matrix[alone:] > 0).sum(1)
    assert widths.min() >= (tokens - alone) // (slots - alone)
    assert torch.equal(matrix[alone:].argmax(1), matrix[alone:].argmax(1).sort().values)


@pytest.mark.parametrize("start", ["leading", "graded", "window", "folded"])
def test_with_a_slot_for_each_token_every_start_is_the_identity(start):
    assert torch.equal(start_matrix(start, 9, 9), torch.eye(9))


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("projection_type", ["linear", "conv", "mean_pool"])
def test_slots_change_in_every_layer_and_survive_saving(projection_type, sharing, tmp_path):
    model = tiny_model(projection_type=projection_type, projection_sharing=sharing)
    ids = random_ids(2, 32)
    for length in (4, 16, 8):
        change_projected_length(model, length)
        assert model.config.projected_length == length
        outputs = model.eval()(ids, output_attentions=True)
        assert [weights.shape[-1] for weights in outputs.attentions] == [length, length]
    model.save_pretrained(tmp_path)
    again = linformer_hf.LinformerModel.from_pretrained(tmp_path)
    assert_close(again(ids).last_hidden_state, model(ids).last_hidden_state, torch.float32)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_slots_as_they_were_change_nothing(sharing):
    model = tiny_model(projection_sharing=sharing)
    ids = random_ids(2, 32)
    before = model(ids).last_hidden_state
    change_projected_length(model, 8)
    assert torch.equal(model(ids).last_hidden_state, before)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_twice_the_slots_compute_nearly_the_same_with_rows_that_differ(sharing):
    model = linformer_hf.LinformerModel(tiny_config(projection_sharing=sharing)).double().eval()
    enliven(model)
    ids = random_ids(2, 32)
    before = model(ids).last_hidden_state
    change_projected_length(model, 16)
    similarity = torch.cosine_similarity(model(ids).last_hidden_state, before, dim=-1)
    assert similarity.min() > 0.999
    weight = next(weight for name, weight in model.named_parameters() if "projection" in name).flatten(0, -2)
    assert len(weight.unique(dim=0)) == len(weight)


@pytest.mark.parametrize("sharing", ["none", "headwise"])
@pytest.mark.parametrize("slots", [11, 16, 30])
def test_keys_and_values_of_a_split_slot_come_from_the_same_slot(sharing, slots):
    model = tiny_model(projection_sharing=sharing)
    attention = model.layers[0].attention
    old = [projection.weight.detach() for projection in (attention.key_projection, attention.value_projection)]
    change_projected_length(model, slots)
    new = [attention.key_projection.weight, attention.value_projection.weight]
    parents = [
        (F.normalize(rows, dim=-1) @ F.normalize(before, dim=-1).transpose(-1, -2)).argmax(-1)
        for rows, before in zip(new, old)
    ]
    assert torch.equal(*parents)
    assert parents[0].unique().tolist() == list(range(8))


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("start", ["graded", "leading", "window"])
def test_split_slots_stand_in_the_order_of_the_tokens_that_they_read(sharing, start):
    model = linformer_hf.LinformerModel(tiny_config(projection_sharing=sharing))
    start_projections(model, start)
    change_projected_length(model, 12)
    for name, weight in model.named_parameters():
        if "projection" in name:
            first = (weight != 0).int().argmax(-1)
            assert torch.equal(first, first.sort().values)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_new_slots_average_the_tokens_that_no_slot_reads_and_shorter_texts_stay_as_they_were(sharing):
    model = tiny_model(projection_sharing=sharing)
    ids = random_ids(2, 32)
    before = {length: model(ids[:, :length]).last_hidden_state for length in (3, 31, 32)}
    model.resize_position_embeddings(62)
    change_projected_length(model, 13)
    for length, expected in before.items():
        assert_close(model(ids[:, :length]).last_hidden_state, expected)
    for name, weight in model.named_parameters():
        if "projection" in name:
            windows = torch.block_diag(*[torch.full((1, 6), 1 / 6)] * 5).expand(*weight.shape[:-2], -1, -1)
            assert_close(weight[..., 8:, 32:], windows.to(weight))
            assert not weight[..., :8, 32:].any() and not weight[..., 8:, :32].any()


def test_rows_are_split_when_every_token_has_a_slot():
    model = tiny_model(projection_sharing="key_value")
    model.resize_position_embeddings(34)
    change_projected_length(model, 12)
    weight = model.layers[0].attention.projection.weight
    assert torch.equal(weight[:, 32:].nonzero(), torch.tensor([[10, 0], [11, 1]]))
    assert (weight[:, :32] != 0).all(1).sum() == 10


def test_a_convolution_that_averages_goes_on_averaging():
    model = linformer_hf.LinformerModel(tiny_config(projection_type="conv"))
    start_projections(model, "leading")
    for length in (8, 4, 16):
        change_projected_length(model, length)
        window = 32 // length
        assert_close(model.projection.weight, torch.full((16, window), 1 / window))


def test_slots_without_weights_are_left_out_before_others_are_averaged():
    matrices = torch.randn(2, 7, 9)
    matrices[:, [1, 4, 5]] = 0
    assert torch.equal(fewer_slots(matrices, 4), matrices[:, [0, 2, 3, 6]])
    assert torch.equal(fewer_slots(matrices, 5), matrices[:, [0, 2, 3, 5, 6]])
    assert_close(fewer_slots(matrices, 3)[:, 1], matrices[:, 2:4].mean(1))
    matrices[1, 4] = 1
    assert_close(fewer_slots(matrices, 5), matrices[:, [0, 2, 3, 4, 6]])


def test_new_slots_come_for_tokens_that_neither_keys_nor_values_read():
    matrices = torch.zeros(2, 3, 8)
    matrices[0, 0, :3] = matrices[1, 0, 1:3] = matrices[1, 1, 3:5] = 1.0  # slot 1 is empty in E alone, slot 2 in both
    grown = more_slots(matrices, 4)
    assert torch.equal(grown[:, :2], matrices[:, :2])
    assert torch.equal(grown[:, 2:, 5:], window_averages(2, 3).expand(2, -1, -1))
    assert not grown[:, 2:, :5].any()


def test_the_widest_slots_of_all_matrices_are_split_first():
    matrices = torch.zeros(2, 3, 8)
    matrices[0, 0, :3] = matrices[0, 1, 3:5] = matrices[0, 2, 5:] = 1.0
    matrices[1, 0, 0] = matrices[1, 1, 1:5] = matrices[1, 2, 5] = 1.0  # 2, 3 and 2 tokens on average
    grown = more_slots(matrices, 4)
    assert torch.equal(grown[:, [0, 3]], matrices[:, [0, 2]])
    assert_close(grown[:, 1:3].mean(1), matrices[:, 1])
    assert (grown[:, 1] != grown[:, 2]).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_slots_of_a_model_in_half_precision_change_in_single_precision(dtype):
    model = tiny_model(projection_sharing="headwise")
    projection = model.layers[0].attention.key_projection
    projection.weight.data = 2e-4 * torch.rand(8, 32)
    rounded = model.to(dtype)
    expected = more_slots(
        torch.stack([projection.weight.float(), model.layers[0].attention.value_projection.weight.float()]), 12
    )
    change_projected_length(rounded, 12)
    assert projection.weight.dtype == dtype and projection.weight.equal(expected[0].to(dtype))
    change_projected_length(rounded, 3)
    assert projection.weight.dtype == dtype


@pytest.mark.parametrize("slots", [4, 12])
def test_frozen_projections_stay_frozen(slots):
    model = tiny_model(projection_sharing="headwise")
    attention = model.layers[0].attention
    attention.key_projection.weight.requires_grad_(False)
    change_projected_length(model, slots)
    assert not attention.key_projection.weight.requires_grad
    assert attention.value_projection.weight.requires_grad
    assert attention.key_projection.weight.is_contiguous()


def test_as_many_slots_stay_in_their_order():
    model = tiny_model(projection_sharing="key_value")
    weight = model.layers[0].attention.projection.weight
    weight.data[:4, :20] = 0
    before = weight.clone()
    change_projected_length(model, [8, 4])
    assert model.layers[0].attention.projection.weight.equal(before)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_half_the_slots_average_neighbors(sharing):
    model = tiny_model(projection_sharing=sharing)
    names = [name for name, _ in model.named_parameters() if "projection" in name]
    before = {name: model.get_parameter(name).detach().clone() for name in names}
    change_projected_length(model, 5)
    for name in names:
        old, new = before[name], model.get_parameter(name)
        merged = [old[..., 0, :], *(old[..., row : row + 2, :].mean(-2) for row in (1, 3, 5)), old[..., 7, :]]
        assert_close(new, torch.stack(merged, -2))


def test_a_list_of_slots_is_one_a_layer():
    model = tiny_model(projection_sharing="key_value")
    change_projected_length(model, [3, 11])
    assert [layer.attention.projection.weight.shape[0] for layer in model.layers] == [3, 11]
    maps = model(random_ids(1, 32), output_attentions=True).attentions
    assert [weights.shape[-1] for weights in maps] == [3, 11]
    model = tiny_model(projection_sharing="layerwise")
    with pytest.raises(ValueError, match="give one number"):
        change_projected_length(model, [3, 11])
    assert model.config.projected_length == 8 and model.projection.weight.shape == (8, 32)


@pytest.mark.parametrize("length", [0, 33, [8, 8, 8]])
def test_slots_that_do_not_fit_are_refused_and_nothing_changes(length):
    model = tiny_model()
    with pytest.raises(ValueError, match="projected_length"):
        change_projected_length(model, length)
    assert model.config.projected_length == 8 and model.projection.weight.shape == (8, 32)
    model = tiny_model(projection_type="mean_pool")
    with pytest.raises(ValueError, match="must divide"):
        change_projected_length(model, 5)
