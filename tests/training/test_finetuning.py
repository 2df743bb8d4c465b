"""A fine-tuning run from labelled rows to a saved model and its answers, as a user starts it."""

import csv
import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import assert_same_tensors, tiny_config
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from finetuning_tasks import answers, arguments, make_models, opinions, pairs, ratings, sentence, tags, training, write
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainerCallback,
    pipeline,
)

from linformer_hf import LinformerForMaskedLM, LinformerForSequenceClassification
from linformer_hf.data import tables
from linformer_hf.data.glue import TASKS
from linformer_hf.data.labels import MULTI_LABEL, REGRESSION
from linformer_hf.training import finetuning
from linformer_hf.training.finetuning import finetune
from linformer_hf.training.run_options import OPTIONS


ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data" / "glue"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folder of a Linformer and a RoBERTa with one tokenizer."""
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def run(models, tmp_path_factory):
    """A run on opinions, whose model knows them afterwards."""
    folder = tmp_path_factory.mktemp("run")
    train = write(folder / "train.csv", opinions())
    test = write(folder / "test.csv", [{"text": row["text"]} for row in opinions(40)])
    metrics = finetune(
        arguments(models, train_file=[train], validation_file=[train], test_file=[test]),
        training(folder / "out", do_predict=True, max_steps=150),
    )
    return folder, metrics


def test_a_run_learns_more_than_the_most_frequent_label(run):
    _, metrics = run
    assert metrics["constant_accuracy"] == 0.75
    assert metrics["accuracy"] == metrics["macro_f1"] == 1.0


def test_a_slot_reads_no_token_before_its_first_one(models, run):
    before, after = (
        next(weight for name, weight in load_file(folder / "model.safetensors").items() if "projection" in name)
        for folder in (models / "linformer", run[0] / "out")
    )
    is_leading = (before == 0).cumprod(-1).bool()
    assert is_leading.sum() > 50
    assert not after[is_leading].any()
    assert (after != before).sum() > 5


def test_what_was_saved_labels_texts_by_name(run):
    folder, _ = run
    model, tokenizer = (
        auto.from_pretrained(folder / "out") for auto in (AutoModelForSequenceClassification, AutoTokenizer)
    )
    assert isinstance(model, LinformerForSequenceClassification)
    assert tokenizer.model_max_length == 32
    label = pipeline("text-classification", model=model, tokenizer=tokenizer)
    assert [label(text)[0]["label"] for text in ("good film", "bad plot")] == ["praise", "blame"]


def test_test_rows_without_labels_get_answers_in_their_order(run):
    folder, metrics = run
    assert answers(folder / "out" / "predictions.tsv") == [row["label"] for row in opinions(40)]
    assert "predict_accuracy" not in metrics


