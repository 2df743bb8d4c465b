"""The Trainer of masked words: short blocks, new masks, and a held-out loss that counts tokens."""

import json

import pytest
import torch
from conftest import assert_close
from pretraining_tasks import OF_A_TRAINED_MODEL, arguments, training, write_corpus
from torch.nn import functional as F
from transformers import EvalPrediction

from linformer_hf.training.pretraining import pretrain
from linformer_hf.training.pretraining_trainer import PretrainingTrainer, example_losses, mean_token_loss


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus.txt")


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """The folder of a model, with a checkpoint from its way."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    pretrain(arguments(corpus, line_by_line=True), training(folder, max_steps=10, save_steps=5, do_eval=False))
    return folder


def test_the_first_steps_see_short_blocks_of_the_same_tokens(corpus, tmp_path, monkeypatch):
    shapes = []
    step = PretrainingTrainer.compute_loss

    def watch(self, model, inputs, **kwargs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return step(self, model, inputs, **kwargs)

    monkeypatch.setattr(PretrainingTrainer, "compute_loss", watch)
    pretrain(
        arguments(corpus, short_seq_length=8, short_share=0.5),
        training(tmp_path / "short", max_steps=6, do_eval=False, per_device_train_batch_size=4),
    )
    assert shapes == [(16, 8)] * 3 + [(4, 32)] * 3


def test_losses_of_examples_are_those_of_their_tokens_for_a_sparse_and_a_full_head():
    logits = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[-100, 1, 2, -100, 3], [-100] * 5, [4, -100, -100, -100, 6]])
    expected = [
        sum(F.cross_entropy(logits[row, place], labels[row, place]) for place in places)
        for row, places in enumerate([[1, 2, 4], [], [0, 4]])
    ]
    for given in (logits, logits[labels != -100]):
        sums, counts = example_losses(given, labels)
        assert_close(sums, torch.tensor([float(value) for value in expected]))
        assert counts.tolist() == [3, 0, 2]
    outcome = EvalPrediction(predictions=sums.numpy(), label_ids=counts.numpy())
    assert mean_token_loss(outcome)["token_loss"] == pytest.approx(float(sum(expected)) / 5)


def test_the_perplexity_does_not_depend_on_how_examples_meet_in_batches(corpus, trained, tmp_path):
    """Lines of several lengths hide several tokens each, so that a mean of batches is not one of tokens."""
    lines = [f"The {'very ' * (number % 9)}old owl of house {number} sleeps." for number in range(40)]
    (tmp_path / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    found = [
        pretrain(
            arguments(
                corpus,
                validation_file=[str(tmp_path / "lines.txt")],
                train_file=None,
                line_by_line=True,
                model_name_or_path=str(trained),
                **OF_A_TRAINED_MODEL,
            ),
            training(tmp_path / str(size), do_train=False, per_device_eval_batch_size=size),
        )
        for size in (1, 7, 40)
    ]
    for name in ("perplexity", "hidden_perplexity"):
        assert [numbers[name] for numbers in found] == pytest.approx([found[0][name]] * 3, rel=1e-5)


def test_smoothed_labels_do_not_enter_the_perplexity(corpus, trained, tmp_path):
    given = arguments(corpus, line_by_line=True, model_name_or_path=str(trained), **OF_A_TRAINED_MODEL)
    plain, smoothed = (
        pretrain(given, training(tmp_path / str(factor), do_train=False, label_smoothing_factor=factor))
        for factor in (0.0, 0.3)
    )
    assert smoothed["perplexity"] == pytest.approx(plain["perplexity"], rel=1e-6)


def test_no_checkpoint_keeps_that_training_computes_the_labelled_tokens_alone(trained):
    for file in (trained / "checkpoint-5" / "config.json", trained / "config.json"):
        assert json.loads(file.read_text())["sparse_prediction"] is False
