"""A masked-language-model run from text to a saved model, as a user starts it."""

import json

import pytest
import torch
from conftest import assert_same_tensors
from pretraining_tasks import OF_A_TRAINED_MODEL, arguments, training, write_corpus
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer, TrainerState, pipeline

from linformer_hf import LinformerForMaskedLM
from linformer_hf.common.loading import model_length
from linformer_hf.conversion.projections import start_projections
from linformer_hf.training.pretraining import pretrain, report
from linformer_hf.training.progress import loss_curves


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus.txt")


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    metrics = pretrain(arguments(corpus, line_by_line=True), training(folder, max_steps=150))
    return folder, metrics


def test_a_run_learns_more_than_frequencies(run):
    _, metrics = run
    assert metrics["perplexity"] < metrics["hidden_perplexity"] < 0.7 * metrics["unigram_perplexity"]
    assert metrics["unigram_perplexity"] < metrics["initial_perplexity"]


def test_what_was_saved_fills_in_words(run):
    folder, _ = run
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 32
    assert not model.config.sparse_prediction
    fillings = pipeline("fill-mask", model=model, tokenizer=tokenizer)("The cat of house 7 is<mask> and sleeps.")
    assert fillings[0]["score"] > fillings[-1]["score"] > 0


def test_a_run_leaves_its_record_and_its_card(run):
    folder, metrics = run
    record = json.loads((folder / "results.json").read_text())
    assert record["numbers"]["perplexity"] == metrics["perplexity"]
    assert record["numbers"]["seconds"] > 0
    assert record["arguments"]["vocab_size"] == 300
    assert record["versions"]["torch"] == torch.__version__
    assert "fill-mask" in (folder / "README.md").read_text()


def test_evaluation_alone_repeats_the_perplexity_and_needs_no_training_text(run, corpus, tmp_path):
    folder, metrics = run
    again = pretrain(
        arguments(corpus, model_name_or_path=str(folder), line_by_line=True, **OF_A_TRAINED_MODEL),
        training(tmp_path / "eval", do_train=False),
    )
    assert again["perplexity"] == pytest.approx(metrics["perplexity"], rel=1e-5)
    assert again["hidden_perplexity"] == pytest.approx(metrics["hidden_perplexity"], rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"line_by_line": True},
        {"whole_word_mask": True},
        {"streaming": True, "max_eval_samples": 40},
        {"projected_length": [8, 4], "projection_sharing": "key_value"},
        {"projection_type": "mean_pool"},
        {"use_muon": True, "muon_learning_rate": 5e-3},
    ],
    ids=lambda changes: ", ".join(changes),
)
def test_every_way_to_make_examples_and_to_learn_from_them_trains(corpus, tmp_path, changes):
    metrics = pretrain(arguments(corpus, **changes), training(tmp_path / "run", max_steps=3))
    assert metrics["perplexity"] < metrics["initial_perplexity"]


def test_a_run_goes_on_from_a_checkpoint_of_another(run, corpus, tmp_path):
    folder, metrics = run
    further = pretrain(
        arguments(corpus, model_name_or_path=str(folder), line_by_line=True, **OF_A_TRAINED_MODEL),
        training(tmp_path / "more"),
    )
    assert further["initial_perplexity"] == pytest.approx(metrics["perplexity"], rel=1e-5)


def test_a_slot_of_a_model_that_goes_on_reads_no_token_before_its_first_one(run, corpus, tmp_path):
    folder, _ = run
    model = LinformerForMaskedLM.from_pretrained(folder)
    start_projections(model, "window")
    model.save_pretrained(tmp_path / "start")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "start")
    options = {**OF_A_TRAINED_MODEL, "model_name_or_path": str(tmp_path / "start"), "line_by_line": True}
    pretrain(arguments(corpus, **options), training(tmp_path / "more", max_steps=3))
    before = model.linformer.projection.weight
    after = LinformerForMaskedLM.from_pretrained(tmp_path / "more").linformer.projection.weight
    is_leading = (before == 0).cumprod(-1).bool()
    assert is_leading.sum() > 50 and not after[is_leading].any()
    assert (after != before).any()


