"""A Linformer learns from its dense teacher: the loss, windows of long text, the run as a user starts it."""

import json
import math
from pathlib import Path

import pytest
import torch
from conftest import assert_same_tensors, random_ids
from datasets import Dataset
from dense_twins import DOCUMENTS, make_dense, make_linformer, make_tokenizer, save
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    TrainerCallback,
    TrainingArguments,
)

from linformer_hf.common.heads import SEQUENCE_CLASSIFICATION
from linformer_hf.training.distillation import DistillationArguments, distill, load_models, warn_of_few
from linformer_hf.training.distillation_trainer import DistillationTrainer, draw_length


ROOT = Path(__file__).parents[2]
TOKENIZER = make_tokenizer()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "corpus.txt"
    file.write_text("\n".join(DOCUMENTS) + "\n", encoding="utf-8")
    return str(file)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folders of a Linformer without a head and of its teacher."""
    folder = tmp_path_factory.mktemp("pair")
    dense = make_dense(BertModel, TOKENIZER)
    return save(make_linformer(dense), TOKENIZER, folder / "student"), save(dense, TOKENIZER, folder / "teacher")


@pytest.fixture(scope="module")
def word_pair(tmp_path_factory):
    """The same with heads for masked words; the Linformer reads twice as far."""
    folder = tmp_path_factory.mktemp("words")
    dense = make_dense(BertForMaskedLM, TOKENIZER)
    student = make_linformer(dense, max_position_embeddings=64, projected_length=16)
    return save(student, TOKENIZER, folder / "student"), save(dense, TOKENIZER, folder / "teacher")


def arguments(corpus, pair, **changes):
    defaults = {"train_file": [corpus], "model_name_or_path": pair[0], "teacher_name_or_path": pair[1]}
    return DistillationArguments(**{**defaults, "validation_share": 0.2, **changes})


def training(folder, **changes):
    defaults = {
        "output_dir": str(folder),
        "do_train": True,
        "do_eval": True,
        "max_steps": 6,
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 8,
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(**{**defaults, **changes})


@pytest.fixture(scope="module")
def run(corpus, pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, distill(arguments(corpus, pair), training(folder, max_steps=40))


def test_a_student_comes_nearer_to_its_teacher(run, corpus, pair):
    folder, metrics = run
    assert 1 - metrics["embedding_cosine"] < 0.5 * (1 - metrics["initial_embedding_cosine"])
    assert metrics["hidden_error"] < 0.7 * metrics["initial_hidden_error"]
    assert metrics["hidden_error"] == pytest.approx((metrics["hidden_error_1"] + metrics["hidden_error_2"]) / 2)
    record = json.loads((folder / "results.json").read_text())
    assert record["numbers"]["embedding_cosine"] == metrics["embedding_cosine"]
    assert record["about"]["pipeline_tag"] == "feature-extraction"
    assert "linformer" in (folder / "README.md").read_text()


def test_evaluation_alone_repeats_the_numbers_and_they_are_right(run, corpus, pair, tmp_path):
    folder, metrics = run
    again = distill(arguments(corpus, (str(folder), pair[1])), training(tmp_path / "eval", do_train=False))
    for name in ("embedding_cosine", "similarity_correlation", "hidden_error"):
        assert again[name] == pytest.approx(metrics[name], rel=1e-5)
    own = distill(arguments(corpus, pair, max_seq_length=32), training(tmp_path / "own", do_train=False))
    assert own["embedding_cosine"] == pytest.approx(metrics["initial_embedding_cosine"], rel=1e-5)


def test_words_are_taught_in_windows_beyond_the_teachers_length(corpus, word_pair, tmp_path):
    metrics = distill(arguments(corpus, word_pair), training(tmp_path / "run", max_steps=30))
    assert metrics["embedding_cosine"] > metrics["initial_embedding_cosine"]
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run")
    assert not model.config.sparse_prediction
    assert model.config.max_position_embeddings == 64
    before = load_file(Path(word_pair[0], "model.safetensors"))
    after = load_file(tmp_path / "run" / "model.safetensors")
    assert not torch.equal(after["lm_head.dense.weight"], before["lm_head.dense.weight"])
    assert metrics["eval_loss"] < divergence_without_training(corpus, word_pair, tmp_path)


def divergence_without_training(corpus, word_pair, tmp_path):
    return distill(arguments(corpus, word_pair), training(tmp_path / "none", do_train=False))["eval_loss"]


def test_a_head_that_the_teacher_lacks_is_kept_as_it_is(corpus, word_pair, pair, tmp_path):
    distill(arguments(corpus, (word_pair[0], pair[1])), training(tmp_path / "run", do_eval=False))
    before, after = (
        load_file(file) for file in (Path(word_pair[0], "model.safetensors"), tmp_path / "run" / "model.safetensors")
    )
    assert sorted(before) == sorted(after)
    assert torch.equal(after["lm_head.dense.weight"], before["lm_head.dense.weight"])
    changed = "linformer.layers.0.attention.query.weight"
    assert not torch.equal(after[changed], before[changed])


def test_a_student_trains_without_dropout_and_keeps_its_configuration(corpus, tmp_path):
    rates = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.1, "classifier_dropout": 0.3}
    dense = make_dense(BertForSequenceClassification, TOKENIZER, **rates)
    names = save(make_linformer(dense), TOKENIZER, tmp_path / "student"), save(dense, TOKENIZER, tmp_path / "teacher")
    student, teacher, head = load_models(*names, {}, {})
    assert head is SEQUENCE_CLASSIFICATION
    assert {module.p for module in student.modules() if isinstance(module, torch.nn.Dropout)} == {0.0}
    ids = random_ids(2, 32)
    assert torch.equal(student.train()(ids).logits, student.eval()(ids).logits)
    student.save_pretrained(tmp_path / "again")
    saved = json.loads((tmp_path / "again" / "config.json").read_text())
    assert {name: saved[name] for name in rates} == rates


@pytest.mark.parametrize("vary_length", [True, False])
def test_batches_are_cut_to_the_length_of_their_step(corpus, pair, tmp_path, monkeypatch, vary_length):
    shapes = []
    compute = DistillationTrainer.compute_loss

    def watch(self, model, inputs, **kwargs):
        shapes.append(inputs["input_ids"].shape[1])
        return compute(self, model, inputs, **kwargs)

    monkeypatch.setattr(DistillationTrainer, "compute_loss", watch)
    distill(arguments(corpus, pair, vary_length=vary_length), training(tmp_path / "run", do_eval=False, seed=5))
    assert shapes == [draw_length(32, 5, step) if vary_length else 32 for step in range(6)]
    assert len(set(shapes)) == (2 if vary_length else 1)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_slot_reads_no_token_before_its_first_one_unless_it_may(corpus, pair, tmp_path, keeps):
    distill(arguments(corpus, pair, keep_leading_zeros=keeps), training(tmp_path / "run", do_eval=False))
    before, after = (
        load_file(Path(folder) / "model.safetensors")["projection.weight"] for folder in (pair[0], tmp_path / "run")
    )
    is_leading = (before == 0).cumprod(-1).bool()
    assert is_leading.sum() > 50
    assert bool((after[is_leading] == 0).all()) == keeps
    assert (after[~is_leading] != before[~is_leading]).all()


def test_labels_are_taught_on_documents_of_their_own_length(corpus, tmp_path):
    dense = make_dense(BertForSequenceClassification, TOKENIZER, num_labels=3)
    student = make_linformer(dense, max_position_embeddings=64)
    names = save(student, TOKENIZER, tmp_path / "student"), save(dense, TOKENIZER, tmp_path / "teacher")
    given = arguments(corpus, names, line_by_line=True, hidden_weight=0, embedding_weight=0)
    before = distill(given, training(tmp_path / "none", do_train=False))["eval_loss"]
    after = distill(given, training(tmp_path / "run", max_steps=40))["eval_loss"]
    assert after < 0.5 * before


class Killed(Exception):
    """Stands for whatever ends a run from outside."""


class KillAt(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 5:
            raise Killed


@pytest.mark.parametrize("models", ["pair", "word_pair"])
def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(corpus, models, tmp_path, monkeypatch, request):
    given = arguments(corpus, request.getfixturevalue(models))
    options = {"max_steps": 8, "save_steps": 3, "do_eval": False}
    distill(given, training(tmp_path / "unbroken", **options))
    with monkeypatch.context() as context:
        build = DistillationTrainer.__init__
        context.setattr(
            DistillationTrainer,
            "__init__",
            lambda self, *args, callbacks, **kwargs: build(
                self, *args, callbacks=[*(callbacks or []), KillAt()], **kwargs
            ),
        )
        with pytest.raises(Killed):
            distill(given, training(tmp_path / "run", **options))
    distill(given, training(tmp_path / "run", **options))
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("run", "unbroken")]
    assert_same_tensors(*weights, what="weight")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_weight": -1.0}, "--hidden_weight is -1.0"),
        ({"hidden_weight": 0, "embedding_weight": 0, "logits_weight": 0}, "all 0"),
        ({"hidden_weight": math.inf}, "--hidden_weight is inf"),
        ({"attention_weight": math.nan}, "--attention_weight is nan"),
        ({"temperature": 0.0}, "--temperature is 0.0"),
        ({"temperature": math.nan}, "--temperature is nan"),
        ({"projection_learning_rate": math.inf}, "--projection_learning_rate is inf"),
        ({"teacher_name_or_path": "student"}, "is a linformer; take the dense encoder that .* was made from"),
        ({"model_name_or_path": "damaged"}, "weights of .*damaged are damaged: .* holds NaN or infinity"),
        ({"max_seq_length": 2}, "--max_seq_length is 2, but 2 tokens frame"),
        ({"projection_learning_rate": 0.0}, "--projection_learning_rate is 0.0"),
        ({"mlm_probability": 0.0}, "--mlm_probability is 0.0"),
        ({"max_seq_length": 33}, "--max_seq_length is 33.*1 to 32"),
        ({"model_name_or_path": "teacher"}, "is a bert, not a Linformer.*linformer convert"),
        ({"teacher_name_or_path": "wide"}, "`hidden_size` is 16 .* and 24 in"),
        ({"teacher_name_or_path": "deep"}, "`num_hidden_layers` is 2 .* and 3 in"),
        ({"teacher_name_or_path": "wordy"}, "`vocab_size` is 320 .* and 330 in"),
    ],
    ids=lambda value: ", ".join(f"{name}={item}" for name, item in value.items()) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused_before_anything_is_written(corpus, pair, tmp_path, changes, message):
    others = {"wide": {"hidden_size": 24}, "deep": {"num_hidden_layers": 3}, "wordy": {"vocab_size": 330}}
    for field in ("model_name_or_path", "teacher_name_or_path"):
        name = changes.get(field)
        if name in others:
            make_dense(BertModel, TOKENIZER, **others[name]).save_pretrained(tmp_path / name)
            changes = {**changes, field: str(tmp_path / name)}
        elif name in ("teacher", "student"):
            changes = {**changes, field: pair[name == "teacher"]}
        elif name == "damaged":
            student = AutoModel.from_pretrained(pair[0])
            student.layers[0].attention.output.weight.data[0, 0] = math.nan
            changes = {**changes, field: save(student, TOKENIZER, tmp_path / name)}
    with pytest.raises(ValueError, match=message):
        distill(arguments(corpus, pair, **changes), training(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_text_shorter_than_a_block_is_refused(pair, tmp_path):
    (tmp_path / "short.txt").write_text("One line.\nAnd another.\n")
    with pytest.raises(ValueError, match="block of 32"):
        distill(arguments(str(tmp_path / "short.txt"), pair), training(tmp_path / "run"))


def test_too_few_held_out_examples_for_a_correlation_are_warned_of(pair, corpus, tmp_path, caplog):
    (tmp_path / "short.txt").write_text("A cat and a dog. " * 10)
    warn_of_few(3, 32)
    assert "examples of up to 32 tokens" not in caplog.text
    warn_of_few(2, 32)
    assert "gives 2 examples of up to 32 tokens" in caplog.text
    for name, files, share in (("few", [str(tmp_path / "short.txt")], None), ("enough", None, 0.2)):
        caplog.clear()
        numbers = distill(
            arguments(corpus, pair, max_seq_length=32, validation_file=files, validation_share=share),
            training(tmp_path / name, do_train=False),
        )
        assert math.isnan(numbers["similarity_correlation"]) == (numbers["eval_samples"] < 3) == (files is not None)
        assert (f"gives {numbers['eval_samples']} examples of up to 32 tokens" in caplog.text) == (files is not None)


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ({"label_smoothing_factor": 0.1}, {}, "--label_smoothing_factor is 0.1, which has no effect"),
        ({}, {"mlm_probability": 0.2}, "--mlm_probability is 0.2, .* no heads for masked words"),
        ({}, {"mlm_probability": 1.2}, "--mlm_probability is 1.2; it must lie between 0 and 1"),
        ({"do_train": False}, {"use_muon": True}, "--use_muon is True, .* without --do_train"),
        ({"metric_for_best_model": "accuracy"}, {}, "--metric_for_best_model is accuracy, .* loss, embedding_cosine"),
        ({"metric_for_best_model": "hidden_error"}, {}, "better where it is smaller: give --greater_is_better False"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_options_without_a_sense_are_refused(corpus, pair, tmp_path, options, changes, message):
    with pytest.raises(ValueError, match=message):
        distill(arguments(corpus, pair, **changes), training(tmp_path / "run", **options))
    assert not (tmp_path / "run").exists()


def test_no_checkpoint_keeps_that_training_computes_the_labelled_tokens_alone(corpus, word_pair, tmp_path):
    options = {"max_steps": 2, "save_steps": 1, "do_eval": False}
    distill(arguments(corpus, word_pair, use_muon=True), training(tmp_path / "run", **options))
    for file in (tmp_path / "run" / "checkpoint-1" / "config.json", tmp_path / "run" / "config.json"):
        assert json.loads(file.read_text())["sparse_prediction"] is False
    before = load_file(tmp_path / "run" / "model.safetensors")
    assert distill(arguments(corpus, word_pair, use_muon=True), training(tmp_path / "run", **options)) == {}
    assert_same_tensors(load_file(tmp_path / "run" / "model.safetensors"), before)


def test_documents_given_in_python_need_the_splits_that_are_read(corpus, pair, tmp_path):
    texts = {"validation": Dataset.from_dict({"text": DOCUMENTS})}
    given = arguments(None, pair, train_file=None, validation_share=None)
    numbers = distill(given, training(tmp_path / "eval", do_train=False), texts)
    assert 0 < numbers["embedding_cosine"] < 1
    about = json.loads((tmp_path / "eval" / "results.json").read_text())["about"]
    assert about["dataset"] == f"{len(DOCUMENTS)} texts"
    with pytest.raises(ValueError, match="`texts` has no train, but validation; give it too"):
        distill(given, training(tmp_path / "run"), texts)


def test_other_documents_given_in_python_are_another_run(pair, tmp_path):
    given = arguments(None, pair, train_file=None, validation_share=None)
    texts = {"train": Dataset.from_dict({"text": DOCUMENTS}), "validation": Dataset.from_dict({"text": DOCUMENTS})}
    distill(given, training(tmp_path / "run", max_steps=1), texts)
    assert "train_runtime" not in distill(given, training(tmp_path / "run", max_steps=1), texts)
    others = {**texts, "train": Dataset.from_dict({"text": DOCUMENTS[::-1]})}
    with pytest.raises(ValueError, match="other options: checksum of texts was [0-9]*, now [0-9]*. Name a new"):
        distill(given, training(tmp_path / "run", max_steps=1), others)
