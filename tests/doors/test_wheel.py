"""The built package, without the clone: what `pip install linformer_hf` brings does every task by itself."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from doors import ROOT


ALL_TASKS = r"""
import sys
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizer

import linformer_hf
from linformer_hf.__main__ import main

assert Path(linformer_hf.__file__).is_relative_to(sys.argv[1]), linformer_hf.__file__
torch.set_num_threads(1)


def run(*words):
    sys.argv = ["linformer", *words]
    main()


small = "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32"
trainer = ("--do_train", "--do_eval", "--max_steps", "2", "--disable_tqdm", "true", "--save_strategy", "no")
lengths = ("--max_seq_length", "32", "--max_train_samples", "40", "--max_eval_samples", "10")
run("pretrain", "--output_dir", "mlm", "--projected_length", "8", "--vocab_size", "400", "--config_overrides", small,
    *lengths, *trainer)
Path("rows.csv").write_text("text,label\n" + "".join(f"Boat {n} is fine.,{n % 2}\n" for n in range(40)))
run("finetune", "--model_name_or_path", "mlm", "--train_file", "rows.csv", "--output_dir", "labels", *trainer)

words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
sizes = dict(field.split("=") for field in small.split(","))
dense = BertModel(BertConfig(vocab_size=len(words), **{name: int(size) for name, size in sizes.items()}))
dense.save_pretrained("dense")
BertTokenizer(vocab={word: number for number, word in enumerate(words)}, model_max_length=512).save_pretrained("dense")
run("convert", "--model_name_or_path", "dense", "--output_dir", "linear", "--projected_length", "8")
run("distill", "--model_name_or_path", "linear", "--teacher_name_or_path", "dense", "--output_dir", "taught", *lengths,
    *trainer)
run("spectrum", "--model_name_or_path", "dense", "--output_dir", "spectrum", "--max_texts", "2", "--max_seq_length",
    "32")
run("onnx", "--model_name_or_path", "mlm", "--output_dir", "onnx")
run("push", "--folder", "mlm", "--repo_id", "you/it", "--dry_run")
run("explore", "--space", "space")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source distribution, built from what git would take in."""
    pytest.importorskip("hatchling", reason="hatchling builds the package: pip install linformer_hf[test]")
    folder = tmp_path_factory.mktemp("built")
    build = "import hatchling.build as b, sys; print(b.build_wheel(sys.argv[1])); print(b.build_sdist(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", build, str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wheel, sdist = done.stdout.split()[-2:]
    return folder / wheel, folder / sdist


def test_the_wheel_does_every_task_without_the_clone(built, tmp_path):
    site, workplace = tmp_path / "site", tmp_path / "workplace"
    workplace.mkdir()
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(site)
    done = subprocess.run(
        [sys.executable, "-c", ALL_TASKS, str(site)],
        cwd=workplace,
        env={**os.environ, "PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for made in ("mlm", "labels", "linear", "taught"):
        assert (workplace / made / "README.md").read_text().startswith("---\n"), f"{made} has no card"
        assert (workplace / made / "modeling_linformer.py").is_file(), made
    for made in ("spectrum/spectrum.png", "onnx/model.onnx", "space/app.py"):
        assert (workplace / made).is_file(), made


def test_the_source_distribution_holds_all_that_its_tests_need(built):
    with tarfile.open(built[1]) as archive:
        held = {Path(*Path(name).parts[1:]).as_posix() for name in archive.getnames()}
    known = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if known.returncode:
        pytest.skip("the files of the repository are listed by git, which is missing here")
    needed = {name for name in known.stdout.split("\n") if name and (ROOT / name).is_file()}
    assert needed - held - {".gitignore"} == set()
