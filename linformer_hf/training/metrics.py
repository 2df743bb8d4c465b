"""Metrics of labels and ratings: answers from logits, and baselines that need no encoder."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import EvalPrediction

from ..data.glue import METRICS_OF, Task, score
from ..data.labels import MULTI_LABEL, REGRESSION, Labels, best_constant, decode


try:
    from datasets import Dataset
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
except ImportError as error:
    raise ImportError("Metrics need datasets and scikit-learn: pip install linformer_hf[train]") from error


LOWER_IS_BETTER = ("mean_squared_error",)


class TaskMetrics:
    """What turns logits into answers, batch by batch, and answers into metrics.

    Args:
        labels: What the logits stand for.
        task: The GLUE task, whose F1 is that of the label that is 1 on the Hub, whatever it is for the model.
    """

    def __init__(self, labels: Labels, task: Task | None) -> None:
        self.labels = labels
        self.task = task
        self.metrics = task.metrics if task else METRICS_OF[labels.problem_type]
        self.names = [*self.metrics, "combined_score"] if task and len(self.metrics) > 1 else [*self.metrics]

    def reduce(self, logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor | None) -> torch.Tensor:
        """Keep of logits, `(B, L)`, only the answer, so that memory does not grow by L times the rows.

        Returns:
            The number of the best label, `(B,)`; 0 or 1 for each of several labels, `(B, L)`; or the number
            predicted, `(B,)`.
        """
        logits = logits[0] if isinstance(logits, tuple) else logits
        if self.labels.problem_type == REGRESSION:
            return logits.squeeze(-1)
        if self.labels.problem_type == MULTI_LABEL:
            return (logits > 0).to(torch.int8)
        return logits.argmax(-1)

    def __call__(self, outcome: EvalPrediction) -> dict[str, float]:
        """Compare answers with labels."""
        numbers = self.compare(self.metrics, outcome.predictions, outcome.label_ids)
        if self.task and len(numbers) > 1:
            numbers["combined_score"] = sum(numbers.values()) / len(numbers)
        return numbers

    def compare(self, metrics: Sequence[str], answers: np.ndarray, references: np.ndarray) -> dict[str, float]:
        """Return the metrics of answers, in the order of labels in which they were published."""
        if self.task and self.task.labels:
            numbers = self.task.numbers(self.labels.names)
            answers, references = numbers[answers], numbers[references]
        return score(metrics, answers, references)

    def constant(self, seen: Dataset, measured: Dataset) -> dict[str, float]:
        """Return, as `constant_…`, the metrics of the answer that fits the seen rows best without reading them.

        Correlations are left out, because a constant has none.
        """
        references = np.array(list(measured["labels"]))
        answers = np.broadcast_to(np.array(best_constant(list(seen["labels"]), self.labels)), references.shape)
        metrics = [name for name in self.metrics if name not in ("pearson", "spearmanr")]
        return {f"constant_{name}": value for name, value in self.compare(metrics, answers, references).items()}

    def tfidf(self, seen: Dataset, measured: Dataset, columns: Sequence[str]) -> dict[str, float]:
        """Return, as `tfidf_…`, the metrics of a linear model on TF-IDF of words and pairs of words.

        Args:
            seen: Rows to fit it on, with texts and `labels`.
            measured: Rows to measure it on.
            columns: The columns of the text, or of the two texts of a pair, which are joined.

        Raises:
            ValueError: If the texts to fit it on hold no words.
        """
        texts = [[" ".join(row[name] or "" for name in columns) for row in table] for table in (seen, measured)]
        if self.labels.problem_type == REGRESSION:
            predictor = Ridge()
        else:
            predictor = LogisticRegression(max_iter=1000)
        if self.labels.problem_type == MULTI_LABEL:
            predictor = OneVsRestClassifier(predictor)  # it predicts a label that never varies as a constant
        model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), predictor)
        references = np.array(list(measured["labels"]))
        try:
            model.fit(texts[0], np.array(list(seen["labels"])))
        except ValueError as error:
            if "empty vocabulary" not in str(error):
                raise
            raise ValueError(
                "--tfidf_baseline finds no word of two letters or more in the rows to train on; leave it out."
            ) from error
        answers = model.predict(texts[1]).reshape(references.shape)
        numbers = self.compare(self.metrics, answers, references)
        return {f"tfidf_{name}": value for name, value in numbers.items()}

    def spell(self, answer: np.ndarray) -> str:
        """Write one answer as GLUE takes it; elsewhere a name, names with commas between, or a number."""
        meant = decode(answer, self.labels)
        if self.task:
            return self.task.answer(meant)
        return ",".join(meant) if isinstance(meant, list) else str(meant)
