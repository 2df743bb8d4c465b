"""What the texts tell a reader to run, run: the README from top to bottom, and the commands in scripts' docstrings."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from doors import ROOT, SCRIPTS, run_here
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizer

from linformer_hf import convert_pretrained
from linformer_hf.benchmark import cells
from linformer_hf.benchmark.isolation import reason


README = (ROOT / "README.md").read_text("utf-8")
QUICKSTART = "runs/quickstart"
QUICKSTART_COMMAND = ["bash", str(ROOT / "scripts" / "quickstart.sh")]
QUICKSTART_OPTIONS = ["--max_steps", "20", "--max_train_samples", "20", "--max_eval_samples", "2"]
PARENT = "sentence-transformers/all-MiniLM-L6-v2"  # of the README; a small encoder stands in its place

# What makes a command small: the last flag of a name wins. Everything else is run as it stands.
TRAINER = "--max_steps 2 --per_device_train_batch_size 2 --disable_tqdm true"
FEW_TEXTS = "--max_train_samples 20 --max_eval_samples 4"
TINY = "--config_overrides hidden_size=16,num_hidden_layers=2,num_attention_heads=2,intermediate_size=32"
SMALLER = {
    "pretrain": f"{TRAINER} {FEW_TEXTS} --vocab_size 500 {TINY}",
    "finetune": TRAINER,
    "push": "--dry_run",
    "convert": "",
    "resize": "",
    "distill": f"{TRAINER} {FEW_TEXTS}",
    "compare": "--max_eval_samples 40 --max_blocks 4 --rounds 1",
    "spectrum": "--max_texts 2",
    "benchmark": "--hidden_size 16 --num_attention_heads 2 --vocab_size 99 --lengths 32 --batch_tokens 32 "
    "--projected_lengths 8 --num_hidden_layers 1 --repeats 1 --dense sdpa --threads 1",
    "explore": "--space {folder}/space",
    "onnx": "",
    "tabulate": "",
}
COMMAND_OF_SCRIPT = {
    "run_mlm": "pretrain",
    "run_glue": "finetune",
    "push_to_hub": "push",
    "convert_checkpoint": "convert",
    "resize_checkpoint": "resize",
    "distill": "distill",
    "compare_models": "compare",
    "analyze_spectrum": "spectrum",
    "measure_efficiency": "benchmark",
    "explore": "explore",
    "export_onnx": "onnx",
    "tabulate_runs": "tabulate",
}


def joined_lines(text):
    return [line.strip() for line in re.sub(r"\\\n\s*", "", text).splitlines()]


def steps_of_the_readme():
    """List the blocks that the README has a reader run, and the commands in them one by one, in their order."""
    for language, block in re.findall(r"```(python|bash)\n(.*?)```", README, flags=re.DOTALL):
        if language == "python":
            yield "python", block
        else:
            yield from (("bash", command) for command in joined_lines(block) if not command.startswith("pip install"))


def commands_of_scripts():
    for script in SCRIPTS:
        if script.stem in COMMAND_OF_SCRIPT:
            yield from (line for line in joined_lines(script.read_text()) if line.startswith("python scripts/"))


def in_folder(command, folder, **changes):
    """Run a command as a reader does, with the Hub's cache in the place of the network."""
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PATH": path}
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | settings | {"HF_HOME": str(folder / "hub"), "VIRTUAL_ENV": sys.prefix} | changes,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )


def save_sentence_encoder(folder):
    """Save a small BERT as Sentence Transformers do."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "boats", "bridges", "line"]
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=512, **sizes)).save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(words)}
    BertTokenizer(vocab=vocabulary, model_max_length=512).save_pretrained(folder)
    body = Transformer(str(folder))
    SentenceTransformer(modules=[body, Pooling(body.get_embedding_dimension(), "mean")]).save(str(folder))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """An empty folder with the scripts of the clone, and the README's parent in the cache of the Hub."""
    folder = tmp_path_factory.mktemp("reader")
    # the packages are there, or no test would run, and pip takes ten seconds to see that
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(f'#!/bin/sh\n[ "$2" = pip ] || exec {sys.executable} "$@"\n')
    (folder / "bin" / "python").chmod(0o755)
    (folder / "scripts").symlink_to(ROOT / "scripts")
    cached = folder / "hub" / "hub" / f"models--{PARENT.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    save_sentence_encoder(cached / "snapshots" / ("0" * 40))
    return folder


def smaller(command, folder):
    """Split a command into words, with flags behind it that make it small."""
    words = shlex.split(command)
    if words[0] == "linformer":
        name = words[1]
    elif "linformer_hf" in words:
        name = words[words.index("linformer_hf") + 1]
    else:
        script = next((Path(word).stem for word in words if word.endswith(".py")), None)
        name = COMMAND_OF_SCRIPT.get(script)
    return words if name is None else words + shlex.split(SMALLER[name].format(folder=folder))


