"""What the measurements of a benchmark say: table, named numbers, crossings, growth, and the lines of figures."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import linear_regression, median

from ..common.markdown import markdown_table
from ..common.measurement import median_speedup
from .cases import Case
from .inputs import LABELLED_SHARE
from .isolation import Record
from .macs import predicted_speedup


BASELINE = "roberta sdpa"
MEBIBYTE = 2**20
Points = Sequence[tuple[float, float]]  # a value for each length, from the shortest to the longest


@dataclass
class Row:
    """The result of one case. Seconds and bytes are those of a batch; None is unknown."""

    task: str
    num_tokens: int
    batch_size: int
    model: str
    projected_length: int | None = None
    parameters: int | None = None
    seconds: float | None = None
    speedup: float | None = None
    predicted: float | None = None
    peak_bytes: int | None = None
    peak_share: float | None = None
    saved_bytes: int | None = None
    failure: str | None = None


QUANTITIES = ("parameters", "seconds", "speedup", "predicted", "peak_bytes", "peak_share", "saved_bytes")

COLUMNS: dict[str, Callable[[Row], str]] = {
    "n": lambda row: str(row.num_tokens),
    "model": lambda row: row.model,
    "seconds": lambda row: row.failure or written(row.seconds, ".3g"),
    "× faster": lambda row: written(row.speedup, ".2f"),
    "predicted by MACs": lambda row: written(row.predicted, ".2f"),
    "measured / predicted": lambda row: written(ratio(row.speedup, row.predicted), ".2f"),
    "peak MiB": lambda row: written(ratio(row.peak_bytes, MEBIBYTE), ".0f"),
    "of dense": lambda row: written(row.peak_share, ".2f"),
    "saved MiB": lambda row: written(ratio(row.saved_bytes, MEBIBYTE), ".0f"),
    "M parameters": lambda row: written(ratio(row.parameters, 1e6), ".1f"),
}


def make_rows(cases: Sequence[Case], memory: Sequence[Record], speed: Record) -> list[Row]:
    """Put together what was measured of models side by side, and divide it by the baseline.

    Args:
        cases: The models, at one task and length.
        memory: The record of `measure_memory` for each of them.
        speed: The record of `measure_seconds` for those that did not fail.
    """
    seconds = speed.get("seconds", {})
    baseline_seconds = seconds.get(BASELINE)
    baseline_peak = {str(case.model): record.get("peak_bytes") for case, record in zip(cases, memory)}.get(BASELINE)
    rows = []
    for case, record in zip(cases, memory):
        name = str(case.model)
        row = Row(case.task, case.num_tokens, case.batch_size, name, case.model.projected_length)
        row.parameters, row.saved_bytes = record.get("parameters"), record.get("saved_bytes")
        row.peak_bytes = record.get("peak_bytes")
        row.peak_share = ratio(row.peak_bytes, baseline_peak)
        if name in seconds:
            row.seconds = median(seconds[name])
            if baseline_seconds:
                row.speedup = median_speedup(baseline_seconds, seconds[name])
        row.predicted = predict(case)
        row.failure = record.get("failure") or speed.get("failure") or speed.get("failures", {}).get(name)
        rows.append(row)
    return rows


def predict(case: Case) -> float | None:
    """Return the speedup of a Linformer of this package by MACs; None of other models, and where there is padding."""
    if case.model.name != "linformer" or case.padded_share:
        return None
    return predicted_speedup(case.config, case.num_tokens, LABELLED_SHARE if case.task == "mlm" else None)


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Divide, where both numbers are known."""
    return None if numerator is None or not denominator else numerator / denominator


def written(value: float | None, form: str) -> str:
    """Write a number, or nothing where there is none."""
    return "" if value is None else format(value, form)


def table(rows: Sequence[Row]) -> str:
    """Write rows as a table in Markdown.

    Peak is the memory that a step adds to the loaded model, gradients included; saved is what its forward pass saves
    for the backward pass.
    """
    return markdown_table(list(COLUMNS), [[column(row) for column in COLUMNS.values()] for row in rows])


def row_numbers(row: Row) -> dict[str, float]:
    """Name what is known of a row, as in `inference_n512_linformer_k128_speedup`."""
    model = row.model.replace(" ", "_").replace("=", "")
    known = {quantity: getattr(row, quantity) for quantity in QUANTITIES}
    return {
        f"{row.task}_n{row.num_tokens}_{model}_{quantity}": value
        for quantity, value in known.items()
        if value is not None
    }


def crossing(speedups: Points) -> float | None:
    """Return the length from which a model stays faster, between measured points along a straight log-log line.

    Args:
        speedups: How many times faster it is at each length.

    Returns:
        The shortest length if it is faster at all of them, and None if it is not faster at the longest.
    """
    slower = [index for index, (_, speedup) in enumerate(speedups) if speedup < 1]
    if not slower:
        return speedups[0][0]
    if slower[-1] + 1 == len(speedups):
        return None
    (x, y), (next_x, next_y) = [(math.log(n), math.log(s)) for n, s in speedups[slower[-1] : slower[-1] + 2]]
    return math.exp(x - y * (next_x - x) / (next_y - y))


def growth(costs: Points) -> float:
    """Return the exponent a of the n^a that fits costs best on logarithmic scales: 1 is linear, 2 quadratic."""
    return linear_regression([math.log(n) for n, _ in costs], [math.log(cost) for _, cost in costs]).slope


def cost_panels(rows: Sequence[Row]) -> dict[str, dict[str, Points]]:
    """Return the lines of a figure: seconds and peak memory of one sequence against its length, by model."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {"Seconds a sequence": {}, "Peak MiB a sequence": {}}
    for row in sorted(rows, key=lambda row: row.num_tokens):
        for panel, cost in zip(found.values(), (row.seconds, ratio(row.peak_bytes, MEBIBYTE))):
            if cost:
                panel.setdefault(row.model, []).append((row.num_tokens, cost / row.batch_size))
    return {title: panel for title, panel in found.items() if panel}


def speedup_lines(rows: Sequence[Row]) -> dict[str, Points]:
    """Return the lines of a figure: how many times faster than the baseline each Linformer is, and by MACs."""
    found: dict[str, list[tuple[float, float]]] = {}
    lengths = set()
    for row in sorted(rows, key=lambda row: row.num_tokens):
        if row.speedup and row.model.startswith("linformer "):
            lengths.add(row.num_tokens)
            found.setdefault(f"k = {row.projected_length}", []).append((row.num_tokens, row.speedup))
            if row.predicted:
                by_macs = found.setdefault(f"k = {row.projected_length}, by MACs", [])
                by_macs.append((row.num_tokens, row.predicted))
    return found | {BASELINE: [(length, 1.0) for length in sorted(lengths)]} if found else {}
