"""A folder holds one run: calls that ask for another one are refused with what differs."""

import json

import pytest
from finetuning_tasks import arguments as finetuning_arguments
from finetuning_tasks import make_models, opinions, write
from finetuning_tasks import training as finetuning_training
from pretraining_tasks import OF_A_TRAINED_MODEL, arguments, pretrain_until, training, write_corpus

from linformer_hf.common.records import read_results, write_results
from linformer_hf.training.finetuning import finetune
from linformer_hf.training.pretraining import pretrain
from linformer_hf.training.run import start_run
from linformer_hf.training.run_options import OPTIONS, check_same_options, comparable, shown


STEPS = {"max_steps": 4, "save_steps": 2}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus.txt")


@pytest.fixture(scope="module")
def other_corpus(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "other.txt"
    file.write_text("Another text.\n" * 99)
    return str(file)


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    pretrain(arguments(corpus), training(folder, **STEPS))
    return folder


@pytest.fixture(scope="module")
def stopped(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped") / "run"
    pretrain_until(3, arguments(corpus), training(folder, **STEPS))
    return folder


OF_THE_TASK = [
    ({"config_overrides": None}, "--config_overrides was hidden_size=32,.*now not given"),
    ({"projected_length": [4]}, "--projected_length was 8, now 4"),
    ({"whole_word_mask": True}, "--whole_word_mask was False, now True"),
    ({"mlm_probability": 0.3}, "--mlm_probability was not given, now 0.3"),
    ({"line_by_line": True}, "--line_by_line was False, now True"),
]
OF_THE_TRAINER = [
    ({"learning_rate": 0.5}, "--learning_rate was 0.01, now 0.5"),
    ({"seed": 7}, "--seed was 42, now 7"),
    ({"per_device_train_batch_size": 4}, "--per_device_train_batch_size was 8, now 4"),
    ({"max_steps": 3}, "--max_steps was 4, now 3"),
    ({"max_steps": -1}, "--max_steps was 4, now -1"),
]


@pytest.mark.parametrize("state", ["finished", "stopped"])
@pytest.mark.parametrize(
    ("own", "of_the_trainer", "message"),
    [(own, {}, message) for own, message in OF_THE_TASK] + [({}, given, message) for given, message in OF_THE_TRAINER],
)
def test_a_run_with_other_options_is_refused_with_their_values(request, corpus, state, own, of_the_trainer, message):
    folder = request.getfixturevalue(state)
    with pytest.raises(ValueError, match=f"run holds a run with other options: {message}. Name a new --output_dir"):
        start_run(arguments(corpus, **own), training(folder, **{**STEPS, **of_the_trainer}))


@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_other_text_is_refused_by_name_or_size(request, other_corpus, tmp_path, state):
    folder = request.getfixturevalue(state)
    with pytest.raises(ValueError, match="--train_file was corpus.txt, now other.txt; bytes of train_file was"):
        start_run(arguments(other_corpus), training(folder, **STEPS))
    (tmp_path / "corpus.txt").write_text("Of the same name.\n" * 99)
    with pytest.raises(ValueError, match="other options: bytes of train_file was [0-9]*, now 1782. Name"):
        start_run(arguments(str(tmp_path / "corpus.txt")), training(folder, **STEPS))


def test_what_the_weights_do_not_depend_on_may_change(corpus, finished, stopped, tmp_path):
    moved = write_corpus(tmp_path / "corpus.txt")
    free = {
        "do_eval": False,
        "logging_steps": 1,
        "save_steps": 1,
        "report_to": "none",
        "per_device_eval_batch_size": 2,
    }
    asked = arguments(moved, preprocessing_num_workers=1, max_eval_samples=5)
    assert start_run(asked, training(finished, **{**STEPS, **free})).trained_folder == str(finished)
    run = start_run(asked, training(stopped, **{**STEPS, **free, "max_steps": 9, "warmup_steps": 2}))
    assert run.checkpoint == str(stopped / "checkpoint-2")


def test_a_finished_run_goes_on_to_more_steps_with_the_same_options_alone(corpus, finished):
    longer = training(finished, **{**STEPS, "max_steps": 9})
    assert start_run(arguments(corpus), longer).checkpoint == str(finished / "checkpoint-4")
    with pytest.raises(ValueError, match="--mlm_probability was not given, now 0.3"):
        start_run(arguments(corpus, mlm_probability=0.3), longer)


def test_epochs_may_grow_and_not_shrink(tmp_path):
    earlier, more = ({"max_steps": -1, "num_train_epochs": epochs} for epochs in (2.0, 3.0))
    check_same_options(tmp_path, earlier, more, is_finished=False)
    with pytest.raises(ValueError, match="--num_train_epochs was 3.0, now 2.0"):
        check_same_options(tmp_path, more, earlier, is_finished=False)


def test_a_checkpoint_that_is_named_goes_on_with_its_own_options(corpus, stopped, tmp_path):
    named = {"resume_from_checkpoint": str(stopped / "checkpoint-2"), **STEPS}
    assert start_run(arguments(corpus), training(tmp_path, **named)).checkpoint == str(stopped / "checkpoint-2")
    with pytest.raises(ValueError, match="--learning_rate was 0.01, now 0.5"):
        start_run(arguments(corpus), training(tmp_path, learning_rate=0.5, **named))


def test_a_finished_run_does_not_hide_that_another_checkpoint_is_named(corpus, finished, stopped):
    named = {"resume_from_checkpoint": str(stopped / "checkpoint-2"), **STEPS}
    with pytest.raises(ValueError, match="--resume_from_checkpoint was not given, now .*checkpoint-2"):
        start_run(arguments(corpus), training(finished, **named))


def test_the_record_tells_the_options_of_a_run_that_wrote_no_file_of_them(corpus, tmp_path):
    folder = tmp_path / "run"
    pretrain(arguments(corpus), training(folder, **STEPS))
    (folder / OPTIONS).unlink()
    assert start_run(arguments(corpus), training(folder, **STEPS)).trained_folder == str(folder)
    with pytest.raises(ValueError, match="--learning_rate was 0.01, now 0.5. Name"):
        start_run(arguments(corpus), training(folder, learning_rate=0.5, **STEPS))


def test_options_are_kept_without_tokens_and_with_one_spelling(finished, tmp_path, monkeypatch):
    kept = json.loads((finished / OPTIONS).read_text())
    assert kept["train_file"] == ["corpus.txt"]
    assert not {"token", "hub_token", "output_dir", "do_eval", "logging_steps"} & set(kept)
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert comparable({"model_name_or_path": "model"}, "out") == {"model_name_or_path": str(tmp_path / "model")}
    assert comparable({"resume_from_checkpoint": "out/checkpoint-4"}, "out") == {"resume_from_checkpoint": None}
    assert shown([1, 2]) == "1 2"


def test_an_evaluation_of_another_model_does_not_write_into_the_folder_of_a_model(corpus, finished, tmp_path):
    other = tmp_path / "other"
    pretrain(arguments(corpus), training(other, **STEPS))
    record = (finished / "results.json").read_text()
    given = arguments(corpus, model_name_or_path=str(other), **OF_A_TRAINED_MODEL)
    with pytest.raises(ValueError, match=f"{finished} holds a model, and {other} is another one: name a new --output"):
        pretrain(given, training(finished, do_train=False))
    assert (finished / "results.json").read_text() == record


def test_evaluations_of_two_models_do_not_share_a_record(corpus, finished, tmp_path):
    first, second = (
        arguments(corpus, model_name_or_path=str(folder), **OF_A_TRAINED_MODEL)
        for folder in (finished, finished / "checkpoint-2")
    )
    folder = tmp_path / "evaluation"
    only = {"do_train": False, "do_eval": True}
    write_results(folder, {"perplexity": 2.0}, (first, training(folder, **only)))
    start_run(first, training(folder, **only))
    with pytest.raises(ValueError, match="holds numbers of --model_name_or_path .*run, and this call measures .*-2"):
        start_run(second, training(folder, **only))
    assert read_results(folder)["numbers"] == {"perplexity": 2.0}


def test_rows_that_were_trained_on_are_not_held_out_later(tmp_path):
    models = make_models(tmp_path / "models")
    rows = write(tmp_path / "rows.csv", opinions())
    asked = finetuning_arguments(models, train_file=[rows])
    finetune(asked, finetuning_training(tmp_path / "out", do_eval=False))
    with pytest.raises(ValueError, match="rows held out of training was False, now True"):
        finetune(asked, finetuning_training(tmp_path / "out"))
    predicting = finetuning_arguments(models, train_file=[rows], test_file=[rows])
    metrics = finetune(predicting, finetuning_training(tmp_path / "out", do_eval=False, do_predict=True))
    assert "train_runtime" not in metrics and "predict_accuracy" in metrics
