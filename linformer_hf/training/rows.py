"""Labelled rows as examples for fine-tuning: which splits a task needs, and texts cut into tokens."""

from collections.abc import Mapping, Sequence

from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase, TrainingArguments
from transformers.utils import logging

from ..data.glue import Task
from ..data.labels import Labels, check_variety, report_shares
from ..data.tables import Layout, report_empty_texts


try:
    from datasets import Dataset
except ImportError as error:
    raise ImportError("Fine-tuning needs datasets: pip install linformer_hf[train]") from error


logger = logging.get_logger(__name__)


def layout_of(
    task: Task | None, text_column: str | None, text_pair_column: str | None, label_column: Sequence[str] | None
) -> Layout:
    """Describe the rows of a GLUE task, or those that the arguments describe.

    Args:
        task: None where the columns say what to read.
        text_column: None means the task's, or `text`.
        text_pair_column: None means the task's, or none.
        label_column: None means `label`.
    """
    labels = tuple(label_column or ["label"])
    pair = (text_pair_column,) if text_pair_column else ()
    if task is None:
        splits = {purpose: (purpose,) for purpose in ("train", "validation", "test")}
        return Layout((text_column or "text", *pair), labels, splits)
    texts = (text_column or task.columns[0], *(pair or task.columns[1:]))
    splits = {"train": task.training, "validation": task.validation, "test": tuple(task.submissions)}
    return Layout(texts, labels, splits, task.own_columns, task.own_header, quoted=False, test_labels=False)


def asked_purposes(training: TrainingArguments, layout: Layout) -> list[str]:
    """List what rows are needed for.

    Raises:
        ValueError: If the task has no rows for something that is asked for.
    """
    asked = {"train": training.do_train, "validation": training.do_eval, "test": training.do_predict}
    purposes = [purpose for purpose, is_asked in asked.items() if is_asked]
    if any(not layout.splits[purpose] for purpose in purposes):
        raise ValueError("ax has no labelled rows: fine-tune on mnli, then give that model and --do_predict alone.")
    return purposes


def report_rows(tables: Mapping[str, Dataset], labels: Labels, layout: Layout) -> None:
    """Log what the rows hold: how many of each label, and how many without a text.

    Raises:
        ValueError: If all rows to train on have one label.
    """
    for split, table in tables.items():
        report_empty_texts(table, layout.texts, split)
        if "labels" in table.column_names:
            report_shares(list(table["labels"]), labels, split)
    if "train" in tables:
        check_variety(list(tables["train"]["labels"]), "train")


def cut_texts(
    table: Dataset, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, num_tokens: int, split: str
) -> Dataset:
    """Turn texts, or pairs of them, into `input_ids` of at most `num_tokens` tokens.

    Args:
        table: With the columns `texts`.
        texts: The column of the text, and of the second one of a pair.
        tokenizer: The tokenizer.
        num_tokens: The longest example.
        split: What the table is called in reports.
    """

    def cut(batch: dict) -> dict:
        encoded = tokenizer(
            *([text or "" for text in batch[name]] for name in texts), truncation=True, max_length=num_tokens
        )
        return {**encoded, "length": [len(ids) for ids in encoded["input_ids"]]}

    examples = table.map(cut, batched=True, remove_columns=list(texts), desc=f"Cutting the texts for {split}")
    full = sum(length == num_tokens for length in examples["length"])
    if full:
        logger.info(f"{full} of {len(table)} rows for {split} fill all {num_tokens} tokens; the longer ones are cut.")
    return examples


def make_collator(tokenizer: PreTrainedTokenizerBase, num_tokens: int, longest: int) -> DataCollatorWithPadding:
    """Pad each batch to its longest row, rounded up to a multiple of 8 where the model reads so far.

    Args:
        tokenizer: The tokenizer.
        num_tokens: The longest example.
        longest: The longest input of the model.
    """
    fits = num_tokens + -num_tokens % 8 <= longest
    return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if fits else None)
