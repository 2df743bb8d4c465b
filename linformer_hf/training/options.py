"""Options of the Trainer that need each other, or would train nothing, checked before the work begins."""

from collections.abc import Collection

from transformers import EarlyStoppingCallback, TrainingArguments

from ..common.options import check_counts, refuse_unused


MEASURED_BY_THE_TRAINER = {"loss", "runtime", "samples_per_second", "steps_per_second"}


def check_training_counts(training: TrainingArguments) -> None:
    """Check the Trainer's options that count something in training, which it finds late or takes for something else.

    Raises:
        ValueError: At the first that trains nothing.
    """
    names = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
    check_counts({name: getattr(training, name) for name in names})
    if training.max_steps == 0 or (training.max_steps < 0 and training.num_train_epochs <= 0):
        name = "max_steps" if training.max_steps == 0 else "num_train_epochs"
        raise ValueError(
            f"--{name} is {getattr(training, name)}, which trains nothing; without --do_train it measures."
        )


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
