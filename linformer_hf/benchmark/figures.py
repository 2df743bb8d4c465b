"""Figures of cost against length, on logarithmic scales."""

import math
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

from ..common.figures import (
    HEIGHT,
    LINE_STYLES,
    MARKERS,
    WIDTH,
    Axes,
    Figure,
    Series,
    draw_line,
    in_style,
    save_figure,
    shades,
    ticker,
)
from .summary import crossing


def plot_efficiency(panels: Mapping[str, Mapping[str, Series]], file_stem: str | Path, baseline: str) -> list[Path]:
    """Draw cost against length as `draw_efficiency` does, and write it.

    Args:
        panels: As in `draw_efficiency`.
        file_stem: Where to write, without a suffix.
        baseline: As in `draw_efficiency`.

    Returns:
        The two files, PNG and SVG.
    """
    return save_figure(draw_efficiency(panels, baseline), file_stem)


@in_style
def draw_efficiency(panels: Mapping[str, Mapping[str, Series]], baseline: str) -> Figure:
    """Draw panels side by side, and mark the length from which a line stays below the baseline.

    Args:
        panels: For each panel, by its title with the unit (`"Seconds a text"`), the points of each line by its label.
        baseline: Label of the line to compare with, drawn in black.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(WIDTH, HEIGHT))
    for axes, (title, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        draw_cost(axes, lines, baseline)
        axes.set(title=title, xlabel="Tokens, n")
    return figure


def draw_cost(axes: Axes, series: Mapping[str, Series], baseline: str) -> None:
    """Draw the lines of one panel, the baseline in black, and a ring where another line falls below it."""
    axes.set(xscale="log", yscale="log")
    if baseline in series:
        draw_line(axes, baseline, series[baseline], "black", LINE_STYLES[0], ".")
    others = {label: points for label, points in series.items() if label != baseline}
    styles = zip(others.items(), shades(len(others)), cycle(LINE_STYLES[1:]), cycle(MARKERS))
    for (label, points), color, line_style, marker in styles:
        draw_line(axes, label, points, color, line_style, marker)
    for points, color in zip(others.values(), shades(len(others))):
        if baseline in series:
            mark_crossing(axes, points, series[baseline], color)
    label_lengths(axes, sorted({x for points in series.values() for x, _ in points}))
    label_heights(axes)
    axes.legend()


def mark_crossing(axes: Axes, points: Series, baseline: Series, color: tuple[float, ...]) -> None:
    """Draw a ring where a line falls below the baseline for good, and name its length in the legend.

    A line that lies below from the first length on has no such place, nor has one that ends above.
    """
    reference = dict(baseline)
    common = sorted((x, y) for x, y in points if x in reference)
    where = crossing([(x, reference[x] / y) for x, y in common]) if common else None
    if where is None or where == common[0][0]:
        return
    height = height_at(points, where)
    ring = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "markeredgewidth": 1.1, "linestyle": "none"}
    axes.plot([where], [height], **ring, color=color, label=f"n ≈ {written_out(float(f'{where:.2g}'))}")


def height_at(points: Series, x: float) -> float:
    """Return the height of a line at a place between two of its points, along a straight log-log line."""
    right = next(index for index, (other, _) in enumerate(points) if other >= x)
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    return y0 * (y1 / y0) ** (math.log(x / x0) / math.log(x1 / x0))


def label_lengths(axes: Axes, lengths: list[float]) -> None:
    """Put a tick at each length that was measured, and at no other place."""
    axes.set_xticks(lengths, [short_length(length) for length in lengths])
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def label_heights(axes: Axes) -> None:
    """Put a few ticks at round numbers, written out without powers of ten."""
    low, high = axes.get_ylim()
    if high < 5 * low:
        axes.yaxis.set_major_locator(ticker.MaxNLocator(6))
    else:
        steps = (1, 2, 5) if high < 100 * low else (1, 3) if high < 10_000 * low else (1,)
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=steps))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter(written_out)


def written_out(value: float, position: int | None = None) -> str:
    """Write a number without a power of ten."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def short_length(length: float) -> str:
    """Write a length in tokens, whole multiples of 1024 as 1k, 2k, ..."""
    return f"{length / 1024:g}k" if length >= 1024 and length % 1024 == 0 else f"{length:g}"
