"""What every training run asks: where it resumes, what its model can read, and how its loss is scaled."""

import inspect
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerState, TrainingArguments
from transformers.utils import logging


logger = logging.get_logger(__name__)

TRAINING, HELD_OUT = "training", "held out"  # labels of curves
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
LEFT_BY_THE_KILLED = {"runs"}  # TensorBoard's folder is there before the first checkpoint is


@dataclass
class LoadingArguments:
    """How a model and its tokenizer are fetched."""

    model_revision: str = field(
        default="main", metadata={"help": "Which branch, tag or commit of a model on the Hub to load."}
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Run the code that a model on the Hub brings along. Read it first."}
    )

    def loading(self) -> dict[str, Any]:
        """Return what `from_pretrained` is to be told."""
        return {"revision": self.model_revision, "trust_remote_code": self.trust_remote_code}


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


def model_length(model: PreTrainedModel) -> int:
    """Return the longest input of a model in tokens; RoBERTa's table has rows that no token uses."""
    embeddings = getattr(model.base_model, "embeddings", None)
    table = getattr(embeddings, "position_embeddings", None)
    padding_row = getattr(table, "padding_idx", None)
    return model.config.max_position_embeddings - (0 if padding_row is None else padding_row + 1)


def check_length(max_seq_length: int | None, model: PreTrainedModel) -> int:
    """Return the length of an example in tokens: what is asked for, or all that the model reads.

    Raises:
        ValueError: If it is more than the model reads.
    """
    longest = model_length(model)
    if max_seq_length is not None and not 1 <= max_seq_length <= longest:
        raise ValueError(f"--max_seq_length is {max_seq_length}; the model reads 1 to {longest} tokens.")
    return max_seq_length or longest


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, name: str) -> None:
    """Check that the model has an embedding for each token.

    Raises:
        ValueError: If the tokenizer has more tokens than the embedding table has rows.
    """
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, the embedding table of {name} only {rows} rows; take the "
            "model's own tokenizer."
        )


def declare_loss_scaling(model: PreTrainedModel) -> None:
    """Tell the Trainer whether a model divides its loss by the items of the whole step.

    A model that takes any keyword does not yet do so. The Trainer believes it does, and would make the gradients of
    BERT and RoBERTa too large by the accumulation steps and processes.
    """
    model.accepts_loss_kwargs = "num_items_in_batch" in inspect.signature(model.forward).parameters
