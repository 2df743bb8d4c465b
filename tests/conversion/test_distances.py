"""Distances between encoders, against NumPy."""

import math

import numpy as np
import pytest
import torch
from conftest import random_like

from linformer_hf.common.measurement import peak_tensor_bytes
from linformer_hf.conversion.distances import ROWS_AT_ONCE, recall, similarity_correlation, state_distance


def random_tables(rows, width):
    """Draw two tables of embeddings that resemble each other."""
    first = random_like(torch.empty(rows, width)) + 1
    return first, first + random_like(torch.empty(rows, width), seed=1)


def correlation_by_numpy(first, second):
    upper = np.triu_indices(len(first), 1)
    similarities = []
    for table in (first, second):
        table = table.double().numpy()
        table = table / np.linalg.norm(table, axis=1, keepdims=True)
        similarities.append((table @ table.T)[upper])
    return np.corrcoef(*similarities)[0, 1]


@pytest.mark.parametrize("rows", [3, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 3 * ROWS_AT_ONCE + 5])
def test_the_correlation_of_similarities_is_that_of_numpy(rows):
    tables = random_tables(rows, 12)
    assert similarity_correlation(*tables) == pytest.approx(correlation_by_numpy(*tables), rel=1e-5)


def test_similarities_that_lie_close_together_are_correlated_precisely():
    first, second = (1000 + table for table in random_tables(300, 12))
    assert similarity_correlation(first, first) == pytest.approx(1.0, abs=1e-6)
    assert similarity_correlation(first, second) < 0.999


def test_one_pair_or_equal_similarities_have_no_correlation():
    assert math.isnan(similarity_correlation(torch.eye(1), torch.eye(1)))
    assert math.isnan(similarity_correlation(torch.eye(2), torch.eye(2)))
    assert math.isnan(similarity_correlation(torch.eye(5), torch.eye(5)))


def test_the_memory_of_the_correlation_grows_with_the_examples_and_not_with_their_square():
    tables = [random_tables(count, 4) for count in (2 * ROWS_AT_ONCE, 32 * ROWS_AT_ONCE)]
    peaks = [peak_tensor_bytes(lambda pair=pair: similarity_correlation(*pair)) for pair in tables]
    assert peaks[1] - peaks[0] < 2 * sum(table.nbytes for table in tables[1])


def test_recall_counts_queries_that_find_their_own_key():
    queries, keys = random_tables(50, 3)
    found = [
        np.argmax([query @ key / np.linalg.norm(key) for key in keys.numpy()]) == number
        for number, query in enumerate(queries.numpy())
    ]
    assert 0 < np.mean(found) < 1
    assert recall(queries, keys) == pytest.approx(np.mean(found))


def test_padding_has_no_part_in_the_distance_of_states():
    ours, theirs = random_like(torch.empty(2, 6, 4)), random_like(torch.empty(2, 6, 4), seed=1)
    mask = torch.tensor([[1] * 6, [1] * 2 + [0] * 4])
    changed = ours + 100 * (1 - mask[..., None])
    assert state_distance([changed], [theirs], mask) == state_distance([ours], [theirs], mask)
    assert state_distance([changed], [theirs], None) != state_distance([ours], [theirs], None)
