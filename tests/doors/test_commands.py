"""What the texts tell a reader to run, run: README blocks, and the commands in the scripts' docstrings."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizer

from linformer_hf.conversion.convert import convert_model


ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
QUICKSTART = "runs/quickstart"

# What makes a command small: the last flag of a name wins. Everything else is run as it stands.
SMALLER = {
    "run_mlm.py": "--max_steps 2 --per_device_train_batch_size 2 --use_cpu --disable_tqdm true "
    "--config_overrides hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32",
    "run_glue.py": "--max_steps 2 --use_cpu --disable_tqdm true --train_file reviews.csv",
    "push_to_hub.py": "--dry_run",
    "convert_checkpoint.py": "--model_name_or_path runs/minilm",
    "distill.py": "--model_name_or_path runs/linear --teacher_name_or_path runs/minilm --max_steps 2 --use_cpu "
    "--max_train_samples 200 --max_eval_samples 40 --per_device_train_batch_size 2 --disable_tqdm true",
    "compare_models.py": "--dense_name_or_path runs/minilm --model_name_or_path runs/linear --lengths 16 "
    "--max_eval_samples 40",
    "analyze_spectrum.py": "--max_texts 2 --max_seq_length 64",
    "measure_efficiency.py": "--hidden_size 16 --num_attention_heads 2 --vocab_size 99 --lengths 32 --batch_tokens 32 "
    "--projected_lengths 8 --num_hidden_layers 1 --repeats 1 --dense sdpa --threads 1",
    "explore.py": "--space somewhere",
    "export_onnx.py": "",
    "tabulate_runs.py": "",
}


def commands(text):
    """List the `python scripts/...` commands in a text, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [line.strip() for line in joined.splitlines() if line.strip().startswith(("python scripts/", "torchrun "))]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


ALL_COMMANDS = list(dict.fromkeys(commands(README) + [c for script in SCRIPTS for c in commands(script.read_text())]))


def run(command, folder, **changes):
    environment = (
        os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"} | changes
    )
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="session")
def workplace(tmp_path_factory):
    """A folder as a reader has it: the scripts, a corpus, and the model that the quickstart leaves."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "scripts").symlink_to(ROOT / "scripts")
    lines = [
        f"Line {number} of the corpus speaks of boats, rivers and {number % 7} bridges." for number in range(4000)
    ]
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n")
    # rows as the columns of SST-2 and those of the texts' own example name them
    rows = [f"Boat {number} is fine.,{1 + number % 5},Boat {number} leaks.,{number % 2}" for number in range(100)]
    (folder / "reviews.csv").write_text("\n".join(["review,stars,sentence,label", *rows]) + "\n")
    save_dense_and_linear(folder / "runs")
    return folder


def save_dense_and_linear(folder):
    """Save a small BERT where the texts have MiniLM, its spectrum, and where they have it made linear and taught."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "boats", "bridges", "line"]
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    dense = BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=512, **sizes))
    linear, _ = convert_model(dense, max_position_embeddings=64, projected_length=8)
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)}, model_max_length=512)
    for name, model in (("minilm", dense), ("linear", linear), ("taught", linear)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    (folder / "spectrum").mkdir()
    shares = {"energy": [[[0.8, 0.9, 0.99, 1.0], [0.7, 0.9, 0.99, 1.0]]], "longest_text": 512}
    (folder / "spectrum" / "spectrum.json").write_text(json.dumps(shares))


@pytest.fixture(scope="session")
def quickstart(workplace):
    """Run the quickstart as it stands, in the environment of the tests."""
    model = workplace / QUICKSTART
    done = run(
        ["bash", str(ROOT / "scripts" / "quickstart.sh"), str(model)],
        workplace,
        VIRTUAL_ENV=sys.prefix,
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return model, done.stdout


def test_the_quickstart_learns_well_below_word_frequencies_and_says_so(quickstart):
    model, output = quickstart
    numbers = json.loads((model / "results.json").read_text())["numbers"]
    assert numbers["perplexity"] * 1.5 <= numbers["unigram_perplexity"] < numbers["initial_perplexity"]
    assert numbers["hidden_perplexity"] < 0.9 * numbers["unigram_perplexity"]
    for name in ("unigram_perplexity", "perplexity", "hidden_perplexity"):
        assert f"{numbers[name]:.0f}" in output
    assert len(re.findall(r"^ +\d+\.\d%  \S", output, flags=re.MULTILINE)) == 12


def test_the_quickstart_keeps_a_model_that_is_there(quickstart, workplace):
    model, _ = quickstart
    before = (model / "model.safetensors").stat().st_mtime_ns
    again = run(
        ["bash", str(ROOT / "scripts" / "quickstart.sh"), str(model)],
        workplace,
        VIRTUAL_ENV=sys.prefix,
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    )
    assert again.returncode == 0, again.stderr
    assert "holds a model already" in again.stdout
    assert (model / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.splitlines()[0][:40])
def test_the_python_of_the_readme_runs_and_prints_what_it_shows(quickstart, workplace, block):
    done = run([sys.executable, "-c", block], workplace)
    assert done.returncode == 0, done.stderr
    shown = [line[2:] for line in block.splitlines() if line.startswith("# ")]
    printed = done.stdout.splitlines()
    assert len(printed) == len(shown)
    # words and numbers are those of one machine; their form is the same everywhere
    form = re.compile(r"[^\s\d]+|\d+\.\d+|\d+")
    assert [len(form.findall(line)) for line in printed] == [len(form.findall(line)) for line in shown]


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=lambda command: command[:60])
def test_a_command_in_the_texts_runs(quickstart, workplace, command, tmp_path):
    words = shlex.split(command)
    script = next(Path(word).name for word in words if word.endswith(".py"))
    launcher = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}
    words[:1] = launcher[words[0]]
    if "--output_dir" in words:
        words[words.index("--output_dir") + 1] = str(tmp_path / "out")
    smaller = shlex.split(SMALLER[script].replace("somewhere", str(tmp_path / "space")))
    done = run(words + smaller, workplace)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "file", sorted((ROOT / "model_cards").glob("*/results.json")), ids=lambda file: file.parent.name
)
def test_a_published_record_names_its_command_and_commit(file):
    record = json.loads(file.read_text())
    assert record["command"].startswith("python ")
    assert record["numbers"]
    assert record["commit"]


def test_numbers_in_the_readme_come_from_their_record():
    """A section names its record and the numbers it shows, each with its format where that is not a whole number."""
    sections = re.findall(r"<!-- numbers: (\S+) (.*?) -->\n(.*?)<!-- end -->", README, flags=re.DOTALL)
    assert sections
    for folder, names, text in sections:
        numbers = json.loads((ROOT / folder / "results.json").read_text())["numbers"]
        pairs = [name.partition(":") for name in names.split(",")]
        shown = {f"{numbers[name]:{form or '.0f'}}" for name, _, form in pairs}
        assert shown <= set(re.findall(r"\d+(?:\.\d+)?", text)), (shown, text)


def test_the_one_check_runs_the_test_command_of_the_readme():
    assert "bash scripts/test.sh" in README
    assert "scripts/test.sh" in (ROOT / ".ci" / "run").read_text()
