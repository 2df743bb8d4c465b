"""Teach a Linformer to do what the dense encoder does that it came from: arguments, and one function."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.utils import logging

from ..common.heads import MASKED_LM, NO_HEAD, Head, head_of_checkpoint, head_of_class, shared_head
from ..common.loading import LoadingArguments, check_length, check_tokenizer, model_length
from ..common.records import Stopwatch, model_facts, write_results
from ..conversion.windows import attention_modules
from ..data.blocks import MaskingCollator, cut_lines, mask_once, pack_blocks
from ..data.texts import Table, TextArguments, Texts, in_memory, load_texts
from ..sharing.hub import write_card
from .distillation_trainer import MEASURES, DistillationTrainer, Measurement, TeachingArguments
from .pretraining import NewMasks
from .resuming import find_checkpoint


logger = logging.get_logger(__name__)

DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")


@dataclass(kw_only=True)
class DistillationArguments(TextArguments, LoadingArguments, TeachingArguments):
    """Who learns from whom, on which text, and what counts."""

    model_name_or_path: str = field(metadata={"help": "The converted Linformer, with its tokenizer."})
    teacher_name_or_path: str = field(metadata={"help": "The dense encoder it came from, on the Hub or in a folder."})
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Length of an example in tokens. By default the Linformer's n."}
    )
    line_by_line: bool = field(
        default=False, metadata={"help": "Make each document one example, instead of packing blocks of equal length."}
    )
    vary_length: bool = field(
        default=True,
        metadata={
            "help": "Cut each batch of blocks to a length drawn from n, n/2, n/4, ...: cheaper, and short texts are "
            "learned too."
        },
    )
    mlm_probability: float = field(
        default=0.15, metadata={"help": "Share of the tokens that are masked where heads predict words."}
    )


def distill(arguments: DistillationArguments, training: TrainingArguments) -> dict[str, float]:
    """Teach a Linformer from text alone, without labels, and measure on held-out text how near it is to its teacher.

    Args:
        arguments: Models, text and loss.
        training: The Trainer's own arguments; `do_train` and `do_eval` say what to do.

    Returns:
        Of held-out text: `embedding_cosine`, the mean cosine of student's and teacher's mean-pooled embeddings;
        `similarity_correlation`, that of the similarities between examples; `hidden_error`, the mean squared error of
        the layers' outputs relative to their variance, and of each layer `hidden_error_1` and so on; these as
        `initial_…` before training; and the Trainer's own.

    Raises:
        ValueError: If arguments contradict each other, or text, tokenizer and models do not fit.
    """
    check_arguments(arguments, training)
    checkpoint = find_checkpoint(training)
    watch = Stopwatch()
    set_seed(training.seed)
    with training.main_process_first(desc="preparing the text"):
        texts = load_texts(arguments, training.seed)
        student, teacher, head = load_models(arguments)
        check_sharding(training, student, is_taught_whole=head is not NO_HEAD)
        tokenizer = AutoTokenizer.from_pretrained(arguments.model_name_or_path, **arguments.loading())
        check_tokenizer(tokenizer, student, arguments.model_name_or_path)
        num_tokens = check_length(arguments.max_seq_length, student)
        tokenizer.model_max_length = model_length(student)
        masks = head == MASKED_LM
        train, held_out = make_examples(texts, tokenizer, num_tokens, arguments, training.seed if masks else None)

    training.remove_unused_columns = False  # the loss reads what the student's forward does not name
    # within the training, because an evaluation before it would keep a model of several processes from being wrapped
    training.eval_on_start = training.do_train and training.do_eval
    collator = make_collator(tokenizer, arguments, masks, training.seed)
    trainer = DistillationTrainer(
        model=student.base_model if head is NO_HEAD else student,
        args=training,
        train_dataset=train,
        eval_dataset=held_out,
        processing_class=tokenizer,
        data_collator=collator,
        callbacks=[NewMasks(collator)] if masks else None,
        compute_metrics=Measurement(),
        teacher=teacher,
        weights=arguments.loss_weights(),
        projection_learning_rate=arguments.projection_learning_rate,
        vary_length=arguments.vary_length and not arguments.line_by_line,
    )
    metrics = run_training(trainer, student, checkpoint) if training.do_train else {}
    if training.do_eval:
        metrics |= without_prefix(trainer.evaluate())
        logger.info(report(metrics))
    if trainer.is_world_process_zero():
        write_results(training.output_dir, metrics | watch.read(), (arguments, training), about(arguments, student))
        if training.do_train:
            write_card(training.output_dir)
        logger.info(f"All of it lies in {training.output_dir}; the numbers are in results.json there.")
        logger.info(
            f"To compare the two: python scripts/compare_models.py --model_name_or_path {training.output_dir} "
            f"--dense_name_or_path {arguments.teacher_name_or_path} --output_dir {training.output_dir}-compared"
        )
    return metrics


def check_arguments(arguments: DistillationArguments, training: TrainingArguments) -> None:
    """Check what can be checked before anything is loaded.

    Raises:
        ValueError: At the first argument that makes no sense.
    """
    if not (training.do_train or training.do_eval):
        raise ValueError("Nothing is asked for: give --do_train, --do_eval or both.")
    weights = {name: value for name, value in vars(arguments).items() if name.endswith("_weight")}
    for name, value in weights.items():
        if value < 0:
            raise ValueError(f"--{name} is {value}; it must be 0, which leaves that part out, or more.")
    if not any(weights.values()):
        raise ValueError(f"{', '.join('--' + name for name in weights)} are all 0, so there is nothing to learn.")
    for name in ("temperature", "projection_learning_rate"):
        if getattr(arguments, name) <= 0:
            raise ValueError(f"--{name} is {getattr(arguments, name)}; it must be more than 0.")
    if not 0 < arguments.mlm_probability <= 1:
        raise ValueError(f"--mlm_probability is {arguments.mlm_probability}; it must lie between 0 and 1.")


def load_models(arguments: DistillationArguments) -> tuple[PreTrainedModel, PreTrainedModel, Head]:
    """Load the student with its own head, and the teacher with the same head, or none where it has another.

    The student trains without dropout, which blurs what is to be matched and measured worse; its configuration keeps
    the numbers for later training.

    Returns:
        Student, teacher, and the head whose predictions are taught, as in `common.heads`.

    Raises:
        ValueError: If the student is no Linformer, or the two differ in what must be equal.
    """
    name, teacher_name = arguments.model_name_or_path, arguments.teacher_name_or_path
    config = AutoConfig.from_pretrained(name, **arguments.loading())
    if config.model_type != "linformer":
        raise ValueError(
            f"{name} is a {config.model_type}, not a Linformer; make one with scripts/convert_checkpoint.py first."
        )
    teacher_config = AutoConfig.from_pretrained(teacher_name)
    for fact in ("vocab_size", "hidden_size", "num_hidden_layers"):
        if getattr(config, fact) != getattr(teacher_config, fact):
            raise ValueError(
                f"`{fact}` is {getattr(config, fact)} in {name} and {getattr(teacher_config, fact)} in "
                f"{teacher_name}; take the encoder that the Linformer was made from as its teacher."
            )
    heads = [head_of_checkpoint(one.architectures) for one in (teacher_config, config)]
    head = shared_head(*heads) if arguments.logits_weight else NO_HEAD
    if head not in (NO_HEAD, MASKED_LM) and config.num_labels != teacher_config.num_labels:
        raise ValueError(
            f"{name} has {config.num_labels} labels and {teacher_name} {teacher_config.num_labels}; take the teacher "
            "that the Linformer was made from, or give --logits_weight 0."
        )
    student = heads[1].auto_class.from_pretrained(
        name,
        **arguments.loading(),
        **dict.fromkeys(DROPOUTS, 0.0),
        dtype=torch.float32,  # mixed precision keeps its weights in this one
    )
    student.config.update({dropout: getattr(config, dropout) for dropout in DROPOUTS})
    teacher = head.auto_class.from_pretrained(teacher_name, dtype=torch.float32)
    if arguments.attention_weight:
        attention_modules(teacher)
    return student, teacher, head


def make_examples(
    texts: Texts,
    tokenizer: PreTrainedTokenizerBase,
    num_tokens: int,
    arguments: DistillationArguments,
    mask_seed: int | None,
) -> tuple[Table, Table]:
    """Turn documents into examples to train on, and held-out ones, which have fixed masks where there is a seed.

    Raises:
        ValueError: If the text is shorter than one block.
    """
    make = cut_lines if arguments.line_by_line else pack_blocks
    examples = {
        split: table.map(make(tokenizer, num_tokens), batched=True, remove_columns=["text"])
        for split, table in texts.items()
    }
    held_out = in_memory(examples["validation"])
    for split, table in (("train", examples["train"]), ("held-out", held_out)):
        if hasattr(table, "__len__") and len(table) == 0:
            raise ValueError(
                f"The {split} text is shorter than one block of {num_tokens} tokens: give more text, a smaller "
                "--max_seq_length, or --line_by_line."
            )
    if mask_seed is not None:
        held_out = mask_once(held_out, tokenizer, arguments.mlm_probability, mask_seed, hide_all=True)
    return examples["train"], held_out


def make_collator(
    tokenizer: PreTrainedTokenizerBase, arguments: DistillationArguments, masks: bool, seed: int
) -> Callable[[list[dict]], dict[str, torch.Tensor]]:
    """Make batches: with hidden tokens for heads that predict words, padded where examples are documents."""
    if masks:
        return MaskingCollator(tokenizer, arguments.mlm_probability, hide_all=True, seed=seed)
    return DataCollatorWithPadding(tokenizer) if arguments.line_by_line else default_data_collator


def check_sharding(training: TrainingArguments, student: PreTrainedModel, is_taught_whole: bool) -> None:
    """Check that the student can be saved as it will be trained.

    Raises:
        ValueError: If its body would be sharded and its head not.
    """
    if training.fsdp and not is_taught_whole and student is not student.base_model:
        raise ValueError(
            "--fsdp shards the body, and the teacher has no head like the student's, so they could not be saved "
            "together; train without it."
        )


def run_training(trainer: DistillationTrainer, student: PreTrainedModel, checkpoint: str | None) -> dict[str, float]:
    """Train, save the student with its head, and return the Trainer's numbers and the first measurement."""
    config = student.config
    sparse = config.sparse_prediction
    config.sparse_prediction = True  # a head for words computes what is taught alone
    result = trainer.train(resume_from_checkpoint=checkpoint)
    config.sparse_prediction = sparse
    trainer.save_model()
    if trainer.is_world_process_zero() and student is not trainer.model:
        student.save_pretrained(trainer.args.output_dir)
    trainer.save_state()
    first = next((entry for entry in trainer.state.log_history if f"eval_{MEASURES[0]}" in entry), {})
    initial = {f"initial_{name}": first[f"eval_{name}"] for name in MEASURES if f"eval_{name}" in first}
    return result.metrics | initial