def test_a_run_leaves_its_record_and_its_card(run):
    folder, metrics = run
    record = json.loads((folder / "out" / "results.json").read_text())
    assert record["numbers"]["accuracy"] == metrics["accuracy"]
    assert record["numbers"]["seconds"] > 0
    assert record["arguments"]["max_steps"] == 150
    card = (folder / "out" / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert "train.csv" in card and str(folder) not in card.partition("```bash")[0]


def test_evaluation_alone_repeats_the_metrics_and_measures_labelled_test_rows(run, tmp_path):
    folder, metrics = run
    rows = str(folder / "train.csv")
    again = finetune(
        arguments(folder, "out", validation_file=[rows], test_file=[rows]),
        training(tmp_path / "out", do_train=False, do_predict=True),
    )
    assert again["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-5)
    assert again["accuracy"] == again["predict_accuracy"] == 1.0
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_prediction_alone_needs_no_label(run, tmp_path):
    folder, _ = run
    only = training(tmp_path / "out", do_train=False, do_eval=False, do_predict=True)
    finetune(arguments(folder, "out", test_file=[str(folder / "test.csv")], max_predict_samples=8), only)
    assert answers(tmp_path / "out" / "predictions.tsv") == [row["label"] for row in opinions(8)]


def test_without_rows_to_measure_on_a_share_is_held_out(models, tmp_path):
    rows = [write(tmp_path / "rows.csv", [{"text": f"good {row}", "label": row % 2} for row in range(120)])]
    asked = arguments(models, train_file=rows, validation_share=0.25, max_train_samples=50)
    seen = watch_tables(lambda: finetune(asked, training(tmp_path / "out")))
    texts = {split: set(map(tuple, table["input_ids"])) for split, table in seen.items()}
    assert {split: len(found) for split, found in texts.items()} == {"train": 50, "validation": 30}
    assert not texts["train"] & texts["validation"]
    assert len(set(seen["train"]["labels"])) == 2


@pytest.mark.parametrize("model", ["linformer", "roberta"])
def test_pairs_are_learned(models, tmp_path, model):
    rows = write(tmp_path / "rows.parquet", pairs())
    columns = {"text_column": "question", "text_pair_column": "answer", "label_column": ["verdict"]}
    metrics = finetune(
        arguments(models, model, train_file=[rows], validation_file=[rows], **columns),
        training(tmp_path / "out", max_steps=150),
    )
    assert metrics["accuracy"] > 0.9 > metrics["constant_accuracy"] == pytest.approx(2 / 3)
    assert AutoConfig.from_pretrained(tmp_path / "out").id2label == {0: "False", 1: "True"}


@pytest.mark.parametrize("model", ["linformer", "roberta"])
def test_numbers_are_learned(models, tmp_path, model):
    rows = write(tmp_path / "rows.jsonl", ratings())
    metrics = finetune(
        arguments(models, model, train_file=[rows], validation_file=[rows], test_file=[rows]),
        training(tmp_path / "out", max_steps=200, do_predict=True),
    )
    assert metrics["constant_mean_squared_error"] == pytest.approx(0.5)
    assert metrics["mean_squared_error"] < 0.1
    assert metrics["pearson"] > 0.9 and metrics["spearmanr"] > 0.9
    found = [float(answer) for answer in answers(tmp_path / "out" / "predictions.tsv")]
    assert np.mean((np.array(found) - [row["label"] for row in ratings()]) ** 2) == pytest.approx(
        metrics["mean_squared_error"], rel=1e-4
    )
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.problem_type, config.num_labels, config.id2label) == (REGRESSION, 1, {0: "label"})


@pytest.mark.parametrize(
    ("model", "shape"), [("linformer", "a list in each row"), ("roberta", "a column for each label")]
)
def test_several_labels_are_learned(models, tmp_path, model, shape):
    if shape == "a list in each row":
        table = [{"text": sentence(*found, seed=row), "label": found} for row, found in enumerate(tags())]
        file, columns, names = write(tmp_path / "rows.json", table), ["label"], ["dark", "loud"]
    else:
        names = columns = ["loud", "dark"]
        table = [
            {"text": sentence(*found, seed=row), **{name: int(name in found) for name in names}}
            for row, found in enumerate(tags())
        ]
        file = write(tmp_path / "rows.csv", table)
    metrics = finetune(
        arguments(models, model, train_file=[file], validation_file=[file], test_file=[file], label_column=columns),
        training(tmp_path / "out", max_steps=200, do_predict=True),
    )
    assert metrics["constant_accuracy"] == 0.25
    assert metrics["accuracy"] > 0.9 and metrics["micro_f1"] > 0.9
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.problem_type, list(config.id2label.values())) == (MULTI_LABEL, names)
    found = [set(answer.split(",")) - {""} for answer in answers(tmp_path / "out" / "predictions.tsv")]
    assert np.mean([one == set(other) for one, other in zip(found, tags())]) == metrics["accuracy"]


def watch_tables(start):
    """Call a run and return the tables that reached the Trainer."""
    seen = {}
    cut = finetuning.cut_texts

    def watch(table, layout, tokenizer, num_tokens, split):
        seen[split] = cut(table, layout, tokenizer, num_tokens, split)
        return seen[split]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetuning, "cut_texts", watch)
        start()
    return seen


def hub_rows(name, split, rows=12):
    """Make rows of a GLUE task as the Hub has them: test labels are -1."""
    task = TASKS[name]
    label = ClassLabel(names=list(task.labels)) if task.labels else Value("float32")
    hidden = split in task.submissions
    columns = {column: [sentence(column[-1], seed=row) for row in range(rows)] for column in task.columns}
    labels = [-1 if hidden else row % 5 if name == "stsb" else row % task.num_labels for row in range(rows)]
    features = Features({**{column: Value("string") for column in columns}, "label": label, "idx": Value("int32")})
    return Dataset.from_dict({**columns, "label": labels, "idx": list(range(rows))}, features=features)


