"""Where a run resumes: at a whole checkpoint of as many processes, and never in silence somewhere else."""

import shutil

import pytest
import torch
from conftest import assert_same_tensors
from pretraining_tasks import arguments, pretrain_until, training, write_corpus
from safetensors.torch import load_file
from transformers import TrainerState

from linformer_hf.training.pretraining import pretrain
from linformer_hf.training.resuming import find_checkpoint, is_whole, newest_checkpoint, tokens_seen


SHORT_FIRST = {"short_seq_length": 8, "short_share": 0.5}
STEPS = {"max_steps": 12, "save_steps": 4}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus.txt")


@pytest.fixture(scope="module")
def unbroken(corpus, tmp_path_factory):
    """The folder of a run that nothing ended."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    pretrain(arguments(corpus, **SHORT_FIRST), training(folder, **STEPS))
    return folder


def weights_of(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("step", [2, 6, 9], ids=["before a checkpoint", "in short blocks", "in full blocks"])
def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(corpus, tmp_path, unbroken, step):
    pretrain_until(step, arguments(corpus, **SHORT_FIRST), training(tmp_path / "run", **STEPS))
    pretrain(arguments(corpus, **SHORT_FIRST), training(tmp_path / "run", **STEPS))
    assert_same_tensors(weights_of(tmp_path / "run"), weights_of(unbroken), what="weight")


def test_a_half_written_checkpoint_is_passed_over(corpus, tmp_path, unbroken, caplog):
    shutil.copytree(unbroken, tmp_path / "run")
    for file in (tmp_path / "run").iterdir():
        if file.is_file():
            file.unlink()
    (tmp_path / "run" / "checkpoint-12" / "trainer_state.json").write_text('{"epoch": 1.')
    shutil.rmtree(tmp_path / "run" / "checkpoint-8")
    with caplog.at_level("INFO", logger="linformer_hf"):
        pretrain(arguments(corpus, **SHORT_FIRST), training(tmp_path / "run", **STEPS))
    assert f"{tmp_path / 'run' / 'checkpoint-12'} was not written to its end and is passed over." in caplog.messages
    assert f"Resuming from {tmp_path / 'run' / 'checkpoint-4'}." in caplog.messages
    assert_same_tensors(weights_of(tmp_path / "run"), weights_of(unbroken), what="weight")


def write_checkpoint(folder, num_processes, seen=0):
    """Write what tells of the processes of a checkpoint, and of its end."""
    folder.mkdir(parents=True)
    names = ["rng_state.pth"] if num_processes == 1 else [f"rng_state_{rank}.pth" for rank in range(num_processes)]
    for name in names:
        torch.save({}, folder / name)
    TrainerState(num_input_tokens_seen=seen).save_to_json(folder / "trainer_state.json")
    return folder


@pytest.mark.parametrize(("wrote", "now"), [(1, 2), (2, 1), (2, 4), (4, 2)])
def test_a_checkpoint_of_another_number_of_processes_is_refused_with_both_numbers(tmp_path, wrote, now):
    write_checkpoint(tmp_path / "checkpoint-4", wrote)
    written = f"written by {wrote} process{'es' if wrote > 1 else ''}, and this run has {now}"
    with pytest.raises(ValueError, match=f"checkpoint-4 was {written}: start it with {wrote}, or name a new --output"):
        newest_checkpoint(tmp_path, now)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_checkpoint_is_whole_with_the_random_state_of_every_process(tmp_path, num_processes):
    folder = write_checkpoint(tmp_path / "checkpoint-4", num_processes)
    assert is_whole(folder, num_processes)
    assert newest_checkpoint(tmp_path, num_processes) == str(folder)
    (folder / "trainer_state.json").write_text('{"global_st')
    assert not is_whole(folder, num_processes)
    assert newest_checkpoint(tmp_path, num_processes) is None


def test_a_random_state_that_was_not_written_to_its_end_is_seen(tmp_path):
    folder = write_checkpoint(tmp_path / "checkpoint-4", 2)
    whole = (folder / "rng_state_1.pth").read_bytes()
    (folder / "rng_state_1.pth").write_bytes(whole[: len(whole) // 2])
    assert not is_whole(folder, 2)
    assert not is_whole(folder, 1)
    (folder / "rng_state_1.pth").unlink()
    assert not is_whole(folder, 2)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
def test_a_damaged_file_makes_a_checkpoint_that_is_passed_over(tmp_path, unbroken, name):
    shutil.copytree(unbroken / "checkpoint-4", tmp_path / "checkpoint-4")
    damaged = tmp_path / "checkpoint-8"
    shutil.copytree(unbroken / "checkpoint-8", damaged)
    assert newest_checkpoint(tmp_path, 1) == str(damaged)
    whole = (damaged / name).read_bytes()
    for part in (b"", b"[]", whole[: len(whole) // 2]):
        (damaged / name).write_bytes(part)
        assert newest_checkpoint(tmp_path, 1) == str(tmp_path / "checkpoint-4")


def test_true_means_the_last_checkpoint(tmp_path):
    folder = tmp_path / "run"
    for step in (4, 12, 8):
        write_checkpoint(folder / f"checkpoint-{step}", 1)
    for value in ("True", "true"):
        assert find_checkpoint(training(folder, resume_from_checkpoint=value)) == str(folder / "checkpoint-12")
    with pytest.raises(ValueError, match="--resume_from_checkpoint is True, and .*empty holds no checkpoint"):
        find_checkpoint(training(tmp_path / "empty", resume_from_checkpoint="True"))


def test_a_checkpoint_that_is_named_must_be_one(tmp_path):
    named = write_checkpoint(tmp_path / "other" / "checkpoint-4", 1)
    assert find_checkpoint(training(tmp_path / "run", resume_from_checkpoint=str(named))) == str(named)
    with pytest.raises(ValueError, match="--resume_from_checkpoint is nowhere, which is no whole checkpoint"):
        find_checkpoint(training(tmp_path / "run", resume_from_checkpoint="nowhere"))
    with pytest.raises(ValueError, match="which has no effect without --do_train"):
        find_checkpoint(training(tmp_path / "run", resume_from_checkpoint=str(named), do_train=False))


def test_a_checkpoint_without_the_state_of_the_optimizer_is_not_resumed_from(tmp_path):
    write_checkpoint(tmp_path / "run" / "checkpoint-4", 1)
    with pytest.raises(ValueError, match="--save_only_model left no optimizer state in .*checkpoint-4"):
        find_checkpoint(training(tmp_path / "run", save_only_model=True))


def test_tokens_before_a_checkpoint_are_not_counted_again(tmp_path):
    assert tokens_seen(None) == 0
    assert tokens_seen(str(write_checkpoint(tmp_path / "checkpoint-4", 1, seen=99))) == 99
