"""Figures in one style: the style, saving, and line curves.

The figures of one task stand with that task: `analysis/figures.py`, `benchmark/figures.py`. Those files take their
matplotlib names from here, so that one place says how to install it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import cycle
from pathlib import Path
from typing import Any, ParamSpec


try:
    from matplotlib import colormaps, rc_context, ticker
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
except ImportError as error:
    raise ImportError("Drawing figures needs matplotlib: pip install linformer_hf[plots]") from error


__all__ = [
    "FAINT",
    "HEIGHT",
    "INK",
    "LINE_STYLES",
    "MARKERS",
    "STYLE",
    "WIDTH",
    "Axes",
    "Figure",
    "Line2D",
    "Series",
    "draw_curves",
    "draw_line",
    "in_style",
    "plot_curves",
    "save_figure",
    "shades",
    "ticker",
]

Series = Sequence[tuple[float, float]]  # points of one line, (x, y)
P = ParamSpec("P")

WIDTH, HEIGHT = 8.3, 3.6  # inches: the width of a README's column at 100 dots an inch
INK, FAINT = "0.15", "0.55"
LINE_STYLES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P")
FEW_POINTS = 30  # up to this number each point of a curve is marked
STYLE = {
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.92",
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.handlelength": 2.8,  # long enough to tell the line styles apart
    "svg.fonttype": "path",
    "svg.hashsalt": "linformer_hf",
}


def in_style(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Let a function draw in the style of the package, and leave the user's settings of matplotlib as they are."""

    @wraps(draw)
    def draw_in_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return draw_in_style


def save_figure(figure: Figure, file_stem: str | Path) -> list[Path]:
    """Write a figure as PNG, two dots for each pixel of a README, and as SVG; equal figures give equal bytes.

    Args:
        figure: The figure.
        file_stem: Where to write, without a suffix. Missing folders are made.

    Returns:
        The two files.
    """
    stem = Path(file_stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("png", "svg")]
    # metadata that change from day to day, or with the version of matplotlib, are left out
    for file, entry in zip(files, ("Software", "Date")):
        with rc_context(STYLE):
            figure.savefig(file, metadata={entry: None})
    return files


def plot_curves(curves: Mapping[str, Series], file_stem: str | Path, x_label: str, y_label: str) -> list[Path]:
    """Draw curves as `draw_curves` does, and write them.

    Args:
        curves: As in `draw_curves`.
        file_stem: Where to write, without a suffix.
        x_label: As in `draw_curves`.
        y_label: As in `draw_curves`.

    Returns:
        The two files, PNG and SVG.
    """
    return save_figure(draw_curves(curves, x_label, y_label), file_stem)


@in_style
def draw_curves(curves: Mapping[str, Series], x_label: str, y_label: str) -> Figure:
    """Draw named curves with a legend beside them, and mark the points where they are few.

    Args:
        curves: Points of each curve by its label, from left to right.
        x_label: Label of the horizontal axis, with its unit.
        y_label: Label of the vertical axis, with its unit.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(WIDTH, HEIGHT))
    axes = figure.subplots()
    styles = zip(curves.items(), shades(len(curves)), cycle(LINE_STYLES), cycle(MARKERS))
    for (label, points), color, line_style, marker in styles:
        draw_line(axes, label, points, color, line_style, marker if len(points) <= FEW_POINTS else None)
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.autoscale(axis="x", tight=True)
    figure.legend(loc="outside right upper")
    return figure


def draw_line(
    axes: Axes, label: str, points: Series, color: Any, line_style: Any, marker: str | None = None
) -> Line2D:
    """Draw one line."""
    (line,) = axes.plot(*zip(*points), color=color, linestyle=line_style, marker=marker, label=label, clip_on=False)
    return line


def shades(count: int) -> list[tuple[float, float, float, float]]:
    """Return colours from dark to light, which stay in order when they are printed in grey."""
    return [colormaps["viridis"](0.62 * index / max(1, count - 1)) for index in range(count)]