@pytest.mark.parametrize("name", [name for name in TASKS if name != "ax"])
def test_every_task_of_the_hub_trains_measures_and_answers(models, tmp_path, monkeypatch, name):
    task, asked = TASKS[name], []

    def serve(path, config, revision):
        asked.append((path, config))
        return DatasetDict({split: hub_rows(name, split) for split in ("train", *task.validation, *task.submissions)})

    monkeypatch.setattr(tables, "load_dataset", serve)
    metrics = finetune(arguments(models, task_name=name), training(tmp_path / "out", do_predict=True))
    assert asked == [("nyu-mll/glue", name)]
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert config.num_labels == task.num_labels
    assert config.problem_type == task.problem_type
    assert tuple(config.id2label.values()) == (task.labels or ("label",))
    expected = {*task.metrics, *(["combined_score"] if len(task.metrics) > 1 else [])}
    expected |= {f"mismatched_{metric}" for metric in task.metrics if name == "mnli"}
    assert expected <= set(metrics)
    for file in task.submissions.values():
        assert len(answers(tmp_path / "out" / file)) == 12
    card = (tmp_path / "out" / "README.md").read_text()
    assert "nyu-mll/glue" in card


def test_the_diagnostic_set_is_answered_by_a_model_of_mnli_in_its_own_order(models, tmp_path, monkeypatch):
    names = ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]
    model = LinformerForSequenceClassification(
        tiny_config(vocab_size=330, id2label=dict(enumerate(names)), label2id={n: i for i, n in enumerate(names)})
    )
    model.classifier.output.weight.data.zero_()
    model.classifier.output.bias.data.copy_(torch.tensor([0.0, 0.0, 1.0]))
    model.save_pretrained(tmp_path / "mnli")
    monkeypatch.setattr(tables, "load_dataset", lambda *_, **__: DatasetDict({"test": hub_rows("ax", "test")}))
    asked = arguments(tmp_path, "mnli", task_name="ax", tokenizer_name=str(models / "linformer"))
    only = {"do_train": False, "do_eval": False, "do_predict": True}
    finetune(asked, training(tmp_path / "out", **only))
    assert answers(tmp_path / "out" / "AX.tsv") == ["entailment"] * 12
    with pytest.raises(ValueError, match="fine-tune on mnli"):
        finetune(asked, training(tmp_path / "other"))
    with pytest.raises(ValueError, match="The model answers LABEL_0, LABEL_1, the rows ask for entailment, neutral"):
        finetune(arguments(models, task_name="ax"), training(tmp_path / "other", **only))


def test_labels_keep_the_order_that_a_checkpoint_has_learned(run, tmp_path):
    folder, _ = run
    config = AutoConfig.from_pretrained(folder / "out")
    assert list(config.id2label.values()) == ["blame", "praise"]
    other = LinformerForSequenceClassification.from_pretrained(folder / "out")
    other.config.id2label, other.config.label2id = {0: "Praise", 1: "Blame"}, {"Praise": 0, "Blame": 1}
    other.classifier.output.weight.data = other.classifier.output.weight.data.flip(0)
    other.classifier.output.bias.data = other.classifier.output.bias.data.flip(0)
    other.save_pretrained(tmp_path / "other")
    rows = [str(folder / "train.csv")]
    asked = arguments(tmp_path, "other", train_file=rows, validation_file=rows, tokenizer_name=str(folder / "out"))
    metrics = finetune(asked, training(tmp_path / "out", learning_rate=0.0))
    assert metrics["accuracy"] == 1.0
    assert AutoConfig.from_pretrained(tmp_path / "out").id2label == {0: "praise", 1: "blame"}


def test_a_head_for_other_labels_is_replaced_by_training_and_refused_without(run, tmp_path):
    folder, _ = run
    rows = [write(tmp_path / "rows.csv", [{"text": "good film", "label": row % 3} for row in range(12)])]
    with pytest.raises(ValueError, match="labels that are not known from training: 0, 1, 2. Known are blame, praise"):
        finetune(arguments(folder, "out", validation_file=rows), training(tmp_path / "no", do_train=False))
    finetune(arguments(folder, "out", train_file=rows, validation_file=rows), training(tmp_path / "out"))
    assert AutoConfig.from_pretrained(tmp_path / "out").id2label == {0: "0", 1: "1", 2: "2"}


