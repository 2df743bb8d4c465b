"""Several runs side by side: a table of their numbers, and pictures of their held-out losses."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from transformers import TrainerState
from transformers.utils import logging

from ..common.figures import plot_curves
from ..common.files import read_json
from ..common.markdown import markdown_table, written
from ..common.records import check_record_folder, read_results, write_results
from .progress import HELD_OUT, loss_curves


logger = logging.get_logger(__name__)

TEXT = "README.md"
SEED = re.compile(r"-\d+$")
OF_A_SEED = ("seed", "data_seed", "run_name")
TITLES = {"train_runtime": "training, seconds", "seconds": "whole call, seconds"}


@dataclass
class RunTableArguments:
    """Which runs are compared, and by which numbers."""

    runs: list[str] = field(metadata={"help": "Folders of runs, each with its results.json."})
    numbers: list[str] = field(
        metadata={"help": "Names of numbers in their records, as in `hidden_perplexity train_runtime`."}
    )
    output_dir: str = field(metadata={"help": "A folder for the table, the picture and the record."})
    title: str = field(default="Runs", metadata={"help": "Title of the page."})
    note: str = field(default="", metadata={"help": "What a reader must know of the runs; stands below the title."})
    over_seeds: bool = field(
        default=False,
        metadata={
            "help": "Average runs that differ in their seed alone. Their folders have one name and end in different "
            "numbers, as in linear-1 and linear-2; the row `linear` then shows the mean and the standard deviation."
        },
    )


def tabulate_runs(arguments: RunTableArguments) -> dict[str, float | None]:
    """Write a table of several runs, with the command of each, and pictures of the losses that they logged.

    Losses are drawn against steps and, where no run was resumed, against seconds since the training started.

    Args:
        arguments: Which runs, which numbers, and where to write.

    Returns:
        Every number, as `run_number`; over seeds the mean, and the deviation as `run_number_deviation`.

    Raises:
        ValueError: If a folder has no record or a damaged one, two have one name, a record lacks a number, or the
            folder to write into holds anything but an older table.
    """
    names = [Path(run).name for run in arguments.runs]
    if len(set(names)) < len(names):
        raise ValueError(f"--runs are told apart by their last names, and two of {', '.join(names)} are equal.")
    if len(set(arguments.numbers)) < len(arguments.numbers):
        raise ValueError(f"--numbers names one twice: {', '.join(arguments.numbers)}.")
    records = dict(zip(names, map(read_run, arguments.runs)))
    found = gather(records, arguments.numbers, arguments.over_seeds)
    states = read_states(arguments.runs)
    folder = check_record_folder(arguments.output_dir, "runs")
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    for name, curves, x_label in (
        ("curves", held_out_curves(states), "Step"),
        ("curves_by_seconds", curves_by_seconds(states), "Seconds since the training started"),
    ):
        if curves:
            plot_curves(curves, folder / name, x_label, "Held-out loss, nats a token")
            pictures.append(f"![Held-out losses]({name}.png)")
    table = write_table(found, arguments.over_seeds)
    pages = [f"# {arguments.title}", arguments.note, table, *pictures]
    commands = commands_of_rows(records) if arguments.over_seeds else [each["command"] for each in records.values()]
    pages += ["Each run, from the root of the repository:", "\n".join(["```text", *commands, "```"])]
    (folder / TEXT).write_text("\n\n".join(page for page in pages if page) + "\n", encoding="utf-8")
    numbers = {}
    for name, row in found.items():
        for number, values in row.items():
            finite = known(values)
            numbers[f"{name}_{number}"] = mean(finite) if finite else None
            numbers |= {f"{name}_{number}_deviation": stdev(finite)} if len(finite) > 1 else {}
    about = {
        "runs": {
            name: {
                "command": record["command"],
                "commit": record.get("commit"),
                "numbers": {number: record["numbers"][number] for number in arguments.numbers},
            }
            for name, record in records.items()
        }
    }
    write_results(folder, numbers, (arguments,), about)
    logger.info(f"{table}\n\nTable, picture and record are in {folder}.")
    return numbers


def read_run(run: str) -> dict[str, Any]:
    """Read the record of a run.

    Raises:
        ValueError: If there is none, or it does not tell how the run was made.
    """
    record = read_results(run)
    if not isinstance(record.get("command"), str):
        raise ValueError(f"The record of {run} has no command; run again what made it.")
    return record


def gather(
    records: Mapping[str, Mapping[str, Any]], numbers: list[str], over_seeds: bool
) -> dict[str, dict[str, list[float | None]]]:
    """Return the numbers of each row: one of each run, or one of each seed; None where a run has none that is finite.

    Raises:
        ValueError: If a record lacks a number, or runs that would share a row are no repeats.
    """
    found: dict[str, dict[str, list[float | None]]] = {}
    settings: dict[str, dict[str, str]] = {}
    for name, record in records.items():
        own_numbers = record["numbers"]
        if missing := [number for number in numbers if number not in own_numbers]:
            there = ", ".join(sorted(own_numbers))
            raise ValueError(f"The record of {name} has no {', '.join(missing)}; it has {there}.")
        if several := [number for number in numbers if not isinstance(own_numbers[number], int | float | None)]:
            raise ValueError(f"{', '.join(several)} of {name} is no single number; name others in --numbers.")
        row = SEED.sub("", name) if over_seeds else name
        own = setting(record)
        if differing := own.items() ^ settings.setdefault(row, own).items():
            argument, _ = min(differing)
            raise ValueError(f"{name} differs in {argument}, and not in its seed alone, from others named {row}.")
        for number in numbers:
            value = own_numbers[number]
            is_finite = value is not None and math.isfinite(value)
            found.setdefault(row, {}).setdefault(number, []).append(value if is_finite else None)
    return found


def setting(record: Mapping[str, Any]) -> dict[str, str]:
    """Return what a run was given besides its seed; a folder that ends in the seed's number counts without it."""
    given = {name: value for name, value in record.get("arguments", {}).items() if name not in OF_A_SEED}
    return {name: SEED.sub("", value) if isinstance(value, str) else repr(value) for name, value in given.items()}


