"""What a run logs on its way, for people and for curves."""

import math

import pytest
import torch
from finetuning_tasks import training
from transformers import TrainerControl, TrainerState

from linformer_hf.training import progress
from linformer_hf.training.progress import ProgressLines, loss_curves, perplexity


def test_a_loss_beyond_all_numbers_has_an_infinite_perplexity():
    assert perplexity(math.log(7)) == pytest.approx(7)
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_curves_hold_the_losses_that_were_logged():
    state = TrainerState(
        log_history=[
            {"step": 0, "eval_loss": 9.0},
            {"step": 5, "loss": 8.0},
            {"step": 10, "loss": 7.0},
            {"step": 10, "eval_loss": 6.0},
            {"step": 10, "train_runtime": 3.0},
        ]
    )
    assert loss_curves(state) == {"training": [(5, 8.0), (10, 7.0)], "held out": [(0, 9.0), (10, 6.0)]}
    assert "training" not in loss_curves(TrainerState(log_history=[{"step": 5, "loss": 8.0}]))


@pytest.fixture
def clock(monkeypatch):
    """Let the seconds be told by the test."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_a_minute_says_the_loss_since_the_last_one_and_what_is_left(tmp_path, clock, caplog):
    lines, control = ProgressLines(), TrainerControl()
    state = TrainerState(global_step=100, max_steps=200, is_world_process_zero=True)
    options = training(tmp_path)
    with caplog.at_level("INFO", logger="linformer_hf"):
        lines.on_train_begin(options, state, control)  # resumed at step 100
        for step, loss in ((110, 3.0), (120, 1.0), (130, 0.0)):
            clock[0] += 30
            state.global_step = step
            lines.add_loss(torch.tensor(loss))
            lines.on_step_end(options, state, control)
        clock[0] += 30
        state.global_step = 140
        lines.add_loss(torch.tensor(0.0))
        lines.on_step_end(options, state, control)
    assert caplog.messages == [
        "Step 120 of 200 (60%): training loss 2.000, perplexity 7.4; about 4.0 minutes left.",
        "Step 140 of 200 (70%): training loss 0.000, perplexity 1.0; about 3.0 minutes left.",
    ]


def test_a_smoothed_loss_has_no_perplexity_and_one_process_speaks(tmp_path, clock, caplog):
    lines, control = ProgressLines(), TrainerControl()
    options = training(tmp_path, label_smoothing_factor=0.1)
    with caplog.at_level("INFO", logger="linformer_hf"):
        for is_first in (False, True):
            state = TrainerState(global_step=0, max_steps=20, is_world_process_zero=is_first)
            lines.on_train_begin(options, state, control)
            clock[0] += 60
            state.global_step = 10
            lines.add_loss(torch.tensor(2.0))
            lines.on_step_end(options, state, control)
    assert [message.partition(";")[0] for message in caplog.messages] == ["Step 10 of 20 (50%): training loss 2.000"]


def test_each_evaluation_on_the_way_says_its_perplexity(tmp_path, caplog):
    lines, control = ProgressLines(), TrainerControl()
    with caplog.at_level("INFO", logger="linformer_hf"):
        for step in (0, 10, 20):
            state = TrainerState(global_step=step, max_steps=20, is_world_process_zero=True)
            lines.on_evaluate(training(tmp_path), state, control, metrics={"eval_loss": math.log(50 - step)})
    assert caplog.messages == [
        "Step 0 of 20 (0%): held-out perplexity 50.0.",
        "Step 10 of 20 (50%): held-out perplexity 40.0.",
    ]