def test_two_files_of_mnli_are_its_matched_and_its_mismatched_rows(models, tmp_path):
    lines = [
        "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\tfiction\tIt rains.\tIt is dry.\tneutral\tcontradiction",
        "1\tfiction\tIt rains.\tIt is wet.\tentailment\tentailment",
    ]
    files = []
    for name in ("train", "matched", "mismatched"):
        files.append(str(tmp_path / f"{name}.tsv"))
        Path(files[-1]).write_text("\n".join(lines), encoding="utf-8")
    train, *two = files
    asked = arguments(models, task_name="mnli", train_file=[train], validation_file=two, test_file=two)
    metrics = finetune(asked, training(tmp_path / "out", do_predict=True))
    assert metrics["accuracy"] == metrics["mismatched_accuracy"]
    assert len(answers(tmp_path / "out" / "MNLI-m.tsv")) == len(answers(tmp_path / "out" / "MNLI-mm.tsv")) == 2


@pytest.mark.parametrize("name", ["sst2", "cola", "mrpc", "rte", "wnli"])
def test_real_rows_load_and_train(models, tmp_path, name):
    if not (REAL / name).is_dir():
        pytest.skip(f"the rows of {name} lie in ../shared/data beside the repository, which is not there")
    files = {f"{split}_file": [str(REAL / name / f"{split}.parquet")] for split in ("train", "validation")}
    asked = arguments(models, task_name=name, max_train_samples=48, max_eval_samples=48, **files)
    metrics = finetune(asked, training(tmp_path / "out"))
    assert set(TASKS[name].metrics) <= set(metrics)
    assert 0 < metrics["eval_loss"] < 2


def test_rows_come_from_any_data_set_on_the_hub(models, tmp_path, monkeypatch):
    table = Dataset.from_list([{"review": row["text"], "stars": len(row["label"])} for row in opinions()])
    asked = []

    def serve(path, config, revision):
        asked.append((path, config, revision))
        return DatasetDict({"train": table, "test": table.select_columns(["review"])})

    monkeypatch.setattr(tables, "load_dataset", serve)
    named = {"dataset_name": "you/reviews", "dataset_config_name": "en", "dataset_revision": "v1"}
    columns = {"text_column": "review", "label_column": ["stars"]}
    finetune(arguments(models, **named, **columns), training(tmp_path / "out", do_predict=True))
    assert asked == [("you/reviews", "en", "v1")]
    assert set(answers(tmp_path / "out" / "predictions.tsv")) <= {"5", "6"}


def test_whole_numbers_are_names_unless_the_user_says_that_they_are_numbers(models, tmp_path):
    rows = [write(tmp_path / "rows.csv", [{"text": "good", "label": row % 10 + 1} for row in range(20)])]
    asked = arguments(models, train_file=rows, validation_file=rows)
    finetune(asked, training(tmp_path / "names"))
    names = AutoConfig.from_pretrained(tmp_path / "names").id2label
    assert list(names.values()) == [str(number + 1) for number in range(10)]  # 10 after 9, not after 1
    asked.problem_type = REGRESSION
    finetune(asked, training(tmp_path / "numbers"))
    assert AutoConfig.from_pretrained(tmp_path / "numbers").num_labels == 1


def test_shares_of_labels_and_empty_texts_are_reported(models, tmp_path, caplog):
    rows = [*opinions(), {"text": " ", "label": "praise"}]
    file = [write(tmp_path / "rows.csv", rows)]
    with caplog.at_level(logging.INFO, logger="linformer_hf"):
        finetune(arguments(models, train_file=file, max_seq_length=6), training(tmp_path / "out", do_eval=False))
    said = [record.getMessage() for record in caplog.records]
    assert "121 rows for train: blame 24.8%, praise 75.2%." in said
    assert "1 of 121 rows for train have no text in the column 'text'; they stay." in said
    assert any("fill all 6 tokens; the longer ones are cut." in line for line in said)
    assert any("--model_name_or_path" in line for line in said)


class Watcher(Trainer):
    """Notes what the metrics are computed from."""

    kept = []

    def evaluation_loop(self, *args, **kwargs):
        outcome = super().evaluation_loop(*args, **kwargs)
        self.kept.append((outcome.predictions.shape, outcome.predictions.dtype))
        return outcome


def test_memory_for_an_evaluation_does_not_grow_with_the_number_of_labels(models, tmp_path, monkeypatch):
    monkeypatch.setattr(finetuning, "Trainer", Watcher)
    monkeypatch.setattr(Watcher, "kept", [])
    rows = [write(tmp_path / "rows.csv", [{"text": "good", "label": row % 50} for row in range(100)])]
    finetune(arguments(models, train_file=rows, validation_file=rows), training(tmp_path / "out"))
    assert Watcher.kept == [((100,), np.dtype("int64"))]