def read_states(runs: list[str]) -> dict[str, TrainerState]:
    """Read the Trainer's states of those runs that have one, by the names of their folders.

    Raises:
        ValueError: If one is damaged.
    """
    states = {}
    for run in runs:
        file = Path(run, "trainer_state.json")
        if not file.is_file():
            continue
        try:
            state = TrainerState(**read_json(file))
            loss_curves(state)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{file} is no state of a Trainer; move it away.") from error
        states[Path(run).name] = state
    return states


def held_out_curves(states: Mapping[str, TrainerState]) -> dict[str, list[tuple[float, float]]]:
    """Return the held-out losses that runs logged while they trained, as points (step, loss).

    The loss before the first step is left out: it would flatten all that follows.
    """
    logged = {name: loss_curves(state).get(HELD_OUT, []) for name, state in states.items()}
    points = {name: [(step, loss) for step, loss in curve if step > 0] for name, curve in logged.items()}
    return {name: curve for name, curve in points.items() if curve}


def curves_by_seconds(states: Mapping[str, TrainerState]) -> dict[str, list[tuple[float, float]]]:
    """Return the same losses as points (seconds, loss); none where a run lacks the seconds or counted them anew.

    An evaluation takes the seconds of the last line that the training logged before it or at its step.
    """
    curves = {}
    for name, curve in held_out_curves(states).items():
        logged = [
            (entry["step"], entry["train_runtime"]) for entry in states[name].log_history if "train_runtime" in entry
        ]
        seconds = [second for _, second in logged]
        if seconds != sorted(seconds):
            return {}
        for step, loss in curve:
            before = [second for logged_step, second in logged if logged_step <= step]
            if before:
                curves.setdefault(name, []).append((before[-1], loss))
    return curves


def write_table(found: Mapping[str, Mapping[str, list[float | None]]], over_seeds: bool) -> str:
    """Write numbers as a table in Markdown: in each row a run, or the runs that repeat each other and their count."""
    columns = list(next(iter(found.values())))
    header = [
        "run",
        *(["seeds"] if over_seeds else []),
        *(TITLES.get(name, name.replace("_", " ")) for name in columns),
    ]
    rows = []
    for name, row in found.items():
        repeats = [str(len(row[columns[0]]))] if over_seeds else []
        rows.append([name, *repeats, *(spread(row[column]) for column in columns)])
    return markdown_table(header, rows)


def known(values: list[float | None]) -> list[float]:
    """Return the numbers among those of a row."""
    return [value for value in values if value is not None]


def spread(values: list[float | None]) -> str:
    """Write a number, or the mean and the standard deviation of several, and how many there are if some are not."""
    finite = known(values)
    parts = [written(mean(finite))] if finite else []
    parts += [f"± {written(stdev(finite), 2)}"] if len(finite) > 1 else []
    parts += [f"({len(finite)} of {len(values)})"] if len(finite) < len(values) > 1 else []
    return " ".join(parts)


def commands_of_rows(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the command of the first run of each row, with the names of those that differ in the seed alone."""
    rows: dict[str, list[str]] = {}
    for name in records:
        rows.setdefault(SEED.sub("", name), []).append(name)
    lines = []
    for names in rows.values():
        lines.append(records[names[0]]["command"])
        if len(names) > 1:
            lines.append(f"# likewise, with other seeds: {', '.join(names[1:])}")
    return lines
