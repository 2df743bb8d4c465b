"""What every run does: it starts where an earlier call left off, and its folder tells what was measured."""

import json
import logging
import os

import pytest
from conftest import assert_same_tensors
from pretraining_tasks import OF_A_TRAINED_MODEL, arguments, training, write_corpus
from safetensors.torch import load_file
from transformers import TrainerState

from linformer_hf.common.records import read_results
from linformer_hf.training.pretraining import pretrain
from linformer_hf.training.run import about_data, check_processes, first_evaluation, start_run


COSTS = ("train_runtime", "tokens_per_second", "seconds", "peak_memory_bytes", "initial_perplexity")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus.txt")


def weights_of(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    "length",
    [{"max_steps": 6}, {"max_steps": -1, "num_train_epochs": 0.5}, {"max_steps": 6, "save_strategy": "no"}],
    ids=["steps", "epochs", "no checkpoint"],
)
def test_a_finished_command_repeated_trains_nothing_and_keeps_its_numbers(corpus, tmp_path, caplog, length):
    folder = tmp_path / "run"
    first = pretrain(arguments(corpus), training(folder, **length))
    before, record = weights_of(folder), read_results(folder)
    with caplog.at_level(logging.INFO, logger="linformer_hf"):
        again = pretrain(arguments(corpus), training(folder, **length))
    assert f"{folder} holds the finished run: nothing is trained." in caplog.messages
    assert_same_tensors(weights_of(folder), before)
    assert again["hidden_perplexity"] == pytest.approx(first["hidden_perplexity"], rel=1e-6)
    assert "train_runtime" not in again
    numbers = read_results(folder)["numbers"]
    assert {name: numbers[name] for name in COSTS} == {name: record["numbers"][name] for name in COSTS}


def test_a_run_that_was_finished_on_its_best_checkpoint_keeps_that_model(corpus, tmp_path):
    best = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True}
    options = {"max_steps": 6, "learning_rate": 0.3, "save_total_limit": 3, **best}
    pretrain(arguments(corpus), training(tmp_path / "run", **options))
    before = weights_of(tmp_path / "run")
    pretrain(arguments(corpus), training(tmp_path / "run", **options))
    assert_same_tensors(weights_of(tmp_path / "run"), before)