@pytest.mark.parametrize("model", ["linformer", "roberta"])
def test_gradient_accumulation_changes_nothing(models, tmp_path, model):
    """The loss of RoBERTa does not know of it, which the Trainer has to be told."""
    rows = [write(tmp_path / "rows.csv", opinions(64))]
    weights = []
    for steps in (1, 4):
        folder = tmp_path / str(steps)
        one = training(
            folder,
            do_eval=False,
            optim="sgd",
            max_steps=2,
            learning_rate=0.1,
            max_grad_norm=0.0,  # clipping would hide a wrong scale
            gradient_accumulation_steps=steps,
            per_device_train_batch_size=16 // steps,
        )
        finetune(arguments(models, model, train_file=rows), one)
        weights.append(load_file(folder / "model.safetensors"))
    assert_same_tensors(*weights, torch.float32)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_linformer_pools_as_it_is_told(models, tmp_path, pooling):
    rows = [write(tmp_path / "rows.csv", opinions(20))]
    finetune(arguments(models, train_file=rows, classifier_pooling=pooling), training(tmp_path / "out", max_steps=1))
    assert AutoConfig.from_pretrained(tmp_path / "out").classifier_pooling == pooling


@pytest.mark.parametrize(
    ("model", "pooling", "message"), [("roberta", "mean", "a roberta has its own"), ("linformer", "max", "cls, mean")]
)
def test_a_pooling_that_cannot_be_is_refused(models, tmp_path, model, pooling, message):
    rows = [write(tmp_path / "rows.csv", opinions(20))]
    with pytest.raises(ValueError, match=message):
        finetune(arguments(models, model, train_file=rows, classifier_pooling=pooling), training(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


class Kill(TrainerCallback):
    """Ends a run as a signal would: at once, after a step and before what follows it."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.fixture
def killed(monkeypatch):
    """Let a run be killed at a step, or None."""

    def kill_at(step):
        class Killed(Trainer):
            def __init__(self, *args, callbacks, **kwargs):
                super().__init__(*args, callbacks=[*callbacks, Kill(step)], **kwargs)

        monkeypatch.setattr(finetuning, "Trainer", Killed)

    return kill_at


def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(run, models, tmp_path, killed, caplog):
    """With dropout, a fresh head, and more than one epoch, so that every state counts."""
    folder, _ = run
    model = LinformerForMaskedLM.from_pretrained(models / "linformer")
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.1
    model.save_pretrained(tmp_path / "model")
    tokenizer, rows = str(models / "linformer"), [str(folder / "train.csv")]
    asked = arguments(tmp_path, "model", tokenizer_name=tokenizer, train_file=rows)
    saving = {"max_steps": 20, "save_strategy": "steps", "save_steps": 6}
    unbroken = finetune(asked, training(tmp_path / "unbroken", **saving))

    killed(15)
    with pytest.raises(KeyboardInterrupt):
        finetune(asked, training(tmp_path / "killed", **saving))
    half_written = tmp_path / "killed" / "checkpoint-18"
    half_written.mkdir()
    (half_written / "model.safetensors").write_bytes(b"half")
    (half_written / "trainer_state.json").write_text('{"global_st')
    killed(None)
    with caplog.at_level(logging.INFO, logger="linformer_hf"):
        resumed = finetune(asked, training(tmp_path / "killed", **saving))
    said = [record.getMessage() for record in caplog.records]
    assert f"{half_written} was not written to its end and is passed over." in said
    assert f"Resuming from {tmp_path / 'killed' / 'checkpoint-12'}." in said
    weights, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("killed", "unbroken"))
    assert sorted(weights) == sorted(expected)
    assert max((weights[name] - expected[name]).abs().max() for name in expected) <= 1e-6
    assert resumed["eval_loss"] == pytest.approx(unbroken["eval_loss"], rel=1e-6)


def test_a_run_killed_before_its_first_checkpoint_starts_again(run, models, tmp_path, killed):
    folder, _ = run
    asked = arguments(models, train_file=[str(folder / "train.csv")])
    killed(2)
    (tmp_path / "out" / "runs").mkdir(parents=True)  # where TensorBoard writes from the start
    (tmp_path / "out" / "checkpoint-1").mkdir()
    with pytest.raises(KeyboardInterrupt):
        finetune(asked, training(tmp_path / "out", max_steps=3, do_eval=False))
    killed(None)
    assert finetune(asked, training(tmp_path / "out", max_steps=3, do_eval=False))["epoch"] > 0


def test_a_folder_of_another_run_is_not_written_to(run, models, tmp_path):
    folder, _ = run
    asked = arguments(models, train_file=[str(folder / "train.csv")])
    with pytest.raises(ValueError, match="holds README.md.*no checkpoint to resume from; name a new --output_dir"):
        finetune(asked, training(folder / "out"))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds notes.txt but no checkpoint to resume from"):
        finetune(asked, training(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_checkpoint_of_a_run_with_other_labels_is_not_resumed_from(run, models, tmp_path):
    folder, _ = run
    saving = {"save_strategy": "steps", "save_steps": 1, "do_eval": False}
    finetune(arguments(models, train_file=[str(folder / "train.csv")]), training(tmp_path / "out", **saving))
    (tmp_path / "out" / OPTIONS).unlink()  # as of a run by version 0.1.0, whose record does not tell sizes of files
    other = write(tmp_path / "train.csv", [{"text": "good", "label": row % 2} for row in range(12)])
    with pytest.raises(ValueError, match="out is of a run with other labels"):
        finetune(arguments(models, train_file=[other]), training(tmp_path / "out", **saving))


GOOD = [{"text": "good film", "label": "praise"}, {"text": "bad film", "label": "blame"}]


def test_a_length_beyond_the_model_is_refused_before_anything_is_written(models, tmp_path):
    train = [write(tmp_path / "train.csv", GOOD)]
    with pytest.raises(ValueError, match="--max_seq_length is 33; the model reads 1 to 32 tokens"):
        finetune(arguments(models, train_file=train, max_seq_length=33), training(tmp_path / "out", do_eval=False))
    assert not (tmp_path / "out").exists()


def test_what_is_asked_for_needs_rows(models, tmp_path):
    train = [write(tmp_path / "train.csv", GOOD)]
    with pytest.raises(ValueError, match="Nothing is asked for: give --do_train"):
        finetune(arguments(models, train_file=train), training(tmp_path / "out", do_train=False, do_eval=False))
    with pytest.raises(ValueError, match="no rows for --do_predict: give --test_file"):
        finetune(arguments(models, train_file=train), training(tmp_path / "out", do_predict=True, do_eval=False))
    with pytest.raises(ValueError, match="no rows for --do_eval: give --validation_file"):
        finetune(arguments(models, train_file=train), training(tmp_path / "out", do_train=False))


def test_a_tokenizer_that_does_not_fit_is_refused(models, tmp_path):
    train = [write(tmp_path / "train.csv", GOOD)]
    LinformerForMaskedLM(tiny_config(vocab_size=40)).save_pretrained(tmp_path / "small")
    small = arguments(tmp_path, "small", train_file=train, tokenizer_name=str(models / "linformer"))
    with pytest.raises(ValueError, match=r"tokenizer has \d+ tokens, the embedding table of .*small only 40 rows"):
        finetune(small, training(tmp_path / "out", do_eval=False))
    unpadded = AutoTokenizer.from_pretrained(models / "linformer")
    unpadded.pad_token = None
    unpadded.save_pretrained(tmp_path / "unpadded")
    asked = arguments(models, train_file=train, tokenizer_name=str(tmp_path / "unpadded"))
    with pytest.raises(ValueError, match="unpadded has no pad token"):
        finetune(asked, training(tmp_path / "out", do_eval=False))


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ({"metric_for_best_model": "f1"}, {}, "--metric_for_best_model is f1, .* among loss, accuracy, macro_f1"),
        ({"do_train": False}, {"use_muon": True}, "--use_muon is True, .* without --do_train"),
        ({"do_eval": False}, {"tfidf_baseline": True}, "--tfidf_baseline is True, .* without --do_eval"),
        ({"do_train": False}, {"tfidf_baseline": True}, "--tfidf_baseline is True, .* without --do_train"),
        ({}, {"task_name": "sst2", "problem_type": REGRESSION}, "--problem_type is regression, .* with --task_name"),
        ({}, {"max_predict_samples": 5}, "--max_predict_samples .*without --do_predict"),
        ({}, {"early_stopping_patience": 2}, "--early_stopping_patience is 2, .* without --eval_strategy"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_options_that_cannot_work_are_refused_before_the_work_begins(models, tmp_path, options, changes, message):
    file = [write(tmp_path / "rows.csv", GOOD)]
    with pytest.raises(ValueError, match=message):
        finetune(
            arguments(models, train_file=file, validation_file=file, **changes), training(tmp_path / "out", **options)
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rows", [ratings(20), [{"text": "film", "label": found} for found in tags(20)]])
def test_labels_that_cannot_be_smoothed_are_refused(models, tmp_path, rows):
    file = [write(tmp_path / "rows.jsonl", rows)]
    with pytest.raises(ValueError, match="--label_smoothing_factor is 0.1, but the rows ask for (regression|multi)"):
        finetune(arguments(models, train_file=file), training(tmp_path / "out", label_smoothing_factor=0.1))


def test_a_baseline_of_words_without_words_ends_before_training(models, tmp_path, monkeypatch):
    monkeypatch.setattr(finetuning, "train_model", pytest.fail)
    file = [write(tmp_path / "rows.csv", [{"text": "?!", "label": row % 2} for row in range(8)])]
    with pytest.raises(ValueError, match="--tfidf_baseline finds no word"):
        finetune(
            arguments(models, train_file=file, validation_file=file, tfidf_baseline=True), training(tmp_path / "out")
        )


def test_a_baseline_of_words_is_reported_beside(models, tmp_path, caplog):
    file = [write(tmp_path / "rows.csv", opinions(40))]
    asked = arguments(models, train_file=file, validation_file=file, tfidf_baseline=True)
    with caplog.at_level(logging.INFO, logger="linformer_hf"):
        metrics = finetune(asked, training(tmp_path / "out", max_steps=1))
    assert metrics["tfidf_accuracy"] > metrics["constant_accuracy"] == 0.75
    beside = f"0.7500 by the same answer to all, {metrics['tfidf_accuracy']:.4f} by a linear model on words"
    assert any(line.endswith(beside) for line in caplog.messages)


def test_a_damaged_model_is_not_measured(run, tmp_path):
    """Tensors of a wrong shape are drawn anew where a head is replaced for training, and nowhere else."""
    folder, _ = run
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / "out" / name).read_bytes())
    tensors = load_file(folder / "out" / "model.safetensors")
    name = "linformer.layers.0.mlp.input.weight"
    name = name if name in tensors else next(name for name in tensors if "mlp" in name and name.endswith("weight"))
    save_file({**tensors, name: tensors[name][:-1].clone()}, tmp_path / "model.safetensors", {"format": "pt"})
    rows = [str(folder / "train.csv")]
    with pytest.raises((ValueError, RuntimeError), match="size mismatch|mismatch|shape"):
        finetune(arguments(tmp_path, ".", validation_file=rows), training(tmp_path / "out", do_train=False))


def test_a_line_break_in_a_label_stays_in_its_field(models, tmp_path):
    names = ["two\nlines", "a\ttab"]
    file = write(tmp_path / "rows.jsonl", [{"text": sentence(seed=row), "label": names[row % 2]} for row in range(12)])
    only = training(tmp_path / "out", do_eval=False, do_predict=True)
    finetune(arguments(models, train_file=[file], test_file=[file]), only)
    with open(tmp_path / "out" / "predictions.tsv", newline="", encoding="utf-8") as lines:
        found = list(csv.reader(lines, delimiter="\t"))
    assert len(found) == 13
    assert {answer for _, answer in found[1:]} <= set(names)


def test_muon_fine_tunes(models, tmp_path):
    file = [write(tmp_path / "rows.csv", opinions())]
    asked = arguments(models, train_file=file, validation_file=file, use_muon=True, muon_learning_rate=1e-2)
    metrics = finetune(asked, training(tmp_path / "out", max_steps=80))
    assert metrics["accuracy"] > metrics["constant_accuracy"]


def test_a_run_whose_metric_no_longer_improves_stops_early(models, tmp_path):
    file = [write(tmp_path / "rows.csv", opinions(40))]
    asked = arguments(models, train_file=file, validation_file=file, early_stopping_patience=2)
    options = {"max_steps": 9, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "accuracy"}
    finetune(asked, training(tmp_path / "out", learning_rate=0.0, **options))
    assert json.loads((tmp_path / "out" / "trainer_state.json").read_text())["global_step"] == 3
