"""What every script owes its user: it explains itself, reads options from a file, and answers mistakes in one line."""

import json
import re

import pytest
from doors import SCRIPTS, run_here

from linformer_hf.__main__ import COMMANDS


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    return lambda *words: run_here(words, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_script_explains_itself(script, run):
    done = run(script.name, "--help")
    assert done.returncode == 0, done.stderr
    assert "options:" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, run):
    done = run("linformer", command, "--help")
    assert done.returncode == 0, done.stderr
    assert f"usage: linformer {command}" in done.stdout
    assert COMMANDS[command].summary in done.stdout


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)], ids=len)
def test_the_command_alone_lists_its_subcommands_a_line_each(words, run):
    done = run("linformer", *words)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    for name, command in COMMANDS.items():
        assert sum(line.split() == [name, *command.summary.split()] for line in lines) == 1


def test_an_unknown_command_is_refused_with_those_that_exist(run):
    done = run("linformer", "pretrian")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no command 'pretrian'; did you mean pretrain?")
    assert all(name in done.stderr for name in COMMANDS)


def test_the_readers_of_scripts_and_of_the_command_have_the_same_options(run):
    script, command = run("run_mlm.py", "--help").stdout, run("linformer", "pretrain", "--help").stdout
    options = [set(re.findall(r"^  (--\w+)", text, flags=re.MULTILINE)) for text in (script, command)]
    assert options[0] == options[1] != set()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "run_mlm.py --output_dir out --do_train --train_file missing.txt",
            "error: missing.txt: there is no such file",
        ),
        ("run_mlm.py --output_dir out", "error: Nothing is asked for"),
        ("run_mlm.py --output_dir out --do_train --projection_sharing all", "error: `projection_sharing` is 'all'"),
        ("run_mlm.py --do_trian", "error: There is no option --do_trian. Did you mean --do_train?"),
        ("run_mlm.py settings.yaml", "error: .*settings.yaml"),
        ("push_to_hub.py --folder nowhere --repo_id you/it", "error: nowhere: there is no such folder"),
        (
            "run_glue.py --model_name_or_path . --output_dir out --do_train --task_name imdb",
            "error: 'imdb' is no GLUE",
        ),
        ("convert_checkpoint.py --model_name_or_path nowhere --output_dir out", "error: .*(nowhere|offline)"),
        ("distill.py --model_name_or_path a --teacher_name_or_path b --output_dir out", "error: Nothing is asked for"),
        ("compare_models.py --model_name_or_path a --dense_name_or_path b --output_dir out", "error: "),
        ("analyze_spectrum.py --model_name_or_path nowhere --output_dir out", "error: .*(nowhere|offline)"),
        ("measure_efficiency.py --output_dir out --tasks sleeping", "error: .*sleeping"),
        ("export_onnx.py --model_name_or_path nowhere --output_dir out", "error: .*(nowhere|offline)"),
        ("explore.py --port 0", "error: --port is 0"),
        ("tabulate_runs.py --runs nowhere --numbers loss --output_dir out", "error: nowhere has no results.json"),
        (
            "make_corpus.py --speeches a.tgz --brown b.tgz --wikipedia c.whl --output_dir out",
            "error: a.tgz: there is no such file",
        ),
    ],
)
def test_a_mistake_gives_one_line_and_exit_code_2(words, message, run, tmp_path):
    done = run(*words.split())
    assert done.returncode == 2, done.stderr
    assert re.search(message, done.stderr, flags=re.DOTALL)  # the host's own messages have several lines
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_options_come_from_a_file_and_flags_win(run, tmp_path):
    (tmp_path / "settings.json").write_text(json.dumps({"folder": "nowhere", "repo_id": "you/it", "private": True}))
    for door in (["push_to_hub.py"], ["linformer", "push"]):
        done = run(*door, "settings.json", "--folder", "elsewhere")
        assert done.returncode == 2
        assert "error: elsewhere: there is no such folder" in done.stderr
