"""Records: what a call measured joins what earlier calls into the same folder measured."""

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from linformer_hf.common.records import command_words, commit, read_results, write_results


ROOT = Path(__file__).parents[2]


@dataclass
class Options:
    """As the Trainer's own."""

    do_train: bool = False
    max_steps: int = -1
    names: list[str] = field(default_factory=list)


@dataclass
class Analysis:
    """Options of a task that trains nothing."""

    model_name_or_path: str = "a"


def call(monkeypatch, folder, command, numbers, options=None, about=None):
    monkeypatch.setattr(sys, "argv", ["linformer", *command.split()])
    write_results(folder, numbers, (options or Options(),), about)
    return read_results(folder)


def test_an_evaluation_into_the_folder_of_a_model_keeps_what_the_training_measured(monkeypatch, tmp_path):
    call(monkeypatch, tmp_path, "pretrain --do_train", {"train_runtime": 3.0, "perplexity": 9.0}, Options(True, 60))
    record = call(monkeypatch, tmp_path, "pretrain --do_eval", {"perplexity": 8.0, "hidden_perplexity": 7.0})
    assert record["numbers"] == {"train_runtime": 3.0, "perplexity": 8.0, "hidden_perplexity": 7.0}
    assert record["command"] == "linformer pretrain --do_train"
    assert record["arguments"] == {"do_train": True, "max_steps": 60}
    assert [(one["command"], one["numbers"]) for one in record["calls"]] == [
        ("linformer pretrain --do_train", ["train_runtime"]),
        ("linformer pretrain --do_eval", ["hidden_perplexity", "perplexity"]),
    ]


def test_training_further_leaves_no_number_of_the_model_before(monkeypatch, tmp_path):
    call(monkeypatch, tmp_path, "a --do_train", {"train_runtime": 3.0, "accuracy": 0.5}, Options(True, 60))
    call(monkeypatch, tmp_path, "a --do_predict", {"predict_accuracy": 0.4})
    record = call(monkeypatch, tmp_path, "a --do_train", {"train_runtime": 4.0, "loss": 1.0}, Options(True, 120))
    assert record["numbers"] == {"train_runtime": 4.0, "loss": 1.0}
    assert record["arguments"]["max_steps"] == 120
    assert [one["numbers"] for one in record["calls"]] == [[], ["loss", "train_runtime"]]  # both made the weights


def test_what_a_card_says_of_the_training_outlives_an_evaluation(monkeypatch, tmp_path):
    call(monkeypatch, tmp_path, "a", {"train_runtime": 3.0}, Options(True), {"dataset": "that trained"})
    record = call(monkeypatch, tmp_path, "b", {"accuracy": 0.5}, about={"dataset": "another"})
    assert record["about"] == {"dataset": "that trained"}


def test_a_record_of_version_0_1_0_grows_too(monkeypatch, tmp_path):
    old = {"command": "python scripts/run_mlm.py", "commit": None, "device": "CPU", "numbers": {"train_runtime": 1}}
    (tmp_path / "results.json").write_text(json.dumps(old))
    record = call(monkeypatch, tmp_path, "pretrain --do_eval", {"perplexity": 8.0})
    assert record["numbers"] == {"train_runtime": 1, "perplexity": 8.0}
    assert [one["command"] for one in record["calls"]] == ["python scripts/run_mlm.py", "linformer pretrain --do_eval"]


def test_a_token_in_a_record_of_version_0_1_0_reaches_no_reader(monkeypatch, tmp_path):
    token = "hf_" + "aBcD" * 8
    old = {"command": f"python scripts/run_mlm.py --hub_token {token}", "arguments": {"hub_token": "short"}}
    (tmp_path / "results.json").write_text(json.dumps(old | {"numbers": {"train_runtime": 1}}))
    assert token not in json.dumps(read_results(tmp_path))
    assert read_results(tmp_path)["arguments"] == {"hub_token": "<TOKEN>"}
    call(monkeypatch, tmp_path, "pretrain --do_eval", {"perplexity": 8.0})
    assert token not in (tmp_path / "results.json").read_text()


