"""The GLUE benchmark as a table: columns, labels, metrics and files of its nine tasks and of its diagnostic set.

The metrics also implement the API of `evaluate`, which loads this file without a download:
`evaluate.load(linformer_hf.data.glue.__file__, "mrpc")`. For that the file imports no other file of the package.
"""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np


try:
    import datasets
    import evaluate
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, mean_squared_error
except ImportError as error:
    raise ImportError("GLUE's metrics need the training extra: pip install linformer_hf[train]") from error


HUB_NAME = "nyu-mll/glue"
MISMATCHED = {"mnli_matched": "mnli", "mnli_mismatched": "mnli"}  # how published metrics name MNLI's two sets


@dataclass(frozen=True)
class Task:
    """One task, with the names of columns and labels that the Hub's `nyu-mll/glue` uses.

    Args:
        columns: The column of the text, and of the second text of a pair.
        labels: The names of the Hub's numbers 0, 1, …. Empty where a score is predicted.
        metrics: What is reported, by the names in `METRICS`.
        submissions: The file that GLUE's server takes for each test split.
        training: Splits to train on.
        validation: Splits to validate on.
        submits_names: Whether the server takes labels by name, not by number.
        limits: The least and the greatest score.
        own_columns: What GLUE's own files call a column, where the Hub calls it something else.
        own_header: Columns of GLUE's own files, where these have no header.
    """

    columns: tuple[str, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    submissions: Mapping[str, str]
    training: tuple[str, ...] = ("train",)
    validation: tuple[str, ...] = ("validation",)
    submits_names: bool = False
    limits: tuple[float, float] = (-math.inf, math.inf)
    own_columns: Mapping[str, str] = field(default_factory=dict)
    own_header: tuple[str, ...] = ()

    @property
    def num_labels(self) -> int:
        """Number of outputs of a model: one for each label, or one score."""
        return len(self.labels) or 1

    @property
    def problem_type(self) -> str:
        """The `problem_type` of a model's configuration."""
        return "single_label_classification" if self.labels else "regression"

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return the Hub's number of each label of a model, which may have its own order."""
        return np.array([self.labels.index(name) for name in names])

    def answer(self, prediction: str | float) -> str:
        """Write a label, given by its name, or a score as GLUE's server reads it."""
        if not self.labels:
            return f"{np.clip(prediction, *self.limits):.3f}"
        return prediction if self.submits_names else str(self.labels.index(prediction))


PAIR = ("sentence1", "sentence2")
PREMISE = ("premise", "hypothesis")
OWN_PREMISE = {"sentence1": "premise", "sentence2": "hypothesis"}
ENTAILMENT = ("entailment", "neutral", "contradiction")

TASKS = {
    "cola": Task(
        columns=("sentence",),
        labels=("unacceptable", "acceptable"),
        metrics=("matthews_correlation",),
        submissions={"test": "CoLA.tsv"},
        own_header=("source", "label", "mark", "sentence"),
    ),
    "sst2": Task(
        columns=("sentence",),
        labels=("negative", "positive"),
        metrics=("accuracy",),
        submissions={"test": "SST-2.tsv"},
    ),
    "mrpc": Task(
        columns=PAIR,
        labels=("not_equivalent", "equivalent"),
        metrics=("accuracy", "f1"),
        submissions={"test": "MRPC.tsv"},
        own_columns={"Quality": "label", "#1 String": "sentence1", "#2 String": "sentence2"},
    ),
    "stsb": Task(
        columns=PAIR,
        labels=(),
        metrics=("pearson", "spearmanr"),
        submissions={"test": "STS-B.tsv"},
        limits=(0.0, 5.0),
        own_columns={"score": "label"},
    ),
    "qqp": Task(
        columns=("question1", "question2"),
        labels=("not_duplicate", "duplicate"),
        metrics=("accuracy", "f1"),
        submissions={"test": "QQP.tsv"},
        own_columns={"is_duplicate": "label"},
    ),
    "mnli": Task(
        columns=PREMISE,
        labels=ENTAILMENT,
        metrics=("accuracy",),
        submissions={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
        validation=("validation_matched", "validation_mismatched"),
        submits_names=True,
        own_columns={**OWN_PREMISE, "gold_label": "label"},
    ),
    "qnli": Task(
        columns=("question", "sentence"),
        labels=("entailment", "not_entailment"),
        metrics=("accuracy",),
        submissions={"test": "QNLI.tsv"},
        submits_names=True,
    ),
    "rte": Task(
        columns=PAIR,
        labels=("entailment", "not_entailment"),
        metrics=("accuracy",),
        submissions={"test": "RTE.tsv"},
        submits_names=True,
    ),
    "wnli": Task(
        columns=PAIR,
        labels=("not_entailment", "entailment"),
        metrics=("accuracy",),
        submissions={"test": "WNLI.tsv"},
    ),
    # the diagnostic set: answered by a model of MNLI, and scored by GLUE's server alone
    "ax": Task(
        columns=PREMISE,
        labels=ENTAILMENT,
        metrics=("matthews_correlation",),
        submissions={"test": "AX.tsv"},
        training=(),
        validation=(),
        submits_names=True,
        own_columns=OWN_PREMISE,
    ),
}


def get_task(name: str) -> Task:
    """Return the task of a name.

    Raises:
        ValueError: If there is no task of that name.
    """
    if name not in TASKS:
        raise ValueError(f"{name!r} is no GLUE task; choose one of {', '.join(TASKS)}.")
    return TASKS[name]


Numbers = Sequence[float] | np.ndarray


def correlation(measure: Callable) -> Callable[[Numbers, Numbers], float]:
    """Make a metric of one of SciPy's correlations; there is none (nan) where one side is the same for all rows."""

    def correlate(references: Numbers, predictions: Numbers) -> float:
        if np.ptp(references) == 0 or np.ptp(predictions) == 0:
            return math.nan
        return measure(predictions, references).statistic

    return correlate


# From references and predictions, in this order, to a number. F1 is that of label 1. Macro averages over labels, micro
# over decisions; of several labels a row, accuracy counts the rows that have all of them right.
METRICS: dict[str, Callable[[Numbers, Numbers], float]] = {
    "accuracy": accuracy_score,
    "f1": partial(f1_score, zero_division=0.0),
    "macro_f1": partial(f1_score, average="macro", zero_division=0.0),
    "micro_f1": partial(f1_score, average="micro", zero_division=0.0),
    "matthews_correlation": matthews_corrcoef,
    "mean_squared_error": mean_squared_error,
    "pearson": correlation(pearsonr),
    "spearmanr": correlation(spearmanr),
}

# What is measured where no task says it.
METRICS_OF = {
    "single_label_classification": ("accuracy", "macro_f1", "matthews_correlation"),
    "multi_label_classification": ("accuracy", "micro_f1", "macro_f1"),
    "regression": ("mean_squared_error", "pearson", "spearmanr"),
}


def score(metrics: Iterable[str], predictions: Numbers, references: Numbers) -> dict[str, float]:
    """Compute metrics of predictions.

    Args:
        metrics: Names in `METRICS`.
        predictions: Label numbers in the order of `Task.labels`, or scores, `(rows,)`; 0 and 1 for each of several
            labels, `(rows, L)`.
        references: Likewise.

    Returns:
        One number for each metric: correlations between -1 and 1, squared errors from 0, all others between 0 and 1.
    """
    return {name: float(METRICS[name](references, predictions)) for name in metrics}


def write_answers(answers: Iterable[str], file: Path) -> None:
    """Write answers in GLUE's submission format: a row each, numbered from 0, with a tab between number and answer.

    An answer that holds a tab, a line break or a quote stands in quotes, as a csv reader expects it. GLUE's own labels
    hold none.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w", encoding="utf-8", newline="") as stream:
        plain, quoted = (
            csv.writer(stream, delimiter="\t", lineterminator="\n", quoting=quoting)
            for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC)
        )
        plain.writerow(["index", "prediction"])
        for row, answer in enumerate(answers):
            (quoted if "\r" in answer else plain).writerow([row, answer])  # Python 3.11 quotes "\n" but not "\r"


class GlueMetric(evaluate.Metric):
    """The metrics of one task with the API of `evaluate`, equal to those of its `glue` script, which is a download.

    Args:
        config_name: The task; MNLI also as `mnli_matched` and `mnli_mismatched`.

    Raises:
        ValueError: If there is no such task.
    """

    def _info(self) -> evaluate.MetricInfo:
        task = get_task(MISMATCHED.get(self.config_name, self.config_name))
        # single precision, as published: the last digits of a correlation depend on it
        value = datasets.Value("int64" if task.labels else "float32")
        return evaluate.MetricInfo(
            description=f"GLUE's metrics of {self.config_name}: {', '.join(task.metrics)}.",
            citation="Wang et al., GLUE: a multi-task benchmark and analysis platform for natural language "
            "understanding, ICLR 2019.",
            inputs_description="predictions and references: label numbers in the Hub's order, or scores.",
            features=datasets.Features({"predictions": value, "references": value}),
            format="numpy",
        )

    def _compute(self, predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
        task = get_task(MISMATCHED.get(self.config_name, self.config_name))
        return score(task.metrics, predictions, references)