def test_a_run_that_stopped_early_is_finished(corpus, tmp_path):
    options = {"max_steps": 8, "learning_rate": 0.0, "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    for _ in range(2):
        pretrain(arguments(corpus, early_stopping_patience=1), training(tmp_path / "run", **options))
    state = TrainerState.load_from_json(tmp_path / "run" / "trainer_state.json")
    assert state.global_step == 2


def test_a_run_goes_on_to_more_steps_and_its_record_and_card_follow(corpus, tmp_path):
    folder = tmp_path / "run"
    pretrain(arguments(corpus), training(folder, max_steps=6))
    card = (folder / "README.md").read_text()
    further = pretrain(arguments(corpus), training(folder, max_steps=60))
    record = read_results(folder)
    assert record["numbers"]["hidden_perplexity"] == further["hidden_perplexity"]
    assert record["arguments"]["max_steps"] == 60
    state = TrainerState.load_from_json(folder / "trainer_state.json")
    assert state.global_step == 60
    after = (folder / "README.md").read_text()
    assert after != card
    assert f"{further['hidden_perplexity']:.4g}"[:4] in after
    with pytest.raises(ValueError, match="--max_steps was 60, now 30. Name a new --output_dir"):
        pretrain(arguments(corpus), training(folder, max_steps=30))


def test_an_evaluation_in_the_folder_of_a_model_keeps_what_its_training_measured(corpus, tmp_path):
    folder = tmp_path / "run"
    pretrain(arguments(corpus), training(folder, max_steps=6, do_eval=False))
    trained = read_results(folder)
    given = arguments(corpus, model_name_or_path=str(folder), **OF_A_TRAINED_MODEL)
    measured = pretrain(given, training(folder, do_train=False))
    record = read_results(folder)
    assert record["numbers"]["hidden_perplexity"] == measured["hidden_perplexity"]
    for name in ("train_runtime", "seconds", "unigram_perplexity"):
        assert record["numbers"][name] == trained["numbers"][name]
    assert record["about"] == trained["about"]
    assert record["arguments"]["max_steps"] == 6


def test_a_folder_with_other_files_is_not_written_to(corpus, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds notes.txt but no checkpoint to resume from; name a new --output_dir"):
        pretrain(arguments(corpus), training(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_nothing_to_do_is_refused_with_what_there_is(tmp_path):
    with pytest.raises(ValueError, match="give --do_train, --do_eval, --do_predict or several of them"):
        start_run(
            arguments("corpus.txt"),
            training(tmp_path, do_train=False, do_eval=False),
            ("do_train", "do_eval", "do_predict"),
        )


def test_a_folder_that_cannot_be_written_is_found_before_the_work_begins(corpus, tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match=f"--output_dir is {folder}, and .*file is no folder; name another one"):
            start_run(arguments(corpus), training(folder))
    (tmp_path / "closed").mkdir(mode=0o500)
    user = os.geteuid()
    try:
        if user == 0:
            tmp_path.chmod(0o755)
            os.seteuid(65534)  # root may write everywhere
        with pytest.raises(ValueError, match="closed/run, where no file can be written"):
            start_run(arguments(corpus), training(tmp_path / "closed" / "run"))
    finally:
        os.seteuid(user)


def test_a_damaged_record_is_found_before_the_work_begins(corpus, tmp_path):
    for text, message in (("{", "results.json is not JSON"), ('{"numbers": []}', "results.json is no record")):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            start_run(arguments(corpus), training(tmp_path))


def test_processes_that_would_each_train_alone_are_refused():
    check_processes(2, 2, "cpu", is_sharded=False)
    with pytest.raises(ValueError, match="2 processes were started, and each would train alone.*give --use_cpu"):
        check_processes(2, 1, "cpu", is_sharded=False)


def test_a_model_that_would_not_be_sharded_is_refused():
    check_processes(2, 2, "cuda", is_sharded=True)
    with pytest.raises(ValueError, match="--fsdp shards a model over several GPUs; on one process"):
        check_processes(1, 1, "cuda", is_sharded=True)
    with pytest.raises(ValueError, match="on CPUs the Trainer would leave it whole. Leave --fsdp out"):
        check_processes(2, 2, "cpu", is_sharded=True)


def test_a_card_names_data_and_models_without_their_folders(tmp_path):
    assert about_data(None, [str(tmp_path / "a.txt"), "b.txt"], "text") == {
        "dataset": "a.txt, b.txt",
        "dataset_type": "text",
        "dataset_ids": None,
    }
    assert about_data("you/it", None, "text") == {
        "dataset": "you/it",
        "dataset_type": "you/it",
        "dataset_ids": ["you/it"],
    }
    assert "Python" in about_data(None, None, "text")["dataset"]
    assert about_data(None, ["a.txt"], "text", held_out_files=[str(tmp_path / "b.txt")])["measured_on"] == "b.txt"


def test_the_first_evaluation_is_that_before_training():
    history = [
        {"step": 0, "eval_loss": 3.0, "eval_cosine": 0.5},
        {"step": 5, "loss": 1.0},
        {"step": 5, "eval_loss": 2.0},
    ]
    assert first_evaluation(TrainerState(log_history=history)) == {"step": 0, "loss": 3.0, "cosine": 0.5}
    assert first_evaluation(TrainerState(log_history=history[1:2])) == {}


def test_the_record_is_valid_json(corpus, tmp_path):
    pretrain(arguments(corpus), training(tmp_path / "run", max_steps=1))
    assert json.loads((tmp_path / "run" / "results.json").read_text(), parse_constant=pytest.fail)
