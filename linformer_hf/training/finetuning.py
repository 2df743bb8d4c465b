"""Teach an encoder to label or rate texts: arguments, and one function that runs from labelled rows to predictions."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)
from transformers.utils import logging

from ..common.loading import LoadingArguments, check_length, declare_loss_scaling, load_config, model_length
from ..common.options import refuse_unused
from ..data.glue import HUB_NAME, get_task
from ..data.labels import SINGLE_LABEL, Labels, encode_tables, labels_of
from ..data.tables import TableArguments, load_tables, share_rows
from ..data.tokenizers import load_tokenizer
from ..sharing.card import origin_facts
from .leading_zeros import keep_leading_zeros
from .metrics import LOWER_IS_BETTER, TaskMetrics
from .optimizers import choose_optimizer, uses_fsdp
from .options import check_best_metric, early_stopping
from .predictions import measure, predict, report
from .rows import asked_purposes, cut_texts, layout_of, make_collator, report_rows
from .run import (
    RunArguments,
    about_data,
    finish_run,
    fit_tokenizer,
    start_run,
    train_model,
)


logger = logging.get_logger(__name__)


@dataclass(kw_only=True)
class FinetuningArguments(TableArguments, LoadingArguments, RunArguments):
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
        default=None,
        metadata={"help": "Cut longer texts to this many tokens. By default the length that the model reads."},
    )
    classifier_pooling: str | None = field(
        default=None,
        metadata={
            "help": "What of a Linformer stands for a text: `cls`, its first token, or `mean`, all of them. By "
            "default as its configuration says: `mean` in a converted sentence encoder that embeds so, else `cls`."
        },
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
        `constant_…` those of the best answer that does not read the text, as `tfidf_…` those of a linear model on
        words, and the Trainer's own numbers.

    Raises:
        ValueError: If arguments contradict each other, or rows, labels, tokenizer and model do not fit.
    """
    # an evaluation holds rows out of those to train on where no others are named
    names_rows = bool(arguments.train_file or arguments.dataset_name)
    may_hold_out = training.do_eval and names_rows and not arguments.validation_file
    switches = ("do_train", "do_eval", "do_predict")
    run = start_run(arguments, training, switches, {"rows held out of training": may_hold_out})
    check_arguments(arguments, training)
    callbacks = early_stopping(arguments.early_stopping_patience, training)
    optimizer = choose_optimizer(arguments.use_muon, arguments.muon_learning_rate, training)
    task = get_task(arguments.task_name) if arguments.task_name else None
    layout = layout_of(task, arguments.text_column, arguments.text_pair_column, arguments.label_column)
    purposes = asked_purposes(training, layout)
    model_name = run.trained_folder or arguments.model_name_or_path

    with training.main_process_first(desc="preparing the rows"):
        config = load_config(model_name, **arguments.loading())
        tables = load_tables(arguments, layout, purposes, (HUB_NAME, arguments.task_name) if task else None)
        known = (task.problem_type, task.labels, task.limits) if task else (arguments.problem_type,)
        labels, tables = encode_tables(tables, layout.labels, labels_of(config), *known)
        most = {
            "train": arguments.max_train_samples,
            "validation": arguments.max_eval_samples,
            "test": arguments.max_predict_samples,
        }
        tables = share_rows(tables, layout, purposes, training.seed, arguments.validation_share, most)
        report_rows(tables, labels, layout)
        metrics = TaskMetrics(labels, task)
        check_best_metric(training, metrics.names, LOWER_IS_BETTER)
        check_smoothing(training.label_smoothing_factor, labels)
        check_same_labels(run.checkpoint or run.trained_folder, labels)
        measured = [split for split in layout.splits["validation"] if split in tables]
        numbers = {}
        if measured:
            # before the training, so that texts without words do not end it when it is done
            first = tables[measured[0]]
            numbers |= metrics.constant(tables.get("train", first), first)
            if arguments.tfidf_baseline:
                numbers |= metrics.tfidf(tables["train"], first, layout.texts)

        config = with_labels(config, labels, arguments.classifier_pooling)
        model = load_model(model_name, config, arguments.loading(), for_training=training.do_train)
        tokenizer = load_tokenizer(arguments.tokenizer_name or model_name, arguments.loading(), needs=("pad",))
        fit_tokenizer(tokenizer, model, model_name)
        num_tokens = check_length(arguments.max_seq_length, model)
        examples = {
            split: cut_texts(table, layout.texts, tokenizer, num_tokens, split) for split, table in tables.items()
        }

    if training.do_train and arguments.keep_leading_zeros:
        keep_leading_zeros(model, is_sharded=uses_fsdp(training))
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=examples.get("train"),
        eval_dataset=examples[measured[0]] if measured else None,
        processing_class=tokenizer,
        data_collator=make_collator(tokenizer, num_tokens, model_length(model)),
        compute_metrics=metrics,
        preprocess_logits_for_metrics=metrics.reduce,
        callbacks=callbacks,
        optimizer_cls_and_kwargs=optimizer,
    )
    if training.do_train:
        numbers |= train_model(trainer, run)
    numbers |= measure(trainer, {split: examples[split] for split in measured}, metrics)
    for split in (split for split in layout.splits["test"] if split in examples):
        numbers |= predict(trainer, examples[split], metrics, split)

    for line in report(numbers, metrics):
        logger.info(line)
    hub_name = arguments.dataset_name or (HUB_NAME if arguments.task_name and not arguments.train_file else None)
    about = {
        **about_data(hub_name, arguments.train_file, "table", held_out_files=arguments.validation_file),
        **({"dataset": f"GLUE, {arguments.task_name}"} if arguments.task_name else {}),
        "pipeline_tag": "text-classification",
        **origin_facts(arguments.model_name_or_path, arguments.model_revision, arguments.token),
        "metrics": metrics.names,
    }
    finish_run(
        trainer, run, numbers, arguments, about, model, how_to_predict(training.output_dir, arguments.task_name)
    )
    return numbers


