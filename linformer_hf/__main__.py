"""The `linformer` command: a subcommand for each thing that a person does, `python -m linformer_hf` likewise."""

import sys
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module

from transformers import TrainingArguments

from .common.command_line import run


@dataclass(frozen=True)
class Command:
    """One subcommand.

    Args:
        summary: What it does, in one line.
        module: Where function and arguments are defined, below this package.
        function: What is called.
        arguments: The dataclass of its options.
        trains: Whether it takes the options of the Trainer as well.
    """

    summary: str
    module: str
    function: str
    arguments: str
    trains: bool = False


COMMANDS = {
    "pretrain": Command(
        "Pretrain an encoder on masked words.", "training.pretraining", "pretrain", "PretrainingArguments", trains=True
    ),
    "finetune": Command(
        "Fine-tune an encoder on a GLUE task or a table of labelled texts.",
        "training.finetuning",
        "finetune",
        "FinetuningArguments",
        trains=True,
    ),
    "convert": Command(
        "Turn a BERT, RoBERTa or their like into a Linformer.",
        "conversion.checkpoint_conversion",
        "convert_checkpoint",
        "ConversionArguments",
    ),
    "resize": Command(
        "Give a Linformer another n or k.",
        "conversion.checkpoint_resizing",
        "resize_checkpoint",
        "ResizingArguments",
    ),
    "distill": Command(
        "Teach a converted Linformer what its dense encoder computes.",
        "training.distillation",
        "distill",
        "DistillationArguments",
        trains=True,
    ),
    "compare": Command(
        "Compare a Linformer with its dense encoder.",
        "conversion.comparison",
        "compare_models",
        "ComparisonArguments",
    ),
    "spectrum": Command(
        "Decompose attention maps, and recommend k for each layer.",
        "analysis.spectrum",
        "analyze_spectrum",
        "SpectrumArguments",
    ),
    "benchmark": Command(
        "Measure seconds and memory against n and k.",
        "benchmark.efficiency",
        "measure_efficiency",
        "EfficiencyArguments",
    ),
    "explore": Command("Open the interactive page.", "explorer.page", "explore", "ExplorerArguments"),
    "onnx": Command("Export a Linformer to ONNX.", "sharing.onnx_export", "export_checkpoint", "ExportArguments"),
    "push": Command("Push a saved model to the Hub.", "sharing.hub", "push_from_arguments", "PushArguments"),
    "tabulate": Command("Set several runs side by side.", "training.run_tables", "tabulate_runs", "RunTableArguments"),
}


def main() -> None:
    """Run the subcommand that the command line names."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        sys.stdout.write(overview())
        return
    if name not in COMMANDS:
        meant = get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {meant[0]}?" if meant else "."
        sys.stderr.write(f"error: there is no command {name!r}{hint} The commands are {', '.join(COMMANDS)}.\n")
        sys.exit(2)
    command = COMMANDS[name]
    module = import_module(f"{__package__}.{command.module}")
    classes = [getattr(module, command.arguments)]
    if command.trains:
        classes.append(TrainingArguments)
    run(getattr(module, command.function), *classes, description=command.summary, program=f"linformer {name}")


def overview() -> str:
    """List the subcommands, a line each."""
    width = max(map(len, COMMANDS))
    lines = [f"    {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    last = "linformer COMMAND --help lists its options.\n"
    return "\n".join(["usage: linformer COMMAND [options]", "", *lines, "", last])


if __name__ == "__main__":
    main()
