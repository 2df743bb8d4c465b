"""The loss of distillation, against the same loss computed token by token."""

import numpy as np
import pytest
import torch
from conftest import assert_close, random_like

from linformer_hf.conversion.embeddings import TextEmbedding
from linformer_hf.conversion.windows import Reading, Window
from linformer_hf.training.distillation_loss import LossWeights, distillation_loss


WEIGHTS = LossWeights(hidden=0.7, embedding=1.3, attention=0.4, logits=0.6, temperature=1.7)


def random_reading(seed, sizes, logits_shape):
    """Draw the states of two layers, the outputs of two attentions and logits, in float64."""
    draws = iter(range(seed, seed + 5))
    states = [random_like(torch.empty(3, sum(sizes), 4, dtype=torch.float64), next(draws)) for _ in range(4)]
    logits = random_like(torch.empty(logits_shape, dtype=torch.float64), next(draws))
    windows = [Window(part, None, torch.ones(3, dtype=torch.bool)) for part in states[1].split(sizes, 1)]
    return Reading(states[:2], states[2:], logits, sizes, windows)


def loss_by_loops(student, teacher, weights, lengths, rows):
    """Compute the loss token by token; `rows` are those of the logits that count, of student and teacher."""
    loss = 0.0
    for weight, ours, theirs in (
        (weights.hidden, student.hidden_states, teacher.hidden_states),
        (weights.attention, student.attention_outputs, teacher.attention_outputs),
    ):
        for mine, wanted in zip(ours, theirs):
            tokens = [(b, t) for b, length in enumerate(lengths) for t in range(length)]
            mine = np.array([mine[place].numpy() for place in tokens])
            wanted = np.array([wanted[place].numpy() for place in tokens])
            variance = np.mean([np.mean((column - column.mean()) ** 2) for column in wanted.T])
            loss += weight / len(ours) * np.mean((mine - wanted) ** 2) / variance
    distances = []
    for b, length in enumerate(lengths):
        start = 0
        for size in teacher.window_sizes:
            stop = min(start + size, length)
            if stop > start:
                mine, wanted = (r.hidden_states[-1][b, start:stop].numpy().mean(0) for r in (student, teacher))
                distances.append(1 - mine @ wanted / np.linalg.norm(mine) / np.linalg.norm(wanted))
            start += size
    loss += weights.embedding * np.mean(distances)
    divergences = []
    for mine, wanted in rows:
        p, q = (np.exp(row.numpy() / weights.temperature) for row in (wanted, mine))
        p, q = p / p.sum(), q / q.sum()
        divergences.append(weights.temperature**2 * sum(p * np.log(p / q)))
    return loss + weights.logits * np.mean(divergences)


def test_the_loss_is_what_loops_over_tokens_and_windows_give():
    lengths = [9, 4, 7]
    student, teacher = random_reading(0, [3, 2, 4], (3, 5)), random_reading(10, [3, 2, 4], (3, 5))
    mask = torch.tensor([[int(token < length) for token in range(9)] for length in lengths])
    expected = loss_by_loops(student, teacher, WEIGHTS, lengths, zip(student.logits, teacher.logits))
    assert_close(distillation_loss(student, teacher, WEIGHTS, attention_mask=mask), torch.tensor(expected))


def test_the_loss_of_words_counts_labelled_tokens_of_a_sparse_or_a_full_head():
    student, teacher = random_reading(0, [9], (3, 9, 5)), random_reading(10, [9], (3, 9, 5))
    labels = torch.full((3, 9), -100)
    places = [(0, 2), (0, 8), (2, 1)]
    for place in places:
        labels[place] = 4
    rows = [(student.logits[place], teacher.logits[place]) for place in places]
    expected = torch.tensor(loss_by_loops(student, teacher, WEIGHTS, [9, 9, 9], rows))
    assert_close(distillation_loss(student, teacher, WEIGHTS, labels=labels), expected)
    student.logits = torch.stack([mine for mine, _ in rows])
    assert_close(distillation_loss(student, teacher, WEIGHTS, labels=labels), expected)


def test_logits_that_are_numbers_are_compared_as_they_are():
    student, teacher = random_reading(0, [9], (3, 2)), random_reading(10, [9], (3, 2))
    as_choice, as_numbers = (
        distillation_loss(student, teacher, LossWeights(hidden=0, embedding=0), picks_one=picks_one)
        for picks_one in (True, False)
    )
    assert_close(as_numbers, (student.logits - teacher.logits).square().mean())
    assert not torch.isclose(as_choice, as_numbers)


@pytest.mark.parametrize("sizes", [[9], [4, 5]], ids=["one window", "two windows"])
def test_the_loss_of_embeddings_pools_as_the_model_does(sizes):
    student, teacher = random_reading(0, [9], (3, 2)), random_reading(10, sizes, (3, 2))
    only_embeddings = LossWeights(hidden=0, embedding=1, logits=0)
    found = distillation_loss(student, teacher, only_embeddings, TextEmbedding(("cls",)))
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    distances = []
    for mine, states in zip(student.hidden_states[-1].numpy(), teacher.hidden_states[-1].numpy()):
        wanted = np.mean([states[start] for start in starts], axis=0)
        distances.append(1 - mine[0] @ wanted / np.linalg.norm(mine[0]) / np.linalg.norm(wanted))
    assert_close(found, torch.tensor(np.mean(distances)))