def without_prefix(metrics: dict[str, float]) -> dict[str, float]:
    """Name measurements as they are, and leave the Trainer's own as it names them."""
    is_ours = tuple(f"eval_{name}" for name in MEASURES)
    return {name.removeprefix("eval_") if name.startswith(is_ours) else name: value for name, value in metrics.items()}


def report(metrics: dict[str, float]) -> str:
    """Say in a sentence how near the student is to its teacher."""
    parts = []
    for name in MEASURES:
        before = f", {metrics[f'initial_{name}']:.3f} before training" if f"initial_{name}" in metrics else ""
        parts.append(f"{name.replace('_', ' ')} {metrics[name]:.3f}{before}")
    return f"On held-out text against the teacher: {'; '.join(parts)}."


def about(arguments: DistillationArguments, student: PreTrainedModel) -> dict[str, Any]:
    """Say what the card tells of the run."""
    files = ", ".join(Path(file).name for file in arguments.train_file or [])
    return {
        "pipeline_tag": head_of_class(type(student).__name__).pipeline_tag,
        "dataset": arguments.dataset_name or files or "the documentation of Python's standard library",
        "dataset_type": arguments.dataset_name or "text",
        "dataset_ids": [arguments.dataset_name] if arguments.dataset_name else None,
        "base_model": None if Path(arguments.teacher_name_or_path).is_dir() else arguments.teacher_name_or_path,
        "metrics": list(MEASURES),
        "model": model_facts(student),
    }
