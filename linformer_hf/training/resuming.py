"""Where a run stands when it starts: at the beginning, at a checkpoint, or at its end."""

import math
import re
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from transformers import TrainingArguments
from transformers.utils import logging

from ..common.files import read_json
from ..sharing.hub import tensor_names
from .run_options import OPTIONS


logger = logging.get_logger(__name__)

STATE = "trainer_state.json"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
RANDOM_STATE = re.compile(r"rng_state_(\d+)\.pth")
NEEDED_OF_STATE = {"global_step", "max_steps", "num_train_epochs", "epoch", "num_input_tokens_seen"}
IGNORED = {"runs", OPTIONS}  # written before the first checkpoint; the former by TensorBoard


def finished_run(training: TrainingArguments) -> str | None:
    """Return the output folder if an earlier call has trained in it for as long as this one asks; None otherwise.

    The Trainer's state is written beside the model when the training has ended, and not before.
    """
    folder = Path(training.output_dir)
    state = read_state(folder)
    if state is None or not (folder / "config.json").is_file():
        return None
    if training.max_steps > 0:
        return str(folder) if training.max_steps == state["max_steps"] else None
    stopped_early = state["global_step"] < state["max_steps"]
    is_same = math.ceil(training.num_train_epochs) == state["num_train_epochs"]
    is_done = is_same and (stopped_early or (state["epoch"] or 0.0) >= training.num_train_epochs)
    return str(folder) if is_done else None


def find_checkpoint(training: TrainingArguments) -> str | None:
    """Return the checkpoint to resume from: the one that is named, or the newest whole one of the output folder.

    A run that was killed may leave a half-written checkpoint, which is passed over, or none at all: then it starts
    again from the beginning.

    Raises:
        ValueError: If the checkpoint that is named is none, a checkpoint is of another number of processes, or the
            folder holds something else.
    """
    named = training.resume_from_checkpoint
    wants_last = isinstance(named, str) and named.lower() == "true"
    if named and not training.do_train:
        raise ValueError(f"--resume_from_checkpoint is {named}, which has no effect without --do_train.")
    if named and not wants_last:
        return named_checkpoint(Path(named), training.world_size)
    folder = Path(training.output_dir)
    found = newest_checkpoint(folder, training.world_size) if training.do_train and folder.is_dir() else None
    if found is None and wants_last:
        raise ValueError(f"--resume_from_checkpoint is {named}, and {folder} holds no checkpoint that is whole.")
    if found is None:
        return None
    if training.save_only_model:
        raise ValueError(
            f"--save_only_model left no optimizer state in {found}, so the run cannot go on from it: name a new "
            "--output_dir."
        )
    logger.info(f"Resuming from {found}.")
    return found


def named_checkpoint(checkpoint: Path, num_processes: int) -> str:
    """Return a checkpoint that the user named.

    Raises:
        ValueError: If it is none, or of another number of processes.
    """
    if not is_whole(checkpoint, num_processes):
        raise ValueError(
            f"--resume_from_checkpoint is {checkpoint}, which is no whole checkpoint: name a folder checkpoint-N of a "
            "run, or give True for the last one in --output_dir."
        )
    return str(checkpoint)


def newest_checkpoint(folder: Path, num_processes: int) -> str | None:
    """Return the newest whole checkpoint of a folder, if it holds one.

    Raises:
        ValueError: If it is of another number of processes, or the folder holds something else and no checkpoint.
    """
    steps = checkpoints(folder)
    for _, checkpoint in sorted(steps.items(), reverse=True):
        if is_whole(checkpoint, num_processes):
            return str(checkpoint)
        logger.warning(f"{checkpoint} was not written to its end and is passed over.")
    foreign = sorted({path.name for path in folder.iterdir()} - {path.name for path in steps.values()})
    if set(foreign) - IGNORED:
        names = ", ".join(foreign[:3])
        raise ValueError(f"{folder} holds {names} but no checkpoint to resume from; name a new --output_dir.")
    return None


def checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints of a folder by their step, whole or not."""
    return {int(match[1]): path for path in folder.iterdir() if (match := CHECKPOINT.fullmatch(path.name))}


def is_whole(checkpoint: Path, num_processes: int) -> bool:
    """Tell whether a checkpoint was written to its end.

    The Trainer's state is written last, by the first process; the others write their random state meanwhile.

    Raises:
        ValueError: If it was written by another number of processes, whose batches and random states these cannot
            go on with.
    """
    if read_state(checkpoint) is None or not all(map(is_readable, checkpoint.iterdir())):
        return False
    wrote = num_writers(checkpoint)
    if wrote is None:  # only a process of several leaves no whole set of random states
        return num_processes == 1 and not list(checkpoint.glob("rng_state_*.pth"))
    if wrote != num_processes:
        raise ValueError(
            f"{checkpoint} was written by {wrote} process{'es' if wrote > 1 else ''}, and this run has "
            f"{num_processes}: start it with {wrote}, or name a new --output_dir."
        )
    return True


def is_readable(file: Path) -> bool:
    """Tell whether a file of weights, or of a state that torch saved, was written to its end; others are not read."""
    if file.suffix == ".safetensors":
        try:
            tensor_names(file)
        except ValueError:
            return False
    return file.suffix != ".pt" or is_zipfile(file)


def num_writers(checkpoint: Path) -> int | None:
    """Return how many processes wrote a checkpoint, by the random states in it; None if one of them is missing."""
    if is_zipfile(checkpoint / "rng_state.pth"):
        return 1
    found = {int(match[1]): file for file in checkpoint.iterdir() if (match := RANDOM_STATE.fullmatch(file.name))}
    is_complete = len(found) > 1 and set(found) == set(range(len(found)))
    return len(found) if is_complete and all(map(is_zipfile, found.values())) else None


def read_state(folder: Path) -> dict[str, Any] | None:
    """Read the Trainer's state in a folder; None if there is none that is whole."""
    try:
        state = read_json(folder / STATE)
    except (OSError, ValueError):
        return None
    return state if state.keys() >= NEEDED_OF_STATE else None


def tokens_seen(checkpoint: str | None) -> int:
    """Return how many tokens a run had read at a checkpoint, where it counted them; none without a checkpoint."""
    state = None if checkpoint is None else read_state(Path(checkpoint))
    return state["num_input_tokens_seen"] if state else 0
