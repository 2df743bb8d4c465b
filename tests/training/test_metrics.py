"""Answers out of logits, their metrics, and what needs no encoder to reach."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from finetuning_tasks import sentence

from linformer_hf.data.glue import TASKS, score
from linformer_hf.data.labels import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Labels
from linformer_hf.training.metrics import TaskMetrics


EQUIVALENCE = Labels(SINGLE_LABEL, ("equivalent", "not_equivalent"))


@pytest.mark.parametrize(
    ("labels", "shape", "dtype"),
    [
        (Labels(SINGLE_LABEL, tuple("abcde")), (6,), torch.int64),
        (Labels(MULTI_LABEL, tuple("abcde")), (6, 5), torch.int8),
        (Labels(REGRESSION, ("a",)), (6,), torch.float32),
    ],
    ids=lambda value: value.problem_type if isinstance(value, Labels) else "",
)
def test_logits_become_answers_before_they_are_gathered(labels, shape, dtype):
    logits = torch.randn(6, len(labels.names), generator=torch.Generator().manual_seed(0))
    found = TaskMetrics(labels, None).reduce((logits, "hidden states"), None)
    assert (found.shape, found.dtype) == (shape, dtype)
    expected = {SINGLE_LABEL: logits.argmax(1), MULTI_LABEL: (logits.sigmoid() > 0.5).char(), REGRESSION: logits[:, 0]}
    assert torch.equal(found, expected[labels.problem_type])


def test_f1_is_that_of_the_label_which_is_1_on_the_hub_whatever_it_is_for_the_model():
    metrics = TaskMetrics(EQUIVALENCE, TASKS["mrpc"])
    found, right = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])  # in the model's order
    assert metrics.compare(("f1",), found, right) == score(("f1",), 1 - found, 1 - right) == {"f1": 0.8}
    assert [metrics.spell(number) for number in (0, 1)] == ["1", "0"]


def table_of(labels, texts=None):
    texts = texts or [sentence(["good", "bad"][number % 2], seed=number) for number in range(len(labels))]
    return Dataset.from_dict({"text": texts, "labels": labels})


@pytest.mark.parametrize(
    ("labels", "encoded", "metric", "least"),
    [
        (Labels(SINGLE_LABEL, ("a", "b")), [number % 2 for number in range(80)], "accuracy", 0.99),
        (
            Labels(MULTI_LABEL, ("a", "b", "c")),
            [[float(number % 2), float(number % 2 == 0), 1.0] for number in range(80)],
            "micro_f1",
            0.99,
        ),
        (Labels(REGRESSION, ("a",)), [2.0 + number % 2 for number in range(80)], "pearson", 0.9),
    ],
    ids=[SINGLE_LABEL, MULTI_LABEL, REGRESSION],
)
@pytest.mark.filterwarnings("ignore:Label 2 is present in all training examples")
def test_a_linear_model_on_words_is_better_than_a_constant_answer(labels, encoded, metric, least):
    table = table_of(encoded)
    metrics = TaskMetrics(labels, None)
    assert metrics.tfidf(table, table, ["text"])[f"tfidf_{metric}"] >= least
    assert metrics.constant(table, table).get(f"constant_{metric}", 0.0) < least


def test_texts_without_words_are_refused_as_a_baseline():
    table = table_of([0, 1, 0, 1], ["?", "!", "...", "a"])
    with pytest.raises(ValueError, match="--tfidf_baseline finds no word of two letters or more in the rows to train"):
        TaskMetrics(EQUIVALENCE, None).tfidf(table, table, ["text"])
