"""What every training run does, in the order in which a task calls it: start, train, finish."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

from ..common.figures import plot_curves
from ..common.files import check_writable
from ..common.loading import check_tokenizer, model_length
from ..common.measurement import Stopwatch
from ..common.records import FILE_NAME, check_record, model_facts, write_results
from ..common.secrets import move_tokens_to_environment
from ..data.library_sample import DEFAULT_SAMPLE, describe_sample
from ..sharing.card import write_card
from .optimizers import OptimizerArguments
from .options import check_training_counts
from .progress import loss_curves
from .resuming import find_checkpoint, finished_run, tokens_seen
from .run_options import (
    check_evaluated_model,
    check_same_options,
    deciding_options,
    read_options,
    write_options,
)


logger = logging.get_logger(__name__)


@dataclass
class RunArguments(OptimizerArguments):
    """What every run can be asked for besides the Trainer's own arguments."""

    early_stopping_patience: int | None = field(
        default=None,
        metadata={
            "help": "Stop when --metric_for_best_model (by default the held-out loss) has not improved in this many "
            "evaluations; needs --eval_strategy."
        },
    )
    keep_leading_zeros: bool = field(
        default=True,
        metadata={
            "help": "Where a saved Linformer is trained further, the first token that a slot reads stays the first. "
            "So a text that ends before it still does not need the slot, and costs less on a CPU."
        },
    )


@dataclass(frozen=True)
class Run:
    """Where a run stands when it starts.

    Args:
        checkpoint: The checkpoint to resume from, if an earlier call was stopped.
        trained_folder: The output folder, if an earlier call has trained in it to the end: then its model is loaded,
            and nothing is trained.
        options: Those on which the trained weights depend.
        watch: Measures seconds and memory from the start on.
    """

    checkpoint: str | None
    trained_folder: str | None
    options: Mapping[str, Any]
    watch: Stopwatch


def start_run(
    arguments: Any,
    training: TrainingArguments,
    purposes: Sequence[str] = ("do_train", "do_eval"),
    data: Mapping[str, Any] | None = None,
) -> Run:
    """Check what is asked for, find out where the run stands, and seed all random numbers.

    Args:
        arguments: Of the task; they are compared with those of an earlier call that wrote into the output folder.
        training: The Trainer's own arguments.
        purposes: The switches of which the task needs one.
        data: Facts beside the arguments that decide what is trained on, by name.

    Raises:
        ValueError: If nothing is asked for, processes would not train together, or the output folder cannot be
            written or holds something else, as another run or numbers of another model.
    """
    if not any(getattr(training, purpose) for purpose in purposes):
        *others, last = [f"--{purpose}" for purpose in purposes]
        raise ValueError(f"Nothing is asked for: give {', '.join(others)}, {last} or several of them.")
    check_writable(Path(training.output_dir))
    check_record(training.output_dir)
    if training.do_train:
        check_training_counts(training)
    move_tokens_to_environment([training])  # the Trainer pickles its arguments beside the model
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    check_processes(launched, training.world_size, training.device.type, is_sharded=bool(training.fsdp))
    trained_folder = finished_run(training) if training.do_train else None
    checkpoint = None if trained_folder else find_checkpoint(training)
    options = deciding_options(arguments, training, data or {}) if training.do_train else {}
    if held := trained_folder or checkpoint:
        folder = Path(trained_folder or Path(held).parent)
        earlier = read_options(folder, arguments, training)
        check_same_options(folder, earlier, options, is_finished=trained_folder is not None)
    if not training.do_train:
        check_evaluated_model(Path(training.output_dir), arguments)
    set_seed(training.seed)
    if training.device.type == "cpu":
        training.dataloader_pin_memory = False  # torch would warn that nothing gains from it
    return Run(checkpoint, trained_folder, options, Stopwatch())


def check_processes(launched: int, together: int, device: str, is_sharded: bool) -> None:
    """Check that the processes of a run train one model together.

    Args:
        launched: How many processes a launcher has started.
        together: How many of them train one model.
        device: The type of device that they train on.
        is_sharded: Whether the model is to be sharded over them.

    Raises:
        ValueError: If each would train alone, or a model that is to be sharded would not be.
    """
    if launched > 1 and together == 1:
        raise ValueError(
            f"{launched} processes were started, and each would train alone because there is no GPU: give --use_cpu."
        )
    if is_sharded and (together == 1 or device == "cpu"):
        where = "one process" if together == 1 else "CPUs"
        raise ValueError(
            f"--fsdp shards a model over several GPUs; on {where} the Trainer would leave it whole. Leave --fsdp out."
        )


