"""A Linformer learns from its dense teacher: the loss, windows of long text, the run as a user starts it."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import assert_close, assert_same_tensors, random_ids, random_like
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

from linformer_hf import LinformerModel
from linformer_hf.common.heads import MASKED_LM, NO_HEAD, QUESTION_ANSWERING, head_of_checkpoint, shared_head
from linformer_hf.conversion.windows import (
    Reading,
    attention_modules,
    read,
    read_window,
    window_sizes,
)
from linformer_hf.training.distillation import DistillationArguments, distill, load_models
from linformer_hf.training.teaching import (
    DistillationTrainer,
    TeachingArguments,
    cut_blocks,
    distillation_loss,
    draw_length,
)


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


def random_reading(seed, sizes, logits_shape):
    """Draw the states of two layers, the outputs of two attentions and logits, in float64."""
    draws = iter(range(seed, seed + 5))
    states = [random_like(torch.empty(3, sum(sizes), 4, dtype=torch.float64), next(draws)) for _ in range(4)]
    logits = random_like(torch.empty(logits_shape, dtype=torch.float64), next(draws))
    return Reading(states[:2], states[2:], logits, sizes)


def loss_by_loops(student, teacher, weights, lengths, rows):
    """Compute the loss token by token; `rows` are those of the logits that count, of student and teacher."""
    loss = 0.0
    for weight, ours, theirs in (
        (weights.hidden_weight, student.hidden_states, teacher.hidden_states),
        (weights.attention_weight, student.attention_outputs, teacher.attention_outputs),
    ):
        for mine, wanted in zip(ours, theirs):
            tokens = [(b, t) for b, length in enumerate(lengths) for t in range(length)]
            mine = np.array([mine[place].numpy() for place in tokens])
            wanted = np.array([wanted[place].numpy() for place in tokens])
            variance = np.mean([np.mean((column - column.mean()) ** 2) for column in wanted.T])
            loss += weight / len(ours) * np.mean((mine - wanted) ** 2) / variance
    distances = []
    for b, length in enumerate(lengths):
        start = 0
        for size in teacher.window_sizes:
            stop = min(start + size, length)
            if stop > start:
                mine, wanted = (r.hidden_states[-1][b, start:stop].numpy().mean(0) for r in (student, teacher))
                distances.append(1 - mine @ wanted / np.linalg.norm(mine) / np.linalg.norm(wanted))
            start += size
    loss += weights.embedding_weight * np.mean(distances)
    divergences = []
    for mine, wanted in rows:
        p, q = (np.exp(row.numpy() / weights.temperature) for row in (wanted, mine))
        p, q = p / p.sum(), q / q.sum()
        divergences.append(weights.temperature**2 * sum(p * np.log(p / q)))
    return loss + weights.logits_weight * np.mean(divergences)


WEIGHTS = TeachingArguments(
    hidden_weight=0.7, embedding_weight=1.3, attention_weight=0.4, logits_weight=0.6, temperature=1.7
)


def test_the_loss_is_what_loops_over_tokens_and_windows_give():
    lengths = [9, 4, 7]
    student, teacher = random_reading(0, [3, 2, 4], (3, 5)), random_reading(10, [3, 2, 4], (3, 5))
    mask = torch.tensor([[int(token < length) for token in range(9)] for length in lengths])
    expected = loss_by_loops(student, teacher, WEIGHTS, lengths, zip(student.logits, teacher.logits))
    assert_close(distillation_loss(student, teacher, WEIGHTS, mask), torch.tensor(expected))


def test_the_loss_of_words_counts_labelled_tokens_of_a_sparse_or_a_full_head():
    student, teacher = random_reading(0, [9], (3, 9, 5)), random_reading(10, [9], (3, 9, 5))
    labels = torch.full((3, 9), -100)
    places = [(0, 2), (0, 8), (2, 1)]
    for place in places:
        labels[place] = 4
    rows = [(student.logits[place], teacher.logits[place]) for place in places]
    expected = torch.tensor(loss_by_loops(student, teacher, WEIGHTS, [9, 9, 9], rows))
    assert_close(distillation_loss(student, teacher, WEIGHTS, labels=labels), expected)
    student.logits = torch.stack([mine for mine, _ in rows])
    assert_close(distillation_loss(student, teacher, WEIGHTS, labels=labels), expected)


def test_logits_that_are_numbers_are_compared_as_they_are():
    student, teacher = random_reading(0, [9], (3, 2)), random_reading(10, [9], (3, 2))
    as_choice, as_numbers = (
        distillation_loss(
            student, teacher, TeachingArguments(hidden_weight=0, embedding_weight=0), picks_one=picks_one
        )
        for picks_one in (True, False)
    )
    assert_close(as_numbers, (student.logits - teacher.logits).square().mean())
    assert not torch.isclose(as_choice, as_numbers)


@pytest.mark.parametrize("longest", [5, 16, 32])
@pytest.mark.parametrize("num_tokens", [4, 16, 33, 64, 100])
def test_windows_cover_the_text_and_leave_room_for_their_frame(num_tokens, longest):
    sizes = window_sizes(num_tokens, longest)
    assert sum(sizes) == num_tokens
    framed = [size + (number > 0) + (number < len(sizes) - 1) for number, size in enumerate(sizes)]
    assert max(framed) <= longest
    assert max(framed) - min(framed) <= 1
    assert len(sizes) == (1 if num_tokens <= longest else math.ceil((num_tokens - 2) / (longest - 2)))


def test_long_text_is_read_in_windows_that_are_framed_as_the_teacher_is_used_to():
    dense = make_dense(BertForSequenceClassification, TOKENIZER, max_position_embeddings=9).double()
    ids = random_ids(2, 18)
    start, end = ids[:, :1], ids[:, -1:]
    windows = [torch.cat(parts, 1) for parts in ((ids[:, :7], end), (start, ids[:, 7:12], end), (start, ids[:, 12:]))]
    outputs = [dense(window, output_hidden_states=True) for window in windows]
    found = read(dense, ids, 9, recorded_modules=attention_modules(dense))
    assert found.window_sizes == [7, 5, 6]
    for layer, states in enumerate(found.hidden_states, start=1):
        first, second, third = (output.hidden_states[layer] for output in outputs)
        assert_close(states, torch.cat([first[:, :-1], second[:, 1:-1], third[:, 1:]], 1))
    assert [tuple(states.shape) for states in found.attention_outputs] == [(2, 18, 16)] * 2
    assert_close(found.logits, sum(output.logits for output in outputs) / 3)


def test_padding_changes_no_state_of_a_window():
    dense = make_dense(BertForMaskedLM, TOKENIZER, max_position_embeddings=9).double()
    ids, mask = random_ids(2, 18), torch.ones(2, 18, dtype=torch.long)
    ids[1, 10:], mask[1, 10:] = TOKENIZER.pad_token_id, 0
    padded = read(dense, ids, 9, mask)
    whole = read(dense, ids[:1], 9)
    assert_close(padded.logits[0], whole.logits[0])
    start, end = ids[1:, :1], ids[1:, 9:10]
    first = read_window(dense, torch.cat([ids[1:, :7], end], 1))
    second = read_window(dense, torch.cat([start, ids[1:, 7:10]], 1))
    expected = torch.cat([first.logits[:, :-1], second.logits[:, 1:]], 1)
    assert_close(padded.logits[1:, :10], expected)


def test_recorded_attention_outputs_are_those_before_the_residual_sum():
    dense = make_dense(BertModel, TOKENIZER).double()
    linformer = make_linformer(dense, projected_length=32).double()
    ids = random_ids(2, 32)
    ours, theirs = (read(model, ids, 32, recorded_modules=attention_modules(model)) for model in (linformer, dense))
    for mine, wanted in zip(ours.attention_outputs, theirs.attention_outputs):
        assert_close(mine, wanted)
    embeddings = dense.embeddings(ids)
    layer = dense.encoder.layer[0].attention
    assert_close(layer.output.LayerNorm(theirs.attention_outputs[0] + embeddings), layer(embeddings)[0])


def test_every_step_draws_a_length_and_blocks_keep_their_end():
    lengths = [draw_length(100, seed=3, step=step) for step in range(60)]
    assert set(lengths) == {100, 50, 25}
    assert 20 < lengths.count(100) < 40
    assert lengths == [draw_length(100, seed=3, step=step) for step in range(60)]
    assert lengths != [draw_length(100, seed=4, step=step) for step in range(60)]
    assert draw_length(12, seed=0, step=0) == 12
    blocks = torch.arange(20).view(2, 10)
    assert cut_blocks(blocks, 4).tolist() == [[0, 1, 2, 9], [10, 11, 12, 19]]


def trainer_of(pair, folder, **changes):
    student, teacher = (AutoModel.from_pretrained(name) for name in pair)
    return DistillationTrainer(
        model=student,
        args=training(folder),
        teacher=teacher,
        arguments=TeachingArguments(**changes),
        vary_length=False,
    )


def test_projections_have_their_own_learning_rate(pair, tmp_path):
    trainer = trainer_of(pair, tmp_path, projection_learning_rate=0.25)
    optimizer = trainer.create_optimizer()
    assert trainer.create_optimizer() is optimizer
    rates = {id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(rates)
    found = {name: rates[id(weight)] for name, weight in trainer.model.named_parameters()}
    assert {name for name, rate in found.items() if rate == 0.25} == {"projection.weight"}
    assert set(found.values()) == {0.25, 3e-3}


def test_the_teacher_stays_as_it_is(pair, tmp_path):
    trainer = trainer_of(pair, tmp_path, attention_weight=1.0)
    before = {name: tensor.clone() for name, tensor in trainer.teacher.state_dict().items()}
    trainer.create_optimizer()
    loss = trainer.compute_loss(trainer.model, {"input_ids": random_ids(4, 32)})
    loss.backward()
    trainer.optimizer.step()
    assert loss > 0
    assert all(weight.grad is not None for weight in trainer.model.parameters())
    assert all(weight.grad is None and not weight.requires_grad for weight in trainer.teacher.parameters())
    assert not trainer.teacher.training
    assert_same_tensors(trainer.teacher.state_dict(), before)


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
    student, teacher, head = load_models(arguments(corpus, names))
    assert head == "ForSequenceClassification"
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


def test_heads_are_told_by_the_names_of_classes():
    assert head_of_checkpoint(["RobertaForMaskedLM"]) is MASKED_LM
    assert head_of_checkpoint(["LinformerForQuestionAnswering"]) is QUESTION_ANSWERING
    assert head_of_checkpoint(["BertModel"]) is NO_HEAD
    assert head_of_checkpoint(None) is NO_HEAD
    assert shared_head(MASKED_LM, MASKED_LM) is MASKED_LM
    assert shared_head(MASKED_LM, NO_HEAD) is NO_HEAD
    assert shared_head(QUESTION_ANSWERING, QUESTION_ANSWERING) is NO_HEAD


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
        ({"temperature": 0.0}, "--temperature is 0.0"),
        ({"projection_learning_rate": 0.0}, "--projection_learning_rate is 0.0"),
        ({"mlm_probability": 0.0}, "--mlm_probability is 0.0"),
        ({"max_seq_length": 33}, "--max_seq_length is 33.*1 to 32"),
        ({"model_name_or_path": "teacher"}, "is a bert, not a Linformer.*convert_checkpoint"),
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
        elif name == "teacher":
            changes = {**changes, field: pair[1]}
    with pytest.raises(ValueError, match=message):
        distill(arguments(corpus, pair, **changes), training(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_text_shorter_than_a_block_is_refused(pair, tmp_path):
    (tmp_path / "short.txt").write_text("One line.\nAnd another.\n")
    with pytest.raises(ValueError, match="train text is shorter than one block of 32"):
        distill(arguments(str(tmp_path / "short.txt"), pair), training(tmp_path / "run"))


def test_the_script_teaches(corpus, pair, tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "distill.py"), "--model_name_or_path", pair[0]]
    command += ["--teacher_name_or_path", pair[1], "--train_file", corpus, "--output_dir", str(tmp_path / "run")]
    command += ["--do_train", "--do_eval", "--max_steps", "2", "--use_cpu", "--disable_tqdm", "true"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "embedding cosine" in done.stderr
    assert isinstance(AutoModel.from_pretrained(tmp_path / "run"), LinformerModel)
