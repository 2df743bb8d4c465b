"""What a run logs on its way: the curves of its losses, and a line per minute for a reader."""

import math
import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging


logger = logging.get_logger(__name__)

TRAINING, HELD_OUT = "training", "held out"  # labels of curves
SECONDS_BETWEEN_LINES = 60.0


def loss_curves(state: TrainerState) -> dict[str, list[tuple[float, float]]]:
    """Return the losses that a run has logged, as points (step, loss) under what they are of."""
    names = {"loss": TRAINING, "eval_loss": HELD_OUT}
    curves = {
        label: [(entry["step"], entry[name]) for entry in state.log_history if name in entry]
        for name, label in names.items()
    }
    return {label: points for label, points in curves.items() if len(points) > 1}


def perplexity(loss: float) -> float:
    """Return the perplexity of a mean loss in nats a token; infinity where it is larger than any number."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class ProgressLines(TrainerCallback):
    """Log how far a training is: a line about once a minute, and one after each evaluation.

    Only the first process logs. What it logs needs no other process, so that the clock decides nothing but the log.

    Args:
        seconds: Least time between two lines of the first kind.
    """

    def __init__(self, seconds: float = SECONDS_BETWEEN_LINES) -> None:
        self.seconds = seconds
        self.start = self.last_line = 0.0
        self.first_step = 0
        self.loss: torch.Tensor | float = 0.0
        self.steps = 0

    def add_loss(self, loss: torch.Tensor) -> None:
        """Add the loss of one batch, as `training_step` returns it: a share of the loss of its step."""
        self.loss = self.loss + loss.detach()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the clock."""
        self.start = self.last_line = time.monotonic()
        self.first_step = state.global_step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log a line if the last one is old enough."""
        self.steps += 1
        now = time.monotonic()
        if not state.is_world_process_zero or now - self.last_line < self.seconds:
            return
        loss = float(self.loss) / self.steps
        # a smoothed loss is not one of tokens, and has no perplexity
        words = "" if args.label_smoothing_factor else f", perplexity {perplexity(loss):,.1f}"
        left = (now - self.start) * (state.max_steps - state.global_step) / (state.global_step - self.first_step)
        logger.info(
            f"Step {state.global_step} of {state.max_steps} ({state.global_step / state.max_steps:.0%}): training "
            f"loss {loss:.3f}{words}; about {left / 60:.1f} minutes left."
        )
        self.loss, self.steps, self.last_line = 0.0, 0, now

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Log the held-out perplexity while the training goes on."""
        is_on_the_way = state.global_step < state.max_steps
        if state.is_world_process_zero and is_on_the_way and metrics and "eval_loss" in metrics:
            logger.info(
                f"Step {state.global_step} of {state.max_steps} ({state.global_step / state.max_steps:.0%}): held-out "
                f"perplexity {perplexity(metrics['eval_loss']):,.1f}."
            )
