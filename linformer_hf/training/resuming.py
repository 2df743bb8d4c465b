"""Where a run resumes, and what it has logged so far."""

import json
import re
from pathlib import Path
from zipfile import is_zipfile

from transformers import TrainerState, TrainingArguments
from transformers.utils import logging


logger = logging.get_logger(__name__)

TRAINING, HELD_OUT = "training", "held out"  # labels of curves
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
LEFT_BY_THE_KILLED = {"runs"}  # TensorBoard's folder is there before the first checkpoint is


def find_checkpoint(training: TrainingArguments) -> str | None:
    """Return the newest whole checkpoint to resume from, if the output folder holds one.

    A run that was killed may leave a half-written checkpoint, which is passed over, or none at all: then it starts
    again from the beginning.

    Raises:
        ValueError: If the folder holds something else.
    """
    if training.resume_from_checkpoint:
        return training.resume_from_checkpoint
    folder = Path(training.output_dir)
    if not training.do_train or not folder.is_dir():
        return None
    steps = {int(match[1]): path for path in folder.iterdir() if (match := CHECKPOINT.fullmatch(path.name))}
    for _, checkpoint in sorted(steps.items(), reverse=True):
        if is_whole(checkpoint, training.world_size):
            logger.info(f"Resuming from {checkpoint}.")
            return str(checkpoint)
        logger.warning(f"{checkpoint} was not written to its end and is passed over.")
    foreign = sorted({path.name for path in folder.iterdir()} - {path.name for path in steps.values()})
    if set(foreign) - LEFT_BY_THE_KILLED:
        names = ", ".join(foreign[:3])
        raise ValueError(f"{folder} holds {names} but no checkpoint to resume from; name a new --output_dir.")
    return None


def is_whole(checkpoint: Path, num_processes: int) -> bool:
    """Tell whether a checkpoint was written to its end.

    The Trainer's state is written last, by the first process; the others write their random state meanwhile.
    """
    try:
        json.loads((checkpoint / "trainer_state.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    random_states = [checkpoint / f"rng_state_{rank}.pth" for rank in range(num_processes) if num_processes > 1]
    return all(is_zipfile(file) for file in random_states)


def tokens_seen(checkpoint: str | None) -> int:
    """Return how many tokens a run had read at a checkpoint, where it counted them; none without a checkpoint."""
    if checkpoint is None:
        return 0
    return json.loads(Path(checkpoint, "trainer_state.json").read_text("utf-8"))["num_input_tokens_seen"]


def loss_curves(state: TrainerState) -> dict[str, list[tuple[float, float]]]:
    """Return the losses that a run has logged, as points (step, loss) under what they are of."""
    names = {"loss": TRAINING, "eval_loss": HELD_OUT}
    curves = {
        label: [(entry["step"], entry[name]) for entry in state.log_history if name in entry]
        for name, label in names.items()
    }
    return {label: points for label, points in curves.items() if len(points) > 1}