def check_arguments(arguments: FinetuningArguments, training: TrainingArguments) -> None:
    """Check options against each other before anything is loaded.

    Raises:
        ValueError: If one would have no effect.
    """
    if not training.do_train:
        of_training = {"tfidf_baseline": arguments.tfidf_baseline, "use_muon": arguments.use_muon}
        refuse_unused(of_training, "without --do_train")
    if not training.do_eval:
        refuse_unused({"tfidf_baseline": arguments.tfidf_baseline}, "without --do_eval")
    if arguments.task_name:
        refuse_unused({"problem_type": arguments.problem_type}, "with --task_name, which says it")


def check_smoothing(label_smoothing_factor: float, labels: Labels) -> None:
    """Check that labels can be smoothed.

    Raises:
        ValueError: If they are numbers, or several a row.
    """
    if label_smoothing_factor and labels.problem_type != SINGLE_LABEL:
        raise ValueError(
            f"--label_smoothing_factor is {label_smoothing_factor}, but the rows ask for {labels.problem_type}; only "
            "one label of several can be smoothed. Leave it out."
        )


def check_same_labels(folder: str | None, labels: Labels) -> None:
    """Check that what an earlier call trained answers the same labels.

    Args:
        folder: A checkpoint to resume from, or the folder of a finished run; None where there is neither.
        labels: What the rows ask for.

    Raises:
        ValueError: If it answers others.
    """
    if folder and labels_of(load_config(folder)) != labels:
        raise ValueError(f"{folder} is of a run with other labels; name a new --output_dir.")


def with_labels(config: PreTrainedConfig, labels: Labels, classifier_pooling: str | None) -> PreTrainedConfig:
    """Set what the outputs of a model stand for, and what of a Linformer stands for a text.

    Raises:
        ValueError: If a model cannot pool as asked for.
    """
    if classifier_pooling:
        if not hasattr(config, "classifier_pooling"):
            raise ValueError(f"--classifier_pooling is a Linformer's choice; a {config.model_type} has its own.")
        config.classifier_pooling = classifier_pooling
    config.problem_type = labels.problem_type
    config.id2label = dict(enumerate(labels.names))
    config.label2id = {name: number for number, name in config.id2label.items()}
    return config


def load_model(name: str, config: PreTrainedConfig, loading: dict[str, Any], for_training: bool) -> PreTrainedModel:
    """Load the encoder with a head for the labels; a head for other labels is replaced, if there is training."""
    # mixed precision keeps its weights in single precision; without training a wrong size means a damaged model
    options = {"dtype": torch.float32, "ignore_mismatched_sizes": True} if for_training else {}
    model = AutoModelForSequenceClassification.from_pretrained(name, config=config, **loading, **options)
    declare_loss_scaling(model)
    return model


def how_to_predict(folder: str, task_name: str | None) -> str:
    """Name the command that labels other rows."""
    task = f"--task_name {task_name} " if task_name else ""
    return (
        f"To label other rows: linformer finetune --do_predict --model_name_or_path {folder} {task}--test_file ROWS "
        f"--output_dir {folder}-answers"
    )