def test_numbers_of_another_model_do_not_mix(monkeypatch, tmp_path):
    call(monkeypatch, tmp_path, "spectrum", {"layer_0": 3.0, "layer_1": 2.0}, Analysis("a"))
    same = call(monkeypatch, tmp_path, "spectrum", {"layer_0": 4.0}, Analysis("a"))
    assert same["numbers"] == {"layer_0": 4.0, "layer_1": 2.0}
    other = call(monkeypatch, tmp_path, "spectrum", {"layer_0": 5.0}, Analysis("b"))
    assert other["numbers"] == {"layer_0": 5.0}
    assert len(other["calls"]) == 1


def test_infinity_and_nan_are_values_in_valid_json(tmp_path):
    numbers = {"perplexity": math.inf, "loss": math.nan, "least": -math.inf, "list": [1.0, math.inf]}
    file = write_results(tmp_path, numbers)
    stored = json.loads(file.read_text(), parse_constant=pytest.fail)["numbers"]
    assert stored == {"perplexity": "Infinity", "loss": "NaN", "least": "-Infinity", "list": [1.0, "Infinity"]}
    found = read_results(tmp_path)["numbers"]
    assert (found["perplexity"], found["least"]) == (math.inf, -math.inf)
    assert math.isnan(found["loss"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ["python"]),
        ([""], ["python"]),
        (["-c", "x"], ["python"]),
        (["/usr/bin/linformer", "pretrain"], ["linformer", "pretrain"]),
        ([str(ROOT / "linformer_hf" / "__main__.py"), "push"], ["linformer", "push"]),
        ([os.path.abspath("scripts/run_mlm.py"), "--do_train"], ["python", "scripts/run_mlm.py", "--do_train"]),
    ],
)
def test_a_command_is_recorded_as_a_reader_can_give_it(monkeypatch, tmp_path, argv, words):
    assert command_words(argv) == words
    monkeypatch.setattr(sys, "argv", argv)
    write_results(tmp_path, {})
    assert read_results(tmp_path)["command"].startswith(words[0])


def test_a_command_of_several_processes_says_so(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert command_words(["scripts/run_mlm.py"]) == ["torchrun", "--nproc_per_node=2", "scripts/run_mlm.py"]
    assert command_words(["linformer", "pretrain"])[1:] == ["--nproc_per_node=2", "-m", "linformer_hf", "pretrain"]


def make_repository(folder):
    (folder / "linformer_hf").mkdir(parents=True)
    (folder / "linformer_hf" / "configuration_linformer.py").write_text("")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "a"]):
        subprocess.run([*git, *words], check=True)
    return folder / "linformer_hf"


def test_the_commit_is_that_of_this_package_and_no_other(tmp_path):
    """Not that of somebody's project into which the package was installed or copied."""
    package = make_repository(tmp_path / "project")
    assert commit(package) is None
    (tmp_path / "project" / "pyproject.toml").write_text('[project]\nname = "theirs"\n')
    assert commit(package) is None
    (tmp_path / "project" / "pyproject.toml").write_text('[project]\nname = "linformer_hf"\n')
    assert len(commit(package)) >= 40
    deeper = tmp_path / "project" / ".venv" / "linformer_hf"
    deeper.mkdir(parents=True)
    assert commit(deeper) is None
    assert commit(tmp_path / "nowhere" / "linformer_hf") is None


def test_records_are_written_where_unix_modules_are_missing(tmp_path):
    code = (
        "import sys, psutil, torch; from transformers import PreTrainedModel; sys.modules['resource'] = None\n"
        "from linformer_hf.common.measurement import Stopwatch\n"
        "from linformer_hf.common.records import write_results\n"
        "write_results(sys.argv[1], Stopwatch().read())"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert "seconds" in read_results(tmp_path)["numbers"]
