"""Teach an encoder to label or rate texts: arguments, and one function that runs from labelled rows to predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

from ..common.figures import plot_curves
from ..common.loading import LoadingArguments, check_length, check_tokenizer, declare_loss_scaling, model_length
from ..common.records import Stopwatch, model_facts, write_results
from ..data.glue import HUB_NAME, Task, get_task, write_answers
from ..data.labels import Labels, check_variety, encode_tables, labels_of, report_shares
from ..data.tables import Layout, TableArguments, load_tables, report_empty_texts, share_rows
from ..data.texts import expand_files
from ..sharing.hub import write_card
from .metrics import Grader
from .resuming import find_checkpoint, loss_curves


try:
    from datasets import Dataset
except ImportError as error:
    raise ImportError("Fine-tuning needs datasets: pip install linformer_hf[train]") from error


logger = logging.get_logger(__name__)

Tables = dict[str, Dataset]

PREDICTIONS = "predictions.tsv"


@dataclass(kw_only=True)
class FinetuningArguments(TableArguments, LoadingArguments):
    """Which model learns which task."""

    model_name_or_path: str = field(
        metadata={"help": "The encoder to fine-tune, on the Hub or in a folder: a Linformer, BERT, RoBERTa, …"}
    )
    tokenizer_name: str | None = field(default=None, metadata={"help": "Its tokenizer, where it has none of its own."})
    task_name: str | None = field(
        default=None,
        metadata={
            "help": "A GLUE task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, or its diagnostic set ax; from "
            "the Hub, or from files as the Hub or as GLUE itself has them. Without it the columns say what to read."
        },
    )
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Cut longer texts to so many tokens. By default to all that the model reads."}
    )
    classifier_pooling: str | None = field(
        default=None,
        metadata={"help": "What of a Linformer stands for a text: `cls`, its first token, or `mean`, all of them."},
    )
    tfidf_baseline: bool = field(
        default=False,
        metadata={"help": "Also report what a linear model on TF-IDF of words reaches; needs --do_train, --do_eval."},
    )


def finetune(arguments: FinetuningArguments, training: TrainingArguments) -> dict[str, float]:
    """Fine-tune an encoder on labelled texts, measure it, and predict the labels of others.

    Args:
        arguments: Rows, model and task.
        training: The Trainer's own arguments; `do_train`, `do_eval` and `do_predict` say what to do.

    Returns:
        What was measured: the task's metrics by their names (of MNLI's mismatched rows as `mismatched_…`), as
        `constant_…` those of the best answer that does not read the text, and the Trainer's own numbers.

    Raises:
        ValueError: If arguments contradict each other, or rows, labels, tokenizer and model do not fit.
    """
    # 1. what is asked for
    task = get_task(arguments.task_name) if arguments.task_name else None
    layout = layout_of(arguments, task)
    purposes = asked_purposes(training, layout)
    checkpoint = find_checkpoint(training)
    watch = Stopwatch()
    set_seed(training.seed)
    with training.main_process_first(desc="preparing the rows"):
        # 2. rows, and what their labels stand for
        config = AutoConfig.from_pretrained(arguments.model_name_or_path, **arguments.loading())
        tables = load_rows(arguments, layout, purposes)
        known = (task.problem_type, task.labels, task.limits) if task else (arguments.problem_type,)
        labels, tables = encode_tables(tables, layout.labels, labels_of(config), *known)
        tables = share_rows(tables, arguments, layout, purposes, training.seed)
        report_rows(tables, labels, layout)
        # 3. the model, and rows as it reads them
        model = load_model(arguments, config, labels, training.do_train, checkpoint)
        tokenizer = load_tokenizer(arguments, model)
        num_tokens = check_length(arguments.max_seq_length, model)
        examples = {split: cut_texts(table, layout, tokenizer, num_tokens, split) for split, table in tables.items()}

    # 4. train, measure, predict
    grader = Grader(labels, task)
    measured = [split for split in layout.splits["validation"] if split in examples]
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=examples.get("train"),
        eval_dataset=examples[measured[0]] if measured else None,
        processing_class=tokenizer,
        data_collator=make_collator(tokenizer, num_tokens, model_length(model)),
        compute_metrics=grader,
        preprocess_logits_for_metrics=grader.reduce,
    )
    metrics = train_and_save(trainer, checkpoint) if training.do_train else {}
    if measured:
        metrics |= grader.constant(examples.get("train", examples[measured[0]]), examples[measured[0]])
        if arguments.tfidf_baseline and "train" in tables:
            metrics |= grader.tfidf(tables["train"], tables[measured[0]], layout.texts)
        metrics |= measure(trainer, {split: examples[split] for split in measured}, grader)
    for split in (split for split in layout.splits["test"] if split in examples):
        metrics |= predict(trainer, examples[split], grader, split)

    # 5. what is left behind
    if trainer.is_world_process_zero():
        finish(trainer, arguments, metrics, watch)
    return metrics


def layout_of(arguments: FinetuningArguments, task: Task | None) -> Layout:
    """Describe the rows of a GLUE task, or those that the arguments describe."""
    text, pair = arguments.text_column, arguments.text_pair_column
    labels = tuple(arguments.label_column or ["label"])
    if task is None:
        splits = {purpose: (purpose,) for purpose in ("train", "validation", "test")}
        return Layout((text or "text", *([pair] if pair else [])), labels, splits)
    named = (text or task.columns[0], *([pair] if pair else task.columns[1:]))
    splits = {"train": task.training, "validation": task.validation, "test": tuple(task.submissions)}
    return Layout(named, labels, splits, task.own_columns, task.own_header, quoted=False, test_labels=False)


def asked_purposes(training: TrainingArguments, layout: Layout) -> list[str]:
    """List what rows are needed for.

    Raises:
        ValueError: If nothing is asked for, or something that the task has no rows for.
    """
    asked = {"train": training.do_train, "validation": training.do_eval, "test": training.do_predict}
    purposes = [purpose for purpose, is_asked in asked.items() if is_asked]
    if not purposes:
        raise ValueError("Nothing is asked for: give --do_train, --do_eval, --do_predict or several of them.")
    if any(not layout.splits[purpose] for purpose in purposes):
        raise ValueError("ax has no labelled rows: fine-tune on mnli, then give that model and --do_predict alone.")
    return purposes


def load_rows(arguments: FinetuningArguments, layout: Layout, purposes: Sequence[str]) -> Tables:
    """Load the rows from files or, where none is named, from the Hub.

    Raises:
        ValueError: If neither is named, both are, or rows or columns are missing.
    """
    named = {"train": arguments.train_file, "validation": arguments.validation_file, "test": arguments.test_file}
    files = {purpose: expand_files(names) for purpose, names in named.items() if names}
    if files and arguments.dataset_name:
        raise ValueError("Rows come from files or from --dataset_name, not from both.")
    if not files and arguments.task_name:
        arguments = replace(
            arguments,
            dataset_name=arguments.dataset_name or HUB_NAME,
            dataset_config_name=arguments.dataset_config_name or arguments.task_name,
        )
    elif not files and not arguments.dataset_name:
        raise ValueError("No rows are named: give --task_name, --dataset_name or --train_file.")
    return load_tables(arguments, layout, files, purposes)


def report_rows(tables: Tables, labels: Labels, layout: Layout) -> None:
    """Log what the rows hold: how many of each label, and how many without a text.

    Raises:
        ValueError: If all rows to train on have one label.
    """
    for split, table in tables.items():
        report_empty_texts(table, layout, split)
        if "labels" in table.column_names:
            report_shares(list(table["labels"]), labels, split)
    if "train" in tables:
        check_variety(list(tables["train"]["labels"]), "train")


def load_model(
    arguments: FinetuningArguments,
    config: PreTrainedConfig,
    labels: Labels,
    for_training: bool,
    checkpoint: str | None,
) -> PreTrainedModel:
    """Load the encoder with a head for the labels; a head for other labels is replaced, if there is training.

    Raises:
        ValueError: If the checkpoint to resume from belongs to another run, or the model cannot pool as asked for.
    """
    if checkpoint and labels_of(AutoConfig.from_pretrained(checkpoint)) != labels:
        raise ValueError(f"{checkpoint} is of a run with other labels; name a new --output_dir.")
    if arguments.classifier_pooling:
        if not hasattr(config, "classifier_pooling"):
            raise ValueError(f"--classifier_pooling is a Linformer's choice; a {config.model_type} has its own.")
        config.classifier_pooling = arguments.classifier_pooling
    config.problem_type = labels.problem_type
    config.id2label = dict(enumerate(labels.names))
    config.label2id = {name: number for number, name in config.id2label.items()}
    model = AutoModelForSequenceClassification.from_pretrained(
        arguments.model_name_or_path,
        config=config,
        ignore_mismatched_sizes=for_training,
        **arguments.loading(),
        **({"dtype": torch.float32} if for_training else {}),  # mixed precision keeps its weights in this one
    )
    declare_loss_scaling(model)
    return model


def load_tokenizer(arguments: FinetuningArguments, model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """Load the tokenizer that is named, or the model's.

    Raises:
        ValueError: If it does not fit the model, or cannot pad.
    """
    name = arguments.tokenizer_name or arguments.model_name_or_path
    tokenizer = AutoTokenizer.from_pretrained(name, **arguments.loading())
    if tokenizer.pad_token is None:
        raise ValueError(f"The tokenizer of {name} has no padding token, so it cannot make batches.")
    check_tokenizer(tokenizer, model, arguments.model_name_or_path)
    tokenizer.model_max_length = model_length(model)
    return tokenizer


def cut_texts(
    table: Dataset, layout: Layout, tokenizer: PreTrainedTokenizerBase, num_tokens: int, split: str
) -> Dataset:
    """Turn texts, or pairs of them, into `input_ids` of at most `num_tokens` tokens."""

    def cut(batch: dict) -> dict:
        texts = [[text or "" for text in batch[name]] for name in layout.texts]
        encoded = tokenizer(*texts, truncation=True, max_length=num_tokens)
        return {**encoded, "length": [len(ids) for ids in encoded["input_ids"]]}

    examples = table.map(cut, batched=True, remove_columns=list(layout.texts), desc=f"Cutting the texts for {split}")
    full = sum(length == num_tokens for length in examples["length"])
    if full:
        logger.info(f"{full} of {len(table)} rows for {split} fill all {num_tokens} tokens; the longer ones are cut.")
    return examples


def make_collator(tokenizer: PreTrainedTokenizerBase, num_tokens: int, longest: int) -> DataCollatorWithPadding:
    """Pad each batch to its longest row, and on to a multiple of eight where the model reads so far."""
    fits = num_tokens + -num_tokens % 8 <= longest
    return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if fits else None)


def train_and_save(trainer: Trainer, checkpoint: str | None) -> dict[str, float]:
    """Train, then save model, tokenizer and state, and return the Trainer's numbers."""
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.save_state()
    if trainer.is_world_process_zero() and (curves := loss_curves(trainer.state)):
        plot_curves(curves, Path(trainer.args.output_dir, "curves"), "Step", "Loss")
    return result.metrics