def fit_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, name: str) -> None:
    """Check that a tokenizer fits a model, and write down how much the model reads.

    Args:
        tokenizer: Its `model_max_length` becomes the model's n.
        model: The model.
        name: What the model is called in messages.

    Raises:
        ValueError: If the model lacks an embedding for some token.
    """
    check_tokenizer(tokenizer, model, name)
    tokenizer.model_max_length = model_length(model)


def train_model(trainer: Trainer, run: Run, loss_unit: str = "") -> dict[str, float]:
    """Write down the options, train, save the model, the Trainer's state and the curves of the losses.

    Args:
        trainer: Ready to train.
        run: As `start_run` returned it.
        loss_unit: Stands behind "Loss" beside the curves.

    Returns:
        The Trainer's own numbers, and `tokens_per_second` where it counts tokens. None of them if an earlier call
        has finished the training.
    """
    if run.trained_folder:
        logger.info(f"{run.trained_folder} holds the finished run: nothing is trained.")
        return {}
    if trainer.is_world_process_zero():
        write_options(trainer.args.output_dir, run.options)
    result = trainer.train(resume_from_checkpoint=run.checkpoint)
    trainer.save_model()
    trainer.save_state()
    if trainer.is_world_process_zero() and (curves := loss_curves(trainer.state)):
        plot_curves(curves, Path(trainer.args.output_dir, "curves"), "Step", f"Loss{loss_unit}")
    tokens = trainer.state.num_input_tokens_seen - tokens_seen(run.checkpoint)
    return result.metrics | ({"tokens_per_second": tokens / result.metrics["train_runtime"]} if tokens else {})


def first_evaluation(state: TrainerState) -> dict[str, float]:
    """Return what the first evaluation of a training has logged, by names without `eval_`; nothing without one."""
    first = next((entry for entry in state.log_history if "eval_loss" in entry), {})
    return {name.removeprefix("eval_"): value for name, value in first.items()}


def finish_run(
    trainer: Trainer,
    run: Run,
    numbers: Mapping[str, float],
    arguments: Any,
    about: Mapping[str, Any],
    model: PreTrainedModel,
    next_step: str = "",
) -> None:
    """Write the record and, where there is a model, its card, and log where they are.

    Args:
        trainer: Only its first process writes.
        run: As `start_run` returned it.
        numbers: What this call measured.
        arguments: Of the task; those of the Trainer are recorded with them.
        about: What the card says of the task and its data.
        model: What the card is of.
        next_step: Logged last, after a training.
    """
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    trained = "train_runtime" in numbers
    # seconds and memory of an evaluation would stand in the record of a training as if they were its own
    cost = run.watch.read() if trained or not (folder / FILE_NAME).is_file() else {}
    facts = {**about, "model": model_facts(model)}
    write_results(folder, {**numbers, **cost}, (arguments, trainer.args), facts)
    if (folder / "config.json").is_file():
        write_card(folder)
    logger.info(f"The output is in {folder}, its numbers in {FILE_NAME} there.")
    if next_step and trained:
        logger.info(next_step)


def about_data(
    dataset_name: str | None,
    files: Sequence[str] | None,
    kind: str,
    builtin_sample: str | None = None,
    held_out_files: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Say what a card tells of the data of a run: a data set on the Hub, files by their last names, or the sample.

    Args:
        dataset_name: On the Hub.
        files: As the user named them.
        kind: What files hold, as in `text`.
        builtin_sample: What of the built-in sample is read where nothing else is named; None is the default.
        held_out_files: Those that the numbers are measured on, where they are files of their own.
    """
    names, held_out_names = (", ".join(Path(file).name for file in some or []) for some in (files, held_out_files))
    return {
        "dataset": dataset_name or names or describe_sample(builtin_sample or DEFAULT_SAMPLE),
        "dataset_type": dataset_name or kind,
        "dataset_ids": [dataset_name] if dataset_name else None,
        **({"measured_on": held_out_names} if held_out_names else {}),
    }
