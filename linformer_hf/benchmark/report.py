"""What measured costs say: tables, named numbers, where lines cross, how they grow, and the lines of figures."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import linear_regression


MEBIBYTE = 2**20
Points = Sequence[tuple[float, float]]  # a value for each n, from the shortest to the longest


@dataclass
class Row:
    """What came out for one model, at one task and n. Seconds and bytes are those of a batch; None is unknown."""

    task: str
    num_tokens: int
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

COLUMNS: dict[str, Callable[[Row], str | None]] = {
    "n": lambda row: str(row.num_tokens),
    "model": lambda row: row.model,
    "seconds": lambda row: row.failure or written(row.seconds, ".3g"),
    "× faster": lambda row: written(row.speedup, ".2f"),
    "by multiplies": lambda row: written(row.predicted, ".2f"),
    "of them reached": lambda row: written(row.speedup and row.predicted and row.speedup / row.predicted, ".2f"),
    "peak MiB": lambda row: written(row.peak_bytes and row.peak_bytes / MEBIBYTE, ".0f"),
    "of dense": lambda row: written(row.peak_share, ".2f"),
    "kept MiB": lambda row: written(row.saved_bytes and row.saved_bytes / MEBIBYTE, ".0f"),
    "parameters": lambda row: (
        written(row.parameters and row.parameters / 1e6, ".1f") + (" M" if row.parameters else "")
    ),
}


def table(rows: list[Row]) -> str:
    """Write rows as a table in Markdown.

    Peak is the memory that a step adds to the loaded model, gradients included; kept is what its forward pass keeps
    for the backward pass.
    """
    lines = [list(COLUMNS), ["---"] * len(COLUMNS)]
    lines += [[column(row) or "" for column in COLUMNS.values()] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def written(value: float | None, form: str) -> str:
    """Write a number, or nothing where there is none."""
    return "" if value is None else format(value, form)


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
    """Return the n from which a model is faster throughout, between measured points along a straight log-log line.

    Args:
        speedups: How many times faster it is at each n.

    Returns:
        The shortest n if it is faster at all of them, and None if it is not at the longest.
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


def panels(rows: list[Row], batch_tokens: int) -> dict[str, dict[str, Points]]:
    """Return the lines of a figure: seconds and peak memory of one sequence against n, by model."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {"Seconds a sequence": {}, "Peak MiB a sequence": {}}
    for row in sorted(rows, key=lambda row: row.num_tokens):
        share = row.num_tokens / batch_tokens
        for panel, cost in zip(found.values(), (row.seconds, row.peak_bytes and row.peak_bytes / MEBIBYTE)):
            if cost:
                panel.setdefault(row.model, []).append((row.num_tokens, cost * share))
    return {title: panel for title, panel in found.items() if panel}


def speedup_panel(rows: list[Row], baseline: str) -> dict[str, Points]:
    """Return the lines of a figure: how many times faster than the baseline each Linformer is, and by multiplies."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=lambda row: row.num_tokens):
        if row.speedup and row.model.startswith("linformer "):
            found.setdefault(f"k = {row.projected_length}", []).append((row.num_tokens, row.speedup))
            if row.predicted:
                promised = found.setdefault(f"k = {row.projected_length}, by multiplies", [])
                promised.append((row.num_tokens, row.predicted))
            found[baseline] = [*found.get(baseline, []), (row.num_tokens, 1.0)]
    return {label: sorted(set(points)) for label, points in found.items()}
