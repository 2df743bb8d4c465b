"""Options of the Trainer that would have no effect, or train nothing, are refused."""

import pytest
from finetuning_tasks import training
from transformers import EarlyStoppingCallback

from linformer_hf.training.options import check_best_metric, check_training_counts, early_stopping


@pytest.mark.parametrize("prefix", ["", "eval_"])
def test_the_metric_of_the_best_model_is_one_that_evaluations_report(tmp_path, prefix):
    check_best_metric(training(tmp_path), ["accuracy"])
    check_best_metric(training(tmp_path, metric_for_best_model=f"{prefix}accuracy"), ["accuracy"])
    check_best_metric(training(tmp_path, metric_for_best_model=f"{prefix}loss"), ["accuracy"])
    with pytest.raises(ValueError, match=f"is {prefix}f2, which evaluations do not report; choose among loss, accur"):
        check_best_metric(training(tmp_path, metric_for_best_model=f"{prefix}f2"), ["accuracy"])


def test_an_error_is_not_taken_for_a_score(tmp_path):
    names = ["mean_squared_error", "pearson"]
    with pytest.raises(ValueError, match="better where it is smaller: give --greater_is_better False"):
        check_best_metric(training(tmp_path, metric_for_best_model="mean_squared_error"), names, names[:1])
    smaller = training(tmp_path, metric_for_best_model="mean_squared_error", greater_is_better=False)
    check_best_metric(smaller, names, names[:1])


def test_early_stopping_needs_a_training_that_is_evaluated(tmp_path):
    assert early_stopping(None, training(tmp_path)) == []
    with pytest.raises(ValueError, match="--early_stopping_patience is 2, .* no effect without --eval_strategy"):
        early_stopping(2, training(tmp_path))
    with pytest.raises(ValueError, match="no effect without --do_train"):
        early_stopping(2, training(tmp_path, do_train=False))
    with pytest.raises(ValueError, match="--early_stopping_patience is 0; it must be 1 or more"):
        early_stopping(0, training(tmp_path, eval_strategy="epoch"))
    options = training(tmp_path, eval_strategy="epoch")
    (callback,) = early_stopping(2, options)
    assert isinstance(callback, EarlyStoppingCallback)
    assert (options.metric_for_best_model, options.greater_is_better) == ("loss", False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_device_train_batch_size": 0}, "--per_device_train_batch_size is 0; it must be at least 1"),
        ({"gradient_accumulation_steps": 0}, "--gradient_accumulation_steps is 0; it must be at least 1"),
        ({"max_steps": 0}, "--max_steps is 0, which trains nothing; without --do_train it measures"),
        ({"max_steps": -1, "num_train_epochs": 0.0}, "--num_train_epochs is 0.0, which trains nothing"),
    ],
)
def test_counts_that_train_nothing_are_refused(tmp_path, options, message):
    check_training_counts(training(tmp_path))
    with pytest.raises(ValueError, match=message):
        check_training_counts(training(tmp_path, **options))
