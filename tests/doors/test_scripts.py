"""What every script owes its user: it explains itself, reads options from a file, and takes mistakes calmly."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))


def run(command, folder):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_script_explains_itself(script):
    done = run([sys.executable, str(script), "--help"], ROOT)
    assert done.returncode == 0, done.stderr
    assert "options:" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "run_mlm.py --output_dir out --do_train --train_file missing.txt",
            "error: missing.txt: there is no such file",
        ),
        ("run_mlm.py --output_dir out", "error: Nothing is asked for"),
        ("run_mlm.py --output_dir out --do_train --projection_sharing all", "error: `projection_sharing` is 'all'"),
        ("run_mlm.py --do_trian", "unrecognized arguments|not used by the HfArgumentParser"),
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
    ],
)
def test_a_mistake_gives_one_line_and_exit_code_2(words, message, tmp_path):
    script, *arguments = words.split()
    done = run([sys.executable, str(ROOT / "scripts" / script), *arguments], tmp_path)
    assert done.returncode == 2, done.stderr
    assert re.search(message, done.stderr, flags=re.DOTALL)  # the host's own messages have several lines
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_options_come_from_a_file_and_flags_win(tmp_path):
    (tmp_path / "settings.json").write_text(json.dumps({"folder": "nowhere", "repo_id": "you/it", "private": True}))
    done = run(
        [sys.executable, str(ROOT / "scripts" / "push_to_hub.py"), "settings.json", "--folder", "elsewhere"], tmp_path
    )
    assert done.returncode == 2
    assert "error: elsewhere: there is no such folder" in done.stderr
