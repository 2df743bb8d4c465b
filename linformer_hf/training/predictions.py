"""What a fine-tuned model answers: metrics on labelled rows, and files of answers to others."""

from collections.abc import Mapping
from pathlib import Path

from transformers import Trainer
from transformers.utils import logging

from ..data.glue import write_answers
from .metrics import TaskMetrics


try:
    from datasets import Dataset
except ImportError as error:
    raise ImportError("Fine-tuning needs datasets: pip install linformer_hf[train]") from error


logger = logging.get_logger(__name__)

PREDICTIONS = "predictions.tsv"


def measure(trainer: Trainer, tables: Mapping[str, Dataset], metrics: TaskMetrics) -> dict[str, float]:
    """Measure on each table, and name the metrics as they are; those of a second table after its split as well."""
    numbers = {}
    for position, (split, table) in enumerate(tables.items()):
        name = f"{split.removeprefix('validation_')}_" if position else ""
        found = trainer.evaluate(table, metric_key_prefix=f"eval_{name}".rstrip("_"))
        renamed = {f"eval_{name}{metric}": f"{name}{metric}" for metric in metrics.names}
        numbers |= {renamed.get(key, key): value for key, value in found.items()}
    return numbers


def predict(trainer: Trainer, table: Dataset, metrics: TaskMetrics, split: str) -> dict[str, float]:
    """Write the answers to rows, and return the Trainer's numbers: metrics too, where the rows have labels."""
    outcome = trainer.predict(table, metric_key_prefix="predict")
    if trainer.is_world_process_zero():
        file = Path(trainer.args.output_dir, metrics.task.submissions[split] if metrics.task else PREDICTIONS)
        write_answers(map(metrics.spell, outcome.predictions), file)
        logger.info(f"The answers to {len(table)} rows are in {file}.")
    return outcome.metrics


def report(numbers: Mapping[str, float], metrics: TaskMetrics) -> list[str]:
    """Say in a line each what was measured, beside what needs no encoder to reach."""
    others = {"by the same answer to all": "constant", "by a linear model on words": "tfidf"}
    lines = []
    for name in (name for name in metrics.names if name in numbers):
        found = {how: numbers.get(f"{other}_{name}") for how, other in others.items()}
        beside = "".join(f", {value:.4f} {how}" for how, value in found.items() if value is not None)
        lines.append(f"{name}: {numbers[name]:.4f}{beside}")
    return lines