def measure(trainer: Trainer, tables: Mapping[str, Dataset], grader: Grader) -> dict[str, float]:
    """Measure on each table, and name the metrics as they are; those of a second table after its split as well."""
    metrics = {}
    for number, (split, table) in enumerate(tables.items()):
        name = f"{split.removeprefix('validation_')}_" if number else ""
        found = trainer.evaluate(table, metric_key_prefix=f"eval_{name}".rstrip("_"))
        renamed = {f"eval_{name}{metric}": f"{name}{metric}" for metric in grader.names}
        metrics |= {renamed.get(key, key): value for key, value in found.items()}
    return metrics


def predict(trainer: Trainer, table: Dataset, grader: Grader, split: str) -> dict[str, float]:
    """Write the answers to rows, and return the Trainer's numbers: metrics too, where the rows have labels."""
    outcome = trainer.predict(table, metric_key_prefix="predict")
    if trainer.is_world_process_zero():
        file = Path(trainer.args.output_dir, grader.task.submissions[split] if grader.task else PREDICTIONS)
        write_answers(map(grader.spell, outcome.predictions), file)
        logger.info(f"The answers to {len(table)} rows lie in {file}.")
    return outcome.metrics


def finish(trainer: Trainer, arguments: FinetuningArguments, metrics: Mapping[str, float], watch: Stopwatch) -> None:
    """Write record and card, and say what was learned, where all lies and what comes next."""
    training, folder = trainer.args, trainer.args.output_dir
    facts = about(arguments, trainer.model, trainer.compute_metrics.names)
    write_results(folder, {**metrics, **watch.read()}, (arguments, training), facts)
    if training.do_train:
        write_card(folder)
    for name in (name for name in trainer.compute_metrics.names if name in metrics):
        others = {"by the same answer to all": "constant", "by a linear model on words": "tfidf"}
        found = {how: metrics.get(f"{other}_{name}") for how, other in others.items()}
        beside = "".join(f", {value:.4f} {how}" for how, value in found.items() if value is not None)
        logger.info(f"{name}: {metrics[name]:.4f}{beside}")
    logger.info(f"All of it lies in {folder}; the numbers are in results.json there.")
    if training.do_train:
        task = f"--task_name {arguments.task_name} " if arguments.task_name else ""
        logger.info(
            f"To label other rows: python scripts/run_glue.py --do_predict --model_name_or_path {folder} {task}"
            f"--test_file ROWS --output_dir {folder}-answers"
        )


def about(arguments: FinetuningArguments, model: PreTrainedModel, metrics: Sequence[str]) -> dict[str, Any]:
    """Say what the card tells of the run."""
    hub_name = arguments.dataset_name or (HUB_NAME if arguments.task_name and not arguments.train_file else None)
    files = ", ".join(Path(file).name for file in arguments.train_file or [])
    is_local = Path(arguments.model_name_or_path).is_dir()
    return {
        "pipeline_tag": "text-classification",
        "dataset": f"GLUE, {arguments.task_name}" if arguments.task_name else arguments.dataset_name or files,
        "dataset_type": hub_name or "table",
        "dataset_ids": [hub_name] if hub_name else None,
        "base_model": None if is_local else arguments.model_name_or_path,
        "metrics": list(metrics),
        "model": model_facts(model),
    }
