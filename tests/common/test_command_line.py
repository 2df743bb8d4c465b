"""The command line: options or a settings file in, one clear line and exit code 2 on a user's mistake."""

import json
import logging
import sys
from dataclasses import dataclass, field

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import TrainingArguments

from linformer_hf.common.command_line import OptionParser, read_flags, run


@dataclass
class Options:
    """Options as a task has them."""

    output_dir: str = field(metadata={"help": "Where it goes."})
    saved_activations: bool = field(default=False, metadata={"help": "Count them.", "former": ["--kept_bytes"]})
    lengths: list[int] = field(default_factory=lambda: [1, 2], metadata={"help": "n. Several are allowed."})
    token: str | None = field(default=None, metadata={"help": "Access token."})
    share: float | None = field(default=None, metadata={"help": "Of all."})


@dataclass
class Others:
    """Options of a task that the Trainer's stand beside."""

    heads: list[int] = field(default_factory=lambda: [1, 2], metadata={"help": "Heads. Several are allowed."})


@pytest.fixture(autouse=True)
def quiet_afterwards(monkeypatch):
    """The handlers of a command are those of its process."""
    logger = logging.getLogger("linformer_hf")
    handlers, level = list(logger.handlers), logger.level
    monkeypatch.setenv("HF_TOKEN", "")
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def call(monkeypatch, *flags, function=None, classes=(Options,)):
    given = []
    monkeypatch.setattr(sys, "argv", ["do_it.py", *map(str, flags)])
    run(function or (lambda *groups: given.extend(groups)), *classes)
    return given[0]


def refusal(monkeypatch, capsys, *flags, **options):
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, *flags, **options)
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_options_come_from_flags_and_from_a_file_that_flags_win_over(monkeypatch, tmp_path, suffix):
    file = tmp_path / f"settings.{suffix}"
    file.write_text(json.dumps({"output_dir": "a", "lengths": [3, 4], "token": None, "saved_activations": True}))
    found = call(monkeypatch, file, "--output-dir", "b")
    assert (found.output_dir, found.lengths, found.saved_activations) == ("b", [3, 4], True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "required: --output_dir"),
        (["--output_dri", "x"], "There is no option --output_dri. Did you mean --output_dir?"),
        (["--output_dir", "x", "--zzzz=1"], "There is no option --zzzz. `do_it.py --help` lists all."),
        (["--output_dir", "x", "y"], "'y' is the value of no option"),
        (["--output_dir", "x", "--lengths", "many"], "invalid int value: 'many'"),
        (["--output_dir", "x", "--share", "nan"], "--share is nan; it must be a number"),
        (["--output_dir", "x", "--share", "inf"], "--share is inf; it must be a number"),
        (["nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_a_wrong_option_gives_one_line(monkeypatch, capsys, flags, message):
    assert message in refusal(monkeypatch, capsys, *flags)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "must hold options by name"),
        ("a: [", "neither YAML nor JSON"),
        ("a: 1\nb: 2\na: 3", "a stands twice"),
    ],
)
def test_a_wrong_settings_file_gives_one_line(monkeypatch, capsys, tmp_path, text, message):
    (tmp_path / "a.yaml").write_text(text)
    assert message in refusal(monkeypatch, capsys, tmp_path / "a.yaml")
    with pytest.raises(ValueError, match=message):
        read_flags(tmp_path / "a.yaml")


def test_the_trainers_own_mistakes_give_one_line_too(monkeypatch, capsys):
    flags = ["--output_dir", "x", "--lr_scheduler_type", "sideways"]
    assert "sideways" in refusal(monkeypatch, capsys, *flags, classes=(TrainingArguments,))


def test_mistakes_found_while_running_give_one_line_and_others_a_traceback(monkeypatch, capsys):
    def fail(error):
        def function(options):
            raise error

        return function

    flags = ["--output_dir", "x"]
    assert refusal(monkeypatch, capsys, *flags, function=fail(ValueError("two\n  lines"))) == "error: two lines\n"
    assert "Make room" in refusal(
        monkeypatch, capsys, *flags, function=fail(RuntimeError("write: No space left on device"))
    )
    full = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")
    assert "not enough memory" in refusal(monkeypatch, capsys, *flags, function=fail(full))
    damaged = StrictDataclassError("Validation error for field 'hidden_size'")
    assert "configuration is damaged: Validation" in refusal(monkeypatch, capsys, *flags, function=fail(damaged))
    assert "pip install x" in refusal(monkeypatch, capsys, *flags, function=fail(ImportError("pip install x")))
    with pytest.raises(ZeroDivisionError):
        call(monkeypatch, *flags, function=fail(ZeroDivisionError()))


@pytest.mark.parametrize("name", ["--kept_bytes", "--kept-bytes", "--kept_bytes=true"])
def test_a_former_spelling_works_and_is_warned_of(monkeypatch, capsys, name):
    assert call(monkeypatch, "--output_dir", "x", name).saved_activations
    assert f"{name.partition('=')[0]} is now called --saved_activations" in capsys.readouterr().err


def test_help_is_one_line_for_each_option(monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, "--help", classes=(Others, TrainingArguments))
    assert stopped.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    options = [line for line in lines if line.startswith("  -")]
    assert [line.split()[0] for line in options].count("--output_dir") == 1
    assert any(" ".join(line.split()) == "--heads Heads. Several are allowed. (default: 1 2)" for line in options)
    assert any(line.startswith("  --learning_rate ") for line in options)
    assert {line for line in lines if line.startswith("   ")} == set()  # nothing is continued


def test_help_leaves_former_spellings_out(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        call(monkeypatch, "--help")
    said = capsys.readouterr().out
    assert "--saved_activations" in said
    assert "--kept_bytes" not in said


def test_an_interrupted_command_says_how_to_go_on_in_one_line(monkeypatch, capsys):
    def interrupt(options):
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, "--output_dir", "x", function=interrupt)
    assert stopped.value.code == 130
    said = capsys.readouterr().err
    assert said == "Interrupted. The same command goes on from the last checkpoint, where there is one.\n"


def test_no_in_a_settings_file_is_the_word_that_options_of_the_trainer_take(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(
        "output_dir: out\neval_strategy: no\ndo_train: no\ndo_eval: true\nhub_model_id: null\nreport_to: []\n"
    )
    (training,) = OptionParser((TrainingArguments,), "it", None).parse(read_flags(file))
    assert (training.eval_strategy, training.do_train, training.do_eval) == ("no", False, True)
    assert training.hub_model_id is None


def test_a_second_command_in_one_process_says_each_line_once(monkeypatch, capsys):
    def report(options):
        logging.getLogger("linformer_hf.task").info(f"It is in {options.output_dir}.")

    for folder in ("first", "second"):
        monkeypatch.setattr(sys, "argv", ["do_it.py", "--output_dir", folder])
        run(report, Options)
    assert capsys.readouterr().err.splitlines() == ["It is in first.", "It is in second."]
