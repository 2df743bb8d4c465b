"""Singular values of attention maps, and what the first of them keep: against numpy and loops."""

import numpy as np
import pytest
import torch
from conftest import assert_close
from padded_maps import MASK, NUM_TOKENS, cut, random_maps

from linformer_hf.analysis.singular_values import (
    cumulative_values,
    effective_rank,
    kept_energy,
    map_singular_values,
    rank_k_error,
    ranks_keeping,
    recommend,
)


@pytest.mark.parametrize("columns", [NUM_TOKENS, 4])
def test_singular_values_are_those_of_numpy_without_the_padding(columns):
    maps = random_maps(columns)
    found = map_singular_values(maps, MASK)
    assert found.shape == (3, 2, columns)
    for row in range(3):
        expected = np.linalg.svd(cut(maps, row, columns == NUM_TOKENS), compute_uv=False)
        assert_close(found[row, :, : expected.shape[-1]], torch.from_numpy(expected))
        assert found[row, :, expected.shape[-1] :].abs().max() < 1e-12 if expected.shape[-1] < columns else True
    assert_close(map_singular_values(maps[:1]), found[:1])


def test_maps_in_half_precision_are_decomposed_in_single():
    maps = random_maps().bfloat16()
    assert_close(map_singular_values(maps), map_singular_values(maps.float()))
    assert map_singular_values(maps).dtype == torch.float32


def test_shares_and_errors_are_those_of_loops():
    values = map_singular_values(random_maps(), MASK)
    functions = (cumulative_values, kept_energy, rank_k_error, effective_rank)
    cumulative, energy, error, effective = (function(values).numpy() for function in functions)
    for row in range(3):
        for head, dense in enumerate(cut(random_maps(), row)):
            left, own, right = np.linalg.svd(dense)
            shares = own / own.sum()
            assert effective[row, head] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
            for rank in range(1, len(own) + 1):
                nearest = (left[:, :rank] * own[:rank]) @ right[:rank]
                distance = np.linalg.norm(dense - nearest) / np.linalg.norm(dense)
                assert cumulative[row, head, rank - 1] == pytest.approx(sum(own[:rank]) / sum(own))
                assert energy[row, head, rank - 1] == pytest.approx(sum(own[:rank] ** 2) / sum(own**2))
                assert error[row, head, rank - 1] == pytest.approx(distance, abs=1e-12)


def test_the_identity_is_flat_and_a_mean_over_all_tokens_has_one_value():
    identity, mean = torch.eye(8).double(), torch.full((8, 8), 1 / 8).double()
    values = map_singular_values(torch.stack([identity, mean])[None])[0]
    assert_close(cumulative_values(values[0]), torch.arange(1, 9).double() / 8)
    assert_close(kept_energy(values[0]), torch.arange(1, 9).double() / 8)
    assert_close(cumulative_values(values[1]), torch.ones(8).double())
    assert_close(effective_rank(values), torch.tensor([8.0, 1.0]).double())
    assert_close(rank_k_error(values)[:, 0], torch.tensor([(7 / 8) ** 0.5, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_attention_within_groups_of_words_has_a_rank_for_each_group(rank):
    group = torch.arange(12) % rank
    maps = torch.where(group[:, None] == group, 0.0, -torch.inf).double().softmax(-1)
    values = map_singular_values(maps[None, None])
    assert_close(effective_rank(values), torch.full((1, 1), float(rank)).double())
    assert ranks_keeping(kept_energy(values), 0.999).item() == rank


def test_the_rank_that_keeps_a_share_is_the_first_that_reaches_it():
    shares = torch.tensor([[0.5, 0.9, 0.96, 1.0], [0.96, 0.97, 0.98, 0.99]])
    assert ranks_keeping(shares, 0.95).tolist() == [3, 1]
    assert ranks_keeping(shares, 0.9).tolist() == [2, 1]
    assert ranks_keeping(shares, 1.0).tolist() == [4, 4]


def test_the_recommendation_is_the_mean_over_heads_rounded_up_to_a_multiple_of_8():
    energy = torch.linspace(0.05, 1, 20).expand(2, 2, 20).clone()
    energy[1, 0] = 1.0
    assert recommend(energy, 0.4) == [8, 8]  # the smallest k are 8 and 1
    assert recommend(energy, 0.5) == [16, 8]  # 10 and 1
    assert recommend(energy, 0.8) == [16, 16]  # 16 and 12
    assert recommend(energy, 0.96) == [20, 20]  # there are no more
    for share in (0, 1.5):
        with pytest.raises(ValueError, match=f"share to keep is {share}"):
            recommend(energy, share)
