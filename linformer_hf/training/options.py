"""Options that contradict each other or would have no effect, found before the work begins."""

from collections.abc import Collection, Mapping
from typing import Any

from transformers import EarlyStoppingCallback, TrainingArguments


MEASURED_BY_THE_TRAINER = {"loss", "runtime", "samples_per_second", "steps_per_second"}


def refuse_unused(options: Mapping[str, Any], reason: str) -> None:
    """Refuse options that were given though they have no effect.

    Args:
        options: Their values by name; None, False and an empty list mean that an option was not given.
        reason: Why they have none; it names the other option, as in "without --do_train".

    Raises:
        ValueError: At the first one that was given.
    """
    for name, value in options.items():
        if value is None or value is False or value == []:
            continue
        shown = " ".join(map(str, value)) if isinstance(value, list) else value
        raise ValueError(f"--{name} is {shown}, which has no effect {reason}. Leave it out.")


def check_share(name: str, share: float | None) -> None:
    """Check an option that is a share of something.

    Raises:
        ValueError: If it does not lie between 0 and 1.
    """
    if share is not None and not 0 <= share <= 1:
        raise ValueError(f"--{name} is {share}; it must lie between 0 and 1.")


def check_best_metric(
    training: TrainingArguments, names: Collection[str], lower_is_better: Collection[str] = ()
) -> None:
    """Check that evaluations will report the metric by which the Trainer tells the best model.

    Args:
        training: The Trainer's own arguments.
        names: What evaluations report besides the Trainer's own numbers.
        lower_is_better: Those of them that get better by getting smaller.

    Raises:
        ValueError: If there is no such metric, or the Trainer would take the worst model for the best.
    """
    asked = training.metric_for_best_model
    if asked is None:
        return
    name = asked.removeprefix("eval_")
    if name not in {*names, *MEASURED_BY_THE_TRAINER}:
        known = ", ".join(["loss", *names])
        raise ValueError(f"--metric_for_best_model is {asked}, which evaluations do not report; choose among {known}.")
    if name in {*lower_is_better, "loss"} and training.greater_is_better:
        raise ValueError(
            f"--metric_for_best_model is {asked}, which is better where it is smaller: give --greater_is_better False."
        )


def early_stopping(patience: int | None, training: TrainingArguments) -> list[EarlyStoppingCallback]:
    """Return the callback that stops a training early, if it is asked for.

    Args:
        patience: How many evaluations may pass without a better one.
        training: The Trainer's own arguments; the held-out loss becomes its metric where none is named.

    Raises:
        ValueError: If it would have no effect.
    """
    if patience is None:
        return []
    if patience < 1:
        raise ValueError(f"--early_stopping_patience is {patience}; it must be 1 or more.")
    for option, is_given in (("--do_train", training.do_train), ("--eval_strategy", training.eval_strategy != "no")):
        if not is_given:
            refuse_unused({"early_stopping_patience": patience}, f"without {option}")
    if training.metric_for_best_model is None:
        training.metric_for_best_model, training.greater_is_better = "loss", False
    return [EarlyStoppingCallback(patience)]