OF_A_MODEL = {**OF_A_TRAINED_MODEL, "model_name_or_path": "somewhere"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 4096}, "block of 4,?096"),
        ({"short_seq_length": 7}, "--short_seq_length is 7.*divide the block length 32"),
        ({"short_seq_length": 8, "line_by_line": True}, "--short_seq_length is 8, .*--line_by_line"),
        ({"short_share": 0.5}, "--short_share is 0.5, which has no effect without --short_seq_length"),
        ({"short_seq_length": 8, "short_share": 7.0}, "--short_share is 7.0; it must lie between 0 and 1"),
        ({"mlm_probability": 0.0}, "--mlm_probability is 0.0"),
        ({"projected_length": [64]}, "projected_length.*64.*32"),
        ({"projected_length": [8, 8, 8]}, "projected_length.*3 numbers"),
        ({"projection_sharing": "all"}, "projection_sharing.*'all'.*layerwise"),
        ({"config_overrides": "hidden_size=wide"}, "wide"),
        ({"config_overrides": "depth=2"}, "depth"),
        ({"muon_learning_rate": 0.1}, "--muon_learning_rate is 0.1.*--use_muon"),
        ({"linformer_init": True}, "--linformer_init is True, .*--model_type"),
        ({**OF_A_MODEL, "projected_length": [16]}, "--projected_length is 16, .*--model_name_or_path"),
        ({**OF_A_MODEL, "projection_type": "conv"}, "--projection_type is conv, .*--model_name_or_path"),
        ({**OF_A_MODEL, "projection_sharing": "none"}, "--projection_sharing is none, .*--model_name_or_path"),
        ({**OF_A_MODEL, "vocab_size": 300}, "--vocab_size is 300, .*--model_name_or_path"),
        ({**OF_A_MODEL, "config_overrides": "hidden_size=64"}, "--config_overrides is .*--model_name_or_path"),
        ({**OF_A_MODEL, "model_type": "roberta"}, "--model_type is roberta, .*--model_name_or_path"),
        ({"tokenizer_name": "somewhere"}, "--vocab_size is 300, .*--tokenizer_name"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_written(corpus, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        pretrain(arguments(corpus, **changes), training(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", [{"whole_word_mask": True}, {"short_seq_length": 8}, {"use_muon": True}])
def test_options_of_training_are_refused_without_it(run, corpus, tmp_path, option):
    folder, _ = run
    given = arguments(corpus, model_name_or_path=str(folder), **OF_A_TRAINED_MODEL, **option)
    with pytest.raises(ValueError, match=f"--{min(option)} is .* without --do_train"):
        pretrain(given, training(tmp_path / "run", do_train=False))


def test_an_unknown_metric_of_the_best_model_is_found_before_the_work_begins(corpus, tmp_path):
    best = {"metric_for_best_model": "accuracy", "eval_strategy": "steps", "load_best_model_at_end": True}
    with pytest.raises(ValueError, match="--metric_for_best_model is accuracy, .* choose among loss"):
        pretrain(arguments(corpus, train_file=["nowhere.txt"]), training(tmp_path / "run", **best))


def test_a_run_without_a_task_is_refused(corpus, tmp_path):
    with pytest.raises(ValueError, match="Nothing is asked for: give --do_train, --do_eval"):
        pretrain(arguments(corpus), training(tmp_path / "run", do_train=False, do_eval=False))
    with pytest.raises(ValueError, match="--model_name_or_path"):
        pretrain(arguments(corpus), training(tmp_path / "run", do_train=False))


@pytest.mark.parametrize("model_type", ["roberta", "bert"])
def test_a_dense_twin_starts_from_nothing_and_reads_as_much(corpus, tmp_path, model_type):
    given = arguments(corpus, model_type=model_type, projected_length=None, linformer_init=model_type == "roberta")
    metrics = pretrain(given, training(tmp_path / "run", max_steps=3))
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run")
    assert model.config.model_type == model_type
    assert model_length(model) == 32
    assert metrics["perplexity"] < metrics["initial_perplexity"]


@pytest.mark.parametrize(
    "changes",
    [{"bf16": True}, {"activation_checkpointing": True}, {"report_to": "tensorboard"}],
    ids=lambda changes: ", ".join(changes),
)
def test_the_options_of_the_trainer_apply(corpus, tmp_path, changes):
    metrics = pretrain(arguments(corpus), training(tmp_path / "run", max_steps=3, **changes))
    assert metrics["perplexity"] < metrics["initial_perplexity"]
    assert list((tmp_path / "run").rglob("events.out.*")) or "report_to" not in changes


def test_a_compiled_run_ends_with_the_weights_of_a_plain_one(corpus, tmp_path):
    weights = []
    for options in ({}, {"torch_compile": True, "torch_compile_backend": "aot_eager"}):
        folder = tmp_path / str(len(options))
        pretrain(arguments(corpus), training(folder, max_steps=2, do_eval=False, **options))
        weights.append(load_file(folder / "model.safetensors"))
    assert_same_tensors(*weights, torch.float32)


def test_a_run_counts_its_tokens_and_draws_its_curves(corpus, tmp_path):
    steps = {"max_steps": 6, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2}
    metrics = pretrain(arguments(corpus), training(tmp_path / "run", **steps))
    tokens = 6 * 8 * 32
    assert metrics["tokens_per_second"] == pytest.approx(tokens / metrics["train_runtime"])
    state = TrainerState.load_from_json(tmp_path / "run" / "trainer_state.json")
    curves = loss_curves(state)
    assert [step for step, _ in curves["training"]] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in curves["held out"]] == [0, 2, 4, 6]
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_no_longer_improves_stops_early(corpus, tmp_path):
    steps = {"max_steps": 8, "learning_rate": 0.0, "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    pretrain(arguments(corpus, early_stopping_patience=2), training(tmp_path / "run", **steps))
    state = TrainerState.load_from_json(tmp_path / "run" / "trainer_state.json")
    assert state.global_step == 3  # the first evaluation after a step is the best


def test_a_diverged_run_has_an_infinite_perplexity_in_its_record_and_its_card(corpus, tmp_path):
    options = {"max_steps": 1, "learning_rate": 1e4}
    metrics = pretrain(arguments(corpus), training(tmp_path / "run", **options))
    assert metrics["perplexity"] == float("inf")
    record = json.loads((tmp_path / "run" / "results.json").read_text(), parse_constant=pytest.fail)
    assert float(record["numbers"]["perplexity"]) == float("inf")
    assert "perplexity" in (tmp_path / "run" / "README.md").read_text()


def test_what_was_not_measured_is_not_reported():
    assert "frequencies" not in report({"perplexity": 9.0, "hidden_perplexity": 10.0})
    said = report({"perplexity": 9.0, "hidden_perplexity": 10.0, "unigram_perplexity": 30.0, "initial_perplexity": 99})
    assert "9.0, 99.0 before training" in said and "30.0 by guessing from frequencies" in said
