"""Several runs side by side, as a table, a picture and a record."""

import json
import re
from pathlib import Path

import pytest

from linformer_hf.training.run_tables import RunTableArguments, curves_by_seconds, read_states, tabulate_runs


@pytest.fixture
def runs(tmp_path):
    """Two runs as a training leaves them: a record, and a state with the losses that were logged."""
    folders = []
    for name, loss in (("dense", 5.0), ("linear", 4.5)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        record = {
            "command": f"python scripts/run_mlm.py {name}",
            "commit": "abc",
            "numbers": {"perplexity": loss * 10, "commands": []},
        }
        (folder / "results.json").write_text(json.dumps(record))
        history = [{"step": step, "eval_loss": loss - step / 100} for step in (0, 50, 100)]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
        folders.append(str(folder))
    return folders


def table_of(runs, folder, **changes):
    return RunTableArguments(**{"runs": runs, "numbers": ["perplexity"], "output_dir": str(folder), **changes})


def test_the_table_has_a_row_and_the_command_of_each_run(runs, tmp_path):
    numbers = tabulate_runs(table_of(runs, tmp_path / "out", title="Two runs", note="Small ones."))
    assert numbers == {"dense_perplexity": 50.0, "linear_perplexity": 45.0}
    text = (tmp_path / "out" / "README.md").read_text()
    assert re.search(r"\| dense +\| 50 +\|\n\| linear +\| 45 +\|", text)
    assert text.startswith("# Two runs\n\nSmall ones.")
    assert "python scripts/run_mlm.py linear" in text
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert record["numbers"] == numbers
    assert record["about"]["runs"]["dense"]["commit"] == "abc"


def test_runs_that_repeat_each_other_become_one_row(runs, tmp_path):
    repeated = []
    for run, name in zip(runs, ("linear-1", "linear-2")):
        repeated.append(str(Path(run).rename(tmp_path / "runs" / name)))
    numbers = tabulate_runs(table_of(repeated, tmp_path / "out", over_seeds=True))
    assert numbers == {"linear_perplexity": 47.5, "linear_perplexity_deviation": pytest.approx(12.5**0.5)}
    text = (tmp_path / "out" / "README.md").read_text()
    assert re.search(r"\| linear +\| 2 +\| 47.5 ± 3.5 +\|", text)
    assert text.count("python scripts/run_mlm.py") == 1
    assert "# likewise, with other seeds: linear-2\n" in text
    apart = tabulate_runs(table_of(repeated, tmp_path / "out"))
    assert apart == {"linear-1_perplexity": 50.0, "linear-2_perplexity": 45.0}
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {name: run["numbers"] for name, run in record["about"]["runs"].items()} == {
        "linear-1": {"perplexity": 50.0},
        "linear-2": {"perplexity": 45.0},
    }


def test_a_seed_that_failed_is_seen_in_the_table(runs, tmp_path):
    repeated = []
    for number, value in enumerate((12345.0, 12545.0, None, float("inf")), start=1):
        folder = tmp_path / "repeats" / f"linear-{number}"
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(
            json.dumps({"command": "python", "commit": "abc", "numbers": {"speed": value}})
        )
        repeated.append(str(folder))
    numbers = tabulate_runs(table_of(repeated, tmp_path / "out", over_seeds=True, numbers=["speed"]))
    assert numbers == {"linear_speed": 12445.0, "linear_speed_deviation": pytest.approx(20000**0.5)}
    assert re.search(r"\| linear +\| 4 +\| 12,445 ± 141 \(2 of 4\) +\|", (tmp_path / "out" / "README.md").read_text())


def test_runs_that_differ_in_more_than_their_seed_share_no_row(runs, tmp_path):
    repeated = []
    for run, number in zip(runs, (16, 32)):
        folder = Path(run).rename(tmp_path / "runs" / f"layerwise-{number}")
        record = json.loads((folder / "results.json").read_text())
        arguments = {"output_dir": f"runs/layerwise-{number}", "seed": number, "projected_length": [number]}
        (folder / "results.json").write_text(json.dumps(record | {"arguments": arguments}))
        repeated.append(str(folder))
    with pytest.raises(ValueError, match="layerwise-32 differs in projected_length, and not in its seed alone"):
        tabulate_runs(table_of(repeated, tmp_path / "out", over_seeds=True))
    assert len(tabulate_runs(table_of(repeated, tmp_path / "out"))) == 2


def test_losses_are_also_drawn_against_seconds_where_no_run_counted_them_anew(runs, tmp_path):
    lines = [{"step": step, "loss": 1.0, "train_runtime": step / 10} for step in (40, 80)]
    for run in runs:
        state = json.loads(Path(run, "trainer_state.json").read_text())
        state["log_history"] += lines
        Path(run, "trainer_state.json").write_text(json.dumps(state))
    states = read_states(runs)
    assert curves_by_seconds(states) == {"dense": [(4.0, 4.5), (8.0, 4.0)], "linear": [(4.0, 4.0), (8.0, 3.5)]}
    tabulate_runs(table_of(runs, tmp_path / "out"))
    assert "curves_by_seconds.png" in (tmp_path / "out" / "README.md").read_text()
    states["dense"].log_history.append({"step": 90, "loss": 1.0, "train_runtime": 1.0})
    assert curves_by_seconds(states) == {}


def test_a_column_of_seconds_is_called_so(runs, tmp_path):
    for run in runs:
        record = json.loads(Path(run, "results.json").read_text())
        record["numbers"]["train_runtime"] = 61.25
        Path(run, "results.json").write_text(json.dumps(record))
    tabulate_runs(table_of(runs, tmp_path / "out", numbers=["perplexity", "train_runtime"]))
    assert "| training, seconds |" in (tmp_path / "out" / "README.md").read_text()


def test_runs_without_curves_make_no_picture(runs, tmp_path):
    for run in runs:
        (tmp_path / run / "trainer_state.json").unlink()
    tabulate_runs(table_of(runs, tmp_path / "out"))
    assert not (tmp_path / "out" / "curves.png").exists()
    assert "curves" not in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"numbers": ["accuracy"]}, "dense has no accuracy; it has commands, perplexity"),
        ({"runs": ["nowhere"]}, "nowhere has no results.json"),
        ({"runs": ["a/run", "b/run"]}, "two of run, run are equal"),
        ({"numbers": ["commands"]}, "commands of dense is no single number"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(runs, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        tabulate_runs(table_of(**{"runs": runs, "folder": tmp_path / "out", **changes}))
    assert not (tmp_path / "out").exists()


def test_a_damaged_run_leaves_nothing_behind(runs, tmp_path):
    state, record = Path(runs[0], "trainer_state.json"), Path(runs[1], "results.json")
    whole = state.read_text()
    for text, message in (
        ("{", "trainer_state.json is not JSON"),
        ('{"log_history": [1]}', "is no state of a Trainer"),
    ):
        state.write_text(text)
        with pytest.raises(ValueError, match=message):
            tabulate_runs(table_of(runs, tmp_path / "out"))
    state.write_text(whole)
    record.write_text('{"numbers": {"perplexity": 1.0}}')
    with pytest.raises(ValueError, match="The record of .*linear has no command"):
        tabulate_runs(table_of(runs, tmp_path / "out"))
    with pytest.raises(ValueError, match="--numbers names one twice: perplexity, perplexity"):
        tabulate_runs(table_of(runs, tmp_path / "out", numbers=["perplexity"] * 2))
    assert not (tmp_path / "out").exists()


def test_only_an_older_table_is_written_over(runs, tmp_path):
    tabulate_runs(table_of(runs, tmp_path / "out"))
    tabulate_runs(table_of(runs[:1], tmp_path / "out"))
    assert "linear" not in (tmp_path / "out" / "README.md").read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("mine")
    with pytest.raises(ValueError, match=r"mine holds something else \(README.md\)"):
        tabulate_runs(table_of(runs, tmp_path / "mine"))
    assert (tmp_path / "mine" / "README.md").read_text() == "mine"
