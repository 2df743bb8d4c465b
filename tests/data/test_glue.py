"""The GLUE tasks, their metrics against scikit-learn, SciPy and values computed by hand, and submission files."""

import csv
import math

import evaluate
import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from linformer_hf.data import glue
from linformer_hf.data.glue import TASKS, GlueMetric, get_task, score, write_answers


# From the Hub's data set and GLUE's own pages, independently of the table in glue.py.
PUBLISHED = {
    "cola": (("sentence",), ("unacceptable", "acceptable"), {"matthews_correlation"}, {"CoLA.tsv"}),
    "sst2": (("sentence",), ("negative", "positive"), {"accuracy"}, {"SST-2.tsv"}),
    "mrpc": (("sentence1", "sentence2"), ("not_equivalent", "equivalent"), {"accuracy", "f1"}, {"MRPC.tsv"}),
    "stsb": (("sentence1", "sentence2"), (), {"pearson", "spearmanr"}, {"STS-B.tsv"}),
    "qqp": (("question1", "question2"), ("not_duplicate", "duplicate"), {"accuracy", "f1"}, {"QQP.tsv"}),
    "mnli": (
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        {"accuracy"},
        {"MNLI-m.tsv", "MNLI-mm.tsv"},
    ),
    "qnli": (("question", "sentence"), ("entailment", "not_entailment"), {"accuracy"}, {"QNLI.tsv"}),
    "rte": (("sentence1", "sentence2"), ("entailment", "not_entailment"), {"accuracy"}, {"RTE.tsv"}),
    "wnli": (("sentence1", "sentence2"), ("not_entailment", "entailment"), {"accuracy"}, {"WNLI.tsv"}),
    "ax": (
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        {"matthews_correlation"},
        {"AX.tsv"},
    ),
}

each_task = pytest.mark.parametrize("name", TASKS)


def answers_and_references(name, rows=200):
    """Draw answers that are right more often than not, in the precision that a run has them in."""
    task, drawn = TASKS[name], np.random.default_rng(7)
    if not task.labels:
        references = drawn.uniform(0, 5, rows).astype(np.float32)
        return (references + drawn.normal(0, 1, rows)).astype(np.float32), references
    references = drawn.integers(0, task.num_labels, rows)
    return np.where(drawn.random(rows) < 0.6, references, drawn.integers(0, task.num_labels, rows)), references


def direct(metric, answers, references):
    """Compute a metric as the published script does."""
    return {
        "accuracy": lambda: accuracy_score(references, answers),
        "f1": lambda: f1_score(y_true=references, y_pred=answers),
        "matthews_correlation": lambda: matthews_corrcoef(references, answers),
        "pearson": lambda: pearsonr(answers, references)[0],
        "spearmanr": lambda: spearmanr(answers, references)[0],
    }[metric]()


def test_the_table_has_nine_tasks_and_the_diagnostic_set():
    assert set(TASKS) == set(PUBLISHED)


@each_task
def test_columns_labels_metrics_and_files_are_those_of_glue(name):
    task, (columns, labels, metrics, files) = TASKS[name], PUBLISHED[name]
    assert task.columns == columns
    assert task.labels == labels
    assert task.num_labels == {0: 1, 2: 2, 3: 3}[len(labels)]
    assert task.problem_type == ("single_label_classification" if labels else "regression")
    assert set(task.metrics) == metrics
    assert set(task.submissions.values()) == files


def test_only_mnli_has_two_validation_splits_and_only_the_diagnostic_set_has_none():
    assert TASKS["mnli"].validation == ("validation_matched", "validation_mismatched")
    assert [name for name, task in TASKS.items() if task.validation == ()] == ["ax"]
    assert [name for name, task in TASKS.items() if task.training == ()] == ["ax"]
    assert sum(task.validation == ("validation",) for task in TASKS.values()) == 8


def test_an_unknown_task_is_refused_with_the_list_of_tasks():
    with pytest.raises(ValueError, match="'imdb' is no GLUE task.*cola, sst2.*ax"):
        get_task("imdb")


@each_task
def test_metrics_equal_those_of_the_libraries_exactly(name):
    answers, references = answers_and_references(name)
    expected = {metric: direct(metric, answers, references) for metric in TASKS[name].metrics}
    assert score(TASKS[name].metrics, answers, references) == expected


@pytest.mark.parametrize("name", [*TASKS, "mnli_matched", "mnli_mismatched"])
def test_evaluate_loads_the_metrics_by_path_and_they_are_the_same(name):
    answers, references = answers_and_references(name.partition("_")[0])
    metric = evaluate.load(glue.__file__, name)
    expected = {each: direct(each, answers, references) for each in get_task(name.partition("_")[0]).metrics}
    assert metric.compute(predictions=answers, references=references) == expected