@pytest.mark.parametrize(
    ("language", "step"), list(steps_of_the_readme()), ids=lambda value: value.strip().splitlines()[0][:50]
)
def test_the_readme_runs_from_top_to_bottom(language, step, workplace, monkeypatch, capsys):
    """Each step finds what the steps above it have made."""
    if language == "bash":
        if "test.sh" in step:
            pytest.skip("that is this very suite")
        if step.startswith("linformer") and "--output_dir runs/converted" not in step:
            # the first command shows that it starts; for the others most of a start is saved
            monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(workplace / "hub" / "hub"))
            done = run_here(smaller(step, workplace), workplace, monkeypatch, capsys)
        elif step.startswith("python -c"):
            done = in_folder(["bash", "-c", step], workplace)
        elif "quickstart.sh" in step:
            done = in_folder([*QUICKSTART_COMMAND, str(workplace / QUICKSTART), *QUICKSTART_OPTIONS], workplace)
        else:
            done = in_folder(smaller(step, workplace), workplace)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return
    done = in_folder([sys.executable, "-c", re.sub(r"max_steps=\d{3,}", "max_steps=2", step)], workplace)
    assert done.returncode == 0, done.stderr[-4000:]
    shown = [line[2:] for line in step.splitlines() if line.startswith("# ")]
    printed = done.stdout.splitlines()[-len(shown) :]
    # words and numbers are those of one machine; their form is the same everywhere
    form = re.compile(r"[^\s\d]+|\d+\.\d+|\d+")
    assert [len(form.findall(line)) for line in printed] == [len(form.findall(line)) for line in shown]


def test_the_quickstart_says_what_its_model_fills_in_and_keeps_the_model(workplace):
    model = workplace / QUICKSTART
    assert model.is_dir(), "the README's steps leave it"
    numbers = json.loads((model / "results.json").read_text())["numbers"]
    again = in_folder([*QUICKSTART_COMMAND, str(model)], workplace)
    assert again.returncode == 0, again.stderr
    assert "holds a model already" in again.stdout
    for name in ("unigram_perplexity", "hidden_perplexity"):
        assert f"{numbers[name]:.0f}" in again.stdout
    assert len(re.findall(r"^ +\d+\.\d%  \S", again.stdout, flags=re.MULTILINE)) == 15


@pytest.fixture(scope="module")
def models(tmp_path_factory, workplace):
    """A folder with the models that scripts' docstrings name, small ones, and the files."""
    folder = tmp_path_factory.mktemp("scripts")
    lines = [f"Line {number} of the corpus speaks of boats and {number % 7} bridges. " * 40 for number in range(400)]
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n")
    rows = [f"Boat {number} is fine.,{1 + number % 5},Boat {number} leaks.,{number % 2}" for number in range(100)]
    (folder / "reviews.csv").write_text("\n".join(["review,stars,sentence,label", *rows]) + "\n")
    save_sentence_encoder(folder / "roberta-base")
    convert_pretrained(str(folder / "roberta-base"), folder / "runs" / "converted", projected_length=8)
    convert_pretrained(str(folder / "roberta-base"), folder / "runs" / "distilled", projected_length=8)
    words = f"run_mlm.py --train_file corpus.txt --output_dir {QUICKSTART} --do_train --do_eval --projected_length 8 "
    words += f"--max_seq_length 64 {SMALLER['pretrain']}"
    done = in_folder([sys.executable, str(ROOT / "scripts" / words.split()[0]), *words.split()[1:]], folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def measure_here(function, *inputs, memory_limit=None):
    """Measure in this process; a model that cannot be built is a failure, as it is in a process of its own."""
    try:
        return function(*inputs)
    except ImportError as error:
        return {"failure": reason(error)}


@pytest.mark.parametrize("command", list(commands_of_scripts()), ids=lambda command: command[:60])
def test_a_command_in_a_script_runs(command, models, monkeypatch, capsys, tmp_path):
    words = smaller(command.replace("FacebookAI/roberta-base", "roberta-base"), tmp_path)[1:]
    if "--output_dir" in words:
        words[words.index("--output_dir") + 1] = str(tmp_path / "out")
    if "--task_name" in words:
        words += ["--train_file", "reviews.csv"]
    # what a process of its own protects has tests of its own, and each start of one takes seconds
    monkeypatch.setattr(cells, "in_own_process", measure_here)
    done = run_here(words, models, monkeypatch, capsys)
    assert done.returncode == 0, done.stderr[-4000:]


def test_every_script_shows_a_command_that_is_run_here():
    shown = {Path(command.split()[1]).stem for command in commands_of_scripts()}
    assert shown == set(COMMAND_OF_SCRIPT) == {script.stem for script in SCRIPTS} - {"make_corpus"}


@pytest.mark.parametrize(
    "file", sorted((ROOT / "model_cards").glob("*/results.json")), ids=lambda file: file.parent.name
)
def test_a_published_record_names_its_command_and_commit(file):
    record = json.loads(file.read_text())
    assert record["command"].startswith(("python ", "linformer "))
    assert record["numbers"]
    assert record["commit"]


@pytest.mark.parametrize("page", ["README.md", "model_cards/README.md"])
def test_numbers_in_the_texts_come_from_their_record(page):
    """A section names its record and the numbers it shows, each with its format where that is not a whole number."""
    text = (ROOT / page).read_text("utf-8")
    sections = re.findall(r"<!-- numbers: (\S+) (.*?) -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)
    assert sections or page != "README.md"
    for folder, names, text in sections:
        numbers = json.loads((ROOT / folder / "results.json").read_text())["numbers"]
        pairs = [name.partition(":") for name in names.split(",")]
        shown = {f"{numbers[name]:{form or '.0f'}}" for name, _, form in pairs}
        assert shown <= set(re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))), (shown, text)


def test_the_one_check_runs_the_test_command_of_the_readme():
    assert "bash scripts/test.sh" in README
    assert "scripts/test.sh" in (ROOT / ".ci" / "run").read_text()
