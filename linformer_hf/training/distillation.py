"""Teach a Linformer to do what the dense encoder does that it came from: arguments, and one function."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    default_data_collator,
)
from transformers.utils import logging

from ..common.heads import MASKED_LM, NO_HEAD, Head, head_of_checkpoint, head_of_class, shared_head
from ..common.loading import LoadingArguments, check_length, load_config, load_whole
from ..common.options import check_share, refuse_unused
from ..conversion.companion_files import about_parent, carry_over, local_folder
from ..conversion.distances import FEWEST_EMBEDDINGS
from ..conversion.embeddings import MEAN_EMBEDDING, read_embedding, read_modules
from ..conversion.families import check_parent
from ..conversion.windows import attention_modules
from ..data.masking import MaskingCollator, mask_once
from ..data.texts import TextArguments, Texts, load_texts
from ..data.tokenizers import load_tokenizer
from .distillation_trainer import (
    MEASURED_LENGTHS,
    MEASURES,
    DistillationTrainer,
    Measurement,
    TeachingArguments,
    length_table,
    speedups,
)
from .documents import make_examples
from .leading_zeros import keep_leading_zeros
from .optimizers import choose_optimizer, uses_fsdp
from .options import check_best_metric, early_stopping
from .pretraining_trainer import NewMasks
from .run import (
    Run,
    RunArguments,
    about_data,
    finish_run,
    first_evaluation,
    fit_tokenizer,
    start_run,
    train_model,
)


logger = logging.get_logger(__name__)

MASKED_SHARE = 0.15
TIMED_BLOCKS = 2
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")


@dataclass(kw_only=True)
class DistillationArguments(TextArguments, LoadingArguments, TeachingArguments, RunArguments):
    """Who learns from whom, on which text, and what counts."""

    model_name_or_path: str = field(metadata={"help": "The converted Linformer, with its tokenizer."})
    teacher_name_or_path: str = field(metadata={"help": "The dense encoder it came from, on the Hub or in a folder."})
    teacher_revision: str = field(
        default="main", metadata={"help": "Which branch, tag or commit of the teacher on the Hub to load."}
    )
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
    mlm_probability: float | None = field(
        default=None,
        metadata={"help": "Share of the tokens that are masked where heads predict words. By default 0.15."},
    )


def distill(
    arguments: DistillationArguments, training: TrainingArguments, texts: Texts | None = None
) -> dict[str, float]:
    """Teach a Linformer from text alone, without labels, and measure on held-out text how near it is to its teacher.

    Args:
        arguments: Models, text and loss.
        training: The Trainer's own arguments; `do_train` and `do_eval` say what to do.
        texts: Documents in a column `text`, split into `train` and `validation`. None reads those that the arguments
            name.

    Returns:
        Of held-out text: `eval_samples`, the number of examples; `embedding_cosine`, the mean cosine of student's and
        teacher's embeddings;
        `similarity_correlation`, that of the similarities between examples; both of blocks cut to 16, 32, 64, …
        tokens as `embedding_cosine_16` and so on; `hidden_error`, the mean squared error of the layers' outputs
        relative to their variance, and of each layer `hidden_error_1` and so on; these as `initial_…` before
        training; `speedup_16` and so on, how many times faster the student reads; and the Trainer's own.

    Raises:
        ValueError: If arguments contradict each other, or text, tokenizer and models do not fit.
    """
    splits = ("train", "validation") if training.do_train else ("validation",)
    run = start_run(arguments, training, data=facts_of_texts(texts, splits))
    check_arguments(arguments, training)
    callbacks = early_stopping(arguments.early_stopping_patience, training)
    optimizer = choose_optimizer(arguments.use_muon, arguments.muon_learning_rate, training)
    student_name = run.trained_folder or arguments.model_name_or_path

    with training.main_process_first(desc="preparing the text"):
        data = about_data(
            arguments.dataset_name,
            arguments.train_file or arguments.validation_file,
            "text",
            arguments.builtin_sample,
            arguments.validation_file,
        )
        if texts is None:
            texts = load_texts(arguments, training.seed, splits)
        else:
            texts = {split: texts[split] for split in splits}
            data["dataset"] = f"{len(texts[splits[0]])} texts"
        student, teacher, head = load_models(
            student_name,
            arguments.teacher_name_or_path,
            arguments.loading(),
            {"revision": arguments.teacher_revision, "token": arguments.token},
            teaches_predictions=bool(arguments.logits_weight),
        )
        if arguments.attention_weight:
            attention_modules(teacher)  # an unknown family is found before the work begins
        check_head_sharding(training, student, is_taught_whole=head is not NO_HEAD)
        masks = head is MASKED_LM
        if not masks:
            reason = "because student and teacher have no heads for masked words to be taught"
            refuse_unused({"mlm_probability": arguments.mlm_probability}, reason)
        tokenizer = load_tokenizer(student_name, arguments.loading(), needs=("mask", "pad") if masks else ("pad",))
        fit_tokenizer(tokenizer, student, student_name)
        num_tokens = check_length(arguments.max_seq_length, student)
        train, held_out = make_examples(
            texts,
            tokenizer,
            num_tokens,
            arguments.line_by_line,
            num_workers=arguments.preprocessing_num_workers,
            mark_passes=masks,
        )
        share = MASKED_SHARE if arguments.mlm_probability is None else arguments.mlm_probability
        if masks:
            held_out = mask_once(held_out, tokenizer, share, training.seed, hide_all=True)
        if training.do_eval:
            warn_of_few(len(held_out), num_tokens)
        teacher_folder = local_folder(arguments.teacher_name_or_path, arguments.teacher_revision, arguments.token)
        embedding = MEAN_EMBEDDING if teacher_folder is None else read_embedding(teacher_folder, training.device)

    training.remove_unused_columns = False  # the loss reads what the student's forward does not name
    # within the training, because an evaluation before it would keep a model of several processes from being wrapped
    training.eval_on_start = training.do_train and training.do_eval
    lengths = () if arguments.line_by_line else (num_tokens, *(n for n in MEASURED_LENGTHS if n < num_tokens))
    collator = make_collator(tokenizer, arguments.line_by_line, share if masks else None, training.seed)
    check_best_metric(training, reported_names(student, lengths), lower_is_better(student))
    taught = student.base_model if head is NO_HEAD else student
    callbacks += [NewMasks(collator)] if masks else []
    if training.do_train and arguments.keep_leading_zeros:
        keep_leading_zeros(taught, is_sharded=uses_fsdp(training))
    trainer = DistillationTrainer(
        model=taught,
        args=training,
        train_dataset=train,
        eval_dataset=held_out,
        processing_class=tokenizer,
        data_collator=collator,
        callbacks=callbacks,
        compute_metrics=Measurement(lengths or None),
        optimizer_cls_and_kwargs=optimizer,
        teacher=teacher,
        weights=arguments.loss_weights(),
        projection_learning_rate=arguments.projection_learning_rate,
        vary_length=arguments.vary_length and not arguments.line_by_line,
        embedding=embedding,
        measured_lengths=lengths,
    )

    student_folder = local_folder(student_name, arguments.model_revision, arguments.token)
    numbers = train_student(trainer, student, run, [student_folder, teacher_folder]) if training.do_train else {}
    if training.do_eval:
        numbers |= {**without_prefix(trainer.evaluate()), "eval_samples": len(held_out)}
        if lengths and not training.fsdp and trainer.is_world_process_zero():
            blocks = torch.tensor(held_out[:TIMED_BLOCKS]["input_ids"])
            numbers |= speedups(trainer.model, trainer.teacher, blocks, lengths)
        for line in (report(numbers), *length_table(numbers)):
            logger.info(line)
    about = {
        **data,
        "pipeline_tag": head_of_class(type(student).__name__).pipeline_tag,
        **about_parent(arguments.teacher_name_or_path, teacher_folder),
        "metrics": list(MEASURES),
    }
    next_step = (
        f"To compare the two: linformer compare --model_name_or_path {training.output_dir} --dense_name_or_path "
        f"{arguments.teacher_name_or_path} --output_dir {training.output_dir}-compared"
    )
    finish_run(trainer, run, numbers, arguments, about, student, next_step)
    return numbers


def warn_of_few(held_out: int, num_tokens: int) -> None:
    """Warn where held-out examples are too few for a correlation."""
    if held_out < FEWEST_EMBEDDINGS:
        logger.warning(
            f"The held-out text gives {held_out} examples of up to {num_tokens} tokens. The correlation of their "
            f"similarities takes {FEWEST_EMBEDDINGS} and will be no number: give more held-out text."
        )


def facts_of_texts(texts: Texts | None, splits: Sequence[str]) -> dict[str, int]:
    """Return a checksum of documents that are given in Python, which tells them from others; nothing without them.

    Raises:
        ValueError: If documents for a split are missing.
    """
    if texts is None:
        return {}
    if missing := [split for split in splits if split not in texts]:
        raise ValueError(f"`texts` has no {' and no '.join(missing)}, but {', '.join(texts)}; give it too.")
    checksum = 0
    for split in splits:
        for row in texts[split]:
            checksum = zlib.crc32(row["text"].encode(), checksum)
    return {"checksum of texts": checksum}


def check_arguments(arguments: DistillationArguments, training: TrainingArguments) -> None:
    """Check options against each other before anything is loaded.

    Raises:
        ValueError: At the first one that makes no sense or would have no effect.
    """
    weights = {name: value for name, value in vars(arguments).items() if name.endswith("_weight")}
    for name, value in weights.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"--{name} is {value}; it must be 0, which leaves that part out, or more.")
    if not any(weights.values()):
        raise ValueError(f"{', '.join('--' + name for name in weights)} are all 0, so there is nothing to learn.")
    for name in ("temperature", "projection_learning_rate"):
        if not 0 < getattr(arguments, name) < math.inf:
            raise ValueError(f"--{name} is {getattr(arguments, name)}; it must be more than 0.")
    check_share("mlm_probability", arguments.mlm_probability)
    if arguments.mlm_probability == 0:
        raise ValueError("--mlm_probability is 0.0, so no word would be masked; it must be more than 0.")
    if training.label_smoothing_factor:
        raise ValueError(
            f"--label_smoothing_factor is {training.label_smoothing_factor}, which has no effect on the distance to a "
            "teacher. Leave it out."
        )
    if not training.do_train:
        refuse_unused({"use_muon": arguments.use_muon}, "without --do_train")


def load_models(
    name: str,
    teacher_name: str,
    loading: Mapping[str, Any],
    teacher_loading: Mapping[str, Any],
    teaches_predictions: bool = True,
) -> tuple[PreTrainedModel, PreTrainedModel, Head]:
    """Load the student with its own head, and the teacher with the same head, or none where it has another.

    The student trains without dropout, which blurs what is to be matched and measured worse; its configuration keeps
    the numbers for later training.

    Args:
        name: The student.
        teacher_name: The dense encoder that it came from.
        loading: What `from_pretrained` is to be told for the student.
        teacher_loading: What it is to be told for the teacher.
        teaches_predictions: Whether what the heads predict is taught.

    Returns:
        Student, teacher, and the head whose predictions are taught, as in `common.heads`.

    Raises:
        ValueError: If the student is no Linformer, its weights are damaged or incomplete, or the two differ in what
            must be equal.
    """
    config = load_config(name, **loading)
    teacher_config = load_config(teacher_name, **teacher_loading)
    check_parent(config, teacher_config, name, teacher_name)
    heads = [head_of_checkpoint(one.architectures) for one in (teacher_config, config)]
    head = shared_head(*heads) if teaches_predictions else NO_HEAD
    if head not in (NO_HEAD, MASKED_LM) and config.num_labels != teacher_config.num_labels:
        raise ValueError(
            f"{name} has {config.num_labels} labels and {teacher_name} {teacher_config.num_labels}; take the teacher "
            "that the Linformer was made from, or give --logits_weight 0."
        )
    student, _ = load_whole(
        heads[1].auto_class,
        name,
        **loading,
        **dict.fromkeys(DROPOUTS, 0.0),
        dtype=torch.float32,  # mixed precision keeps its weights in this one
    )
    student.config.update({dropout: getattr(config, dropout) for dropout in DROPOUTS})
    teacher, _ = load_whole(head.auto_class, teacher_name, **teacher_loading, dtype=torch.float32)
    return student, teacher, head


def make_collator(
    tokenizer: PreTrainedTokenizerBase, line_by_line: bool, masked_share: float | None, seed: int
) -> Callable[[list[dict]], dict[str, torch.Tensor]]:
    """Make batches: with hidden tokens for heads that predict words, padded where examples are documents.

    Args:
        tokenizer: The tokenizer.
        line_by_line: Whether examples have several lengths.
        masked_share: Of the tokens to hide. None hides none.
        seed: Which tokens.
    """
    if masked_share is not None:
        return MaskingCollator(tokenizer, masked_share, hide_all=True, seed=seed)
    return DataCollatorWithPadding(tokenizer) if line_by_line else default_data_collator


def check_head_sharding(training: TrainingArguments, student: PreTrainedModel, is_taught_whole: bool) -> None:
    """Check that the student can be saved as it will be trained.

    Raises:
        ValueError: If its body would be sharded and its head not.
    """
    if training.fsdp and not is_taught_whole and student is not student.base_model:
        raise ValueError(
            "--fsdp shards the body, and the teacher has no head like the student's, so they could not be saved "
            "together; train without it."
        )


def train_student(
    trainer: DistillationTrainer, student: PreTrainedModel, run: Run, parents: Sequence[Path | None]
) -> dict[str, float]:
    """Train, save the student with its head and with what makes it a sentence encoder.

    Args:
        trainer: Its model is the student, or the student's body.
        student: With its head.
        run: As `start_run` returned it.
        parents: Folders of the student and its teacher; the first that describes a sentence encoder is carried over.

    Returns:
        The Trainer's numbers, and the first measurement as `initial_…`.
    """
    numbers = train_model(trainer, run)
    if numbers and trainer.is_world_process_zero():
        folder = trainer.args.output_dir
        if student is not trainer.model:
            student.save_pretrained(folder)
        source = next((parent for parent in parents if parent is not None and read_modules(parent)), None)
        if source is not None:
            carry_over(source, Path(folder))
    before = first_evaluation(trainer.state)
    return numbers | {f"initial_{name}": before[name] for name in MEASURES if name in before}


def reported_names(student: PreTrainedModel, lengths: tuple[int, ...]) -> list[str]:
    """List what evaluations report besides the Trainer's own numbers."""
    at_lengths = [f"{name}_{length}" for name in MEASURES[:2] for length in lengths]
    return [*MEASURES, *at_lengths, *lower_is_better(student)]


def lower_is_better(student: PreTrainedModel) -> list[str]:
    """List those measurements that get better by getting smaller."""
    numbers = range(1, student.config.num_hidden_layers + 1)
    return ["hidden_error", *(f"hidden_error_{number}" for number in numbers)]


def without_prefix(metrics: Mapping[str, float]) -> dict[str, float]:
    """Name measurements as they are, and leave the Trainer's own as it names them."""
    is_ours = tuple(f"eval_{name}" for name in MEASURES)
    return {name.removeprefix("eval_") if name.startswith(is_ours) else name: value for name, value in metrics.items()}


def report(numbers: Mapping[str, float]) -> str:
    """Say in a sentence how near the student is to its teacher."""
    parts = []
    for name in MEASURES:
        before = f", {numbers[f'initial_{name}']:.3f} before training" if f"initial_{name}" in numbers else ""
        parts.append(f"{name.replace('_', ' ')} {numbers[name]:.3f}{before}")
    return f"On {numbers['eval_samples']} held-out examples against the teacher: {'; '.join(parts)}."