def test_evaluate_collects_the_metrics_batch_by_batch():
    answers, references = answers_and_references("mrpc")
    metric = GlueMetric(config_name="mrpc")
    for start in range(0, len(answers), 32):
        metric.add_batch(predictions=answers[start : start + 32], references=references[start : start + 32])
    assert metric.compute() == score(("accuracy", "f1"), answers, references)


def test_evaluate_refuses_an_unknown_task():
    with pytest.raises(ValueError, match="'hellaswag' is no GLUE task"):
        evaluate.load(glue.__file__, "hellaswag")


@pytest.mark.parametrize(
    ("metric", "answers", "references", "by_hand"),
    [
        ("accuracy", [0, 1, 1, 0], [0, 1, 0, 0], 3 / 4),
        # two found of three, and two right of three
        ("f1", [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], 2 / 3),
        # two true positives, one true negative, one false positive: (2 x 1 - 1 x 0) / sqrt(3 x 2 x 2 x 1)
        ("matthews_correlation", [1, 1, 1, 0], [1, 1, 0, 0], 2 / math.sqrt(12)),
        ("matthews_correlation", [1, 1, 1], [1, 0, 1], 0.0),
        ("f1", [0, 0, 0], [1, 0, 1], 0.0),
        # the deviations are -1, 0, 1 and -1, 1, 0: their products sum to 1, their squares to 2 and 2
        ("pearson", [1.0, 2.0, 3.0], [1.0, 3.0, 2.0], 1 / 2),
        # the ranks are those numbers
        ("spearmanr", [1.0, 2.0, 3.0], [1.0, 900.0, 2.0], 1 / 2),
        ("pearson", [2.0, 2.0, 2.0], [1.0, 3.0, 2.0], math.nan),
        ("mean_squared_error", [1.0, 2.0], [0.0, 4.0], 5 / 2),
        # label 0: F1 of 2/3, label 1: 0, label 2: 1
        ("macro_f1", [0, 0, 2], [0, 1, 2], (2 / 3 + 0 + 1) / 3),
        # of six decisions two are found of three, none wrongly
        ("micro_f1", [[1, 0], [0, 0], [0, 1]], [[1, 1], [0, 0], [0, 1]], 4 / 5),
        ("accuracy", [[1, 0], [0, 0], [0, 1]], [[1, 1], [0, 0], [0, 1]], 2 / 3),
    ],
)
def test_metrics_equal_values_computed_by_hand(metric, answers, references, by_hand):
    found = score([metric], np.array(answers), np.array(references))
    assert found == {metric: pytest.approx(by_hand, abs=1e-12, nan_ok=True)}


@pytest.mark.parametrize(
    ("name", "answers", "lines"),
    [
        ("cola", ["acceptable", "unacceptable"], "0\t1\n1\t0\n"),
        ("sst2", ["negative", "positive"], "0\t0\n1\t1\n"),
        ("mrpc", ["equivalent"], "0\t1\n"),
        ("qqp", ["not_duplicate"], "0\t0\n"),
        ("wnli", ["entailment", "not_entailment"], "0\t1\n1\t0\n"),
        ("mnli", ["neutral", "entailment", "contradiction"], "0\tneutral\n1\tentailment\n2\tcontradiction\n"),
        ("qnli", ["not_entailment"], "0\tnot_entailment\n"),
        ("rte", ["entailment"], "0\tentailment\n"),
        ("ax", ["contradiction"], "0\tcontradiction\n"),
        ("stsb", [2.0, -0.3, 5.7, 4.12345], "0\t2.000\n1\t0.000\n2\t5.000\n3\t4.123\n"),
    ],
)
def test_submission_files_are_byte_for_byte_as_glue_takes_them(tmp_path, name, answers, lines):
    file = tmp_path / "new" / "answers.tsv"
    write_answers(map(TASKS[name].answer, answers), file)
    assert file.read_bytes() == b"index\tprediction\n" + lines.encode()


def test_answers_with_tabs_breaks_and_quotes_are_one_field_of_one_row(tmp_path):
    answers = ["plain", "two\nlines", "a\ttab", 'a "quote"', "cr\rlf", "Größe", ""]
    write_answers(answers, tmp_path / "answers.tsv")
    with open(tmp_path / "answers.tsv", encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream, delimiter="\t"))
    assert rows == [["index", "prediction"], *([str(row), answer] for row, answer in enumerate(answers))]


def test_labels_of_a_model_with_its_own_order_find_their_numbers_on_the_hub():
    assert TASKS["mnli"].numbers(("contradiction", "entailment", "neutral")).tolist() == [2, 0, 1]
