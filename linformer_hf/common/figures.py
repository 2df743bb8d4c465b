"""Figures in one quiet style: spectra of attention maps, curves of training, cost against length.

Each figure comes in two steps: `draw_...` returns it, `plot_...` also writes it, as PNG and as SVG.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any


try:
    from matplotlib import colormaps, rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter
except ImportError as error:
    raise ImportError("Drawing figures needs matplotlib: pip install linformer_hf[plots]") from error


Series = Sequence[tuple[float, float]]  # points of one line, (x, y)

WIDTH, HEIGHT = 8.3, 3.6  # inches: the width of a README's column at 100 dots an inch
INK, FAINT = "0.15", "0.55"
LINE_STYLES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P")
LABEL_HEIGHT = 0.07  # of the axes' height, that a label takes
FEW_POINTS = 30  # up to here each point of a curve is marked
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
    "svg.fonttype": "path",
    "svg.hashsalt": "linformer_hf",
}


def plot_spectrum(spectrum: Mapping[str, Any], file_stem: str | Path) -> list[Path]:
    """Draw a spectrum as `draw_spectrum` does, and write it.

    Args:
        spectrum: As in `draw_spectrum`.
        file_stem: Where to write, without a suffix.

    Returns:
        The two files, PNG and SVG.
    """
    return save_figure(draw_spectrum(spectrum), file_stem)


def plot_curves(
    curves: Mapping[str, Series], file_stem: str | Path, x_label: str, y_label: str, log_y: bool = False
) -> list[Path]:
    """Draw curves as `draw_curves` does, and write them.

    Args:
        curves: As in `draw_curves`.
        file_stem: Where to write, without a suffix.
        x_label: What runs to the right, with its unit.
        y_label: What runs upwards, with its unit.
        log_y: Draw heights on a logarithmic scale.

    Returns:
        The two files, PNG and SVG.
    """
    return save_figure(draw_curves(curves, x_label, y_label, log_y), file_stem)


def plot_efficiency(
    panels: Mapping[str, Mapping[str, Series]], file_stem: str | Path, baseline: str, x_label: str = "Tokens, n"
) -> list[Path]:
    """Draw cost against length as `draw_efficiency` does, and write it.

    Args:
        panels: As in `draw_efficiency`.
        file_stem: Where to write, without a suffix.
        baseline: As in `draw_efficiency`.
        x_label: As in `draw_efficiency`.

    Returns:
        The two files, PNG and SVG.
    """
    return save_figure(draw_efficiency(panels, baseline, x_label), file_stem)


@rc_context(STYLE)
def draw_spectrum(spectrum: Mapping[str, Any]) -> Figure:
    """Draw how fast attention maps decay (after Figure 1 of the paper).

    Left, for each layer, the cumulative singular value against the rank: the mean over heads, and each head as a thin
    line. Right, for each head, the value at rank k.

    Args:
        spectrum: `cumulative`, the share of the sum of singular values that lies in the first 1, 2, ... of them, as
            nested lists or an array of shape (layers, heads, ranks); and `rank`, the k of the heat map.

    Returns:
        The figure.
    """
    cumulative = [[list(map(float, head)) for head in layer] for layer in spectrum["cumulative"]]
    rank = spectrum["rank"]
    figure = Figure(figsize=(WIDTH, HEIGHT))
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    draw_decay(left, cumulative, rank)
    draw_heads(right, [[head[rank - 1] for head in layer] for layer in cumulative], rank)
    return figure


@rc_context(STYLE)
def draw_curves(curves: Mapping[str, Series], x_label: str, y_label: str, log_y: bool = False) -> Figure:
    """Draw named curves, each labelled at its end, with the points marked where they are few.

    Args:
        curves: Points of each curve by its label, from left to right.
        x_label: What runs to the right, with its unit.
        y_label: What runs upwards, with its unit.
        log_y: Draw heights on a logarithmic scale.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(WIDTH, HEIGHT))
    axes = figure.subplots()
    lines = [
        draw_line(axes, label, points, color, line_style, "o" if len(points) <= FEW_POINTS else None)
        for (label, points), color, line_style in zip(curves.items(), shades(len(curves)), cycle(LINE_STYLES))
    ]
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.autoscale(axis="x", tight=True)
    if log_y:
        use_log_heights(axes)
    freeze_limits(axes)
    label_ends(axes, lines)
    return figure


@rc_context(STYLE)
def draw_efficiency(panels: Mapping[str, Mapping[str, Series]], baseline: str, x_label: str = "Tokens, n") -> Figure:
    """Draw cost against length on logarithmic scales, side by side, and mark where a line falls below the baseline.

    Args:
        panels: For each panel, by what runs upwards with its unit (`"Seconds a text"`), the points of each line by
            its label.
        baseline: Label of the line to compare with, drawn in black.
        x_label: What runs to the right, with its unit.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(WIDTH, HEIGHT))
    for axes, (y_label, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        draw_cost(axes, lines, baseline)
        axes.set_title(y_label)
        axes.set_xlabel(x_label)
    return figure


def save_figure(figure: Figure, file_stem: str | Path) -> list[Path]:
    """Write a figure as PNG, two dots for each pixel of a README, and as SVG, the same bytes each time.

    Args:
        figure: The figure.
        file_stem: Where to write, without a suffix. Missing folders are made.

    Returns:
        The two files.
    """
    stem = Path(file_stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("png", "svg")]
    for file, written_by in zip(files, ("Software", "Date")):
        with rc_context(STYLE):
            figure.savefig(file, metadata={written_by: None})
    return files


def draw_decay(axes: Axes, cumulative: list[list[list[float]]], rank: int) -> None:
    """Draw a line for each layer and a thin one for each head, from light in the first layer to dark in the last."""
    num_ranks = len(cumulative[0][0])
    ranks = range(1, num_ranks + 1)
    means = []
    for index, (heads, color) in enumerate(zip(cumulative, reversed(shades(len(cumulative)))), start=1):
        for head in heads:
            axes.plot(ranks, head, color=color, linewidth=0.6, alpha=0.3)
        mean = [sum(column) / len(column) for column in zip(*heads)]
        means += axes.plot(ranks, mean, color=color, zorder=3, label=f"layer {index}")
    axes.axvline(rank, color=FAINT, linewidth=0.9, linestyle=(0, (3, 3)))
    axes.annotate(f"k = {rank}", (rank, 0), xytext=(5, 5), textcoords="offset points", color=INK, fontsize=9)
    axes.set(xlim=(0, num_ranks), ylim=(0, 1), xlabel="Rank", title="Cumulative singular value, layer by layer")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    some = sorted({0, len(means) // 2, len(means) - 1})
    axes.legend(handles=[means[index] for index in some], loc="lower right", frameon=False, fontsize=9)


def draw_heads(axes: Axes, values: list[list[float]], rank: int) -> None:
    """Draw a cell for each head, layers to the right and heads upwards."""
    num_layers, num_heads = len(values), len(values[0])
    image = axes.imshow(
        list(zip(*values)),
        cmap="viridis",
        origin="lower",
        aspect="auto",
        extent=(0.5, num_layers + 0.5, 0.5, num_heads + 0.5),
    )
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    axes.set(xlabel="Layer", ylabel="Head", title=f"The same at k = {rank}, head by head")
    bar = axes.figure.colorbar(image, ax=axes, pad=0.03, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{round(100 * share, 6):g}%"))
    bar.ax.tick_params(length=0)


def draw_cost(axes: Axes, series: Mapping[str, Series], baseline: str) -> None:
    """Draw the lines of one panel, the baseline in black, and the points where they fall below it."""
    axes.set_xscale("log")
    others = {label: points for label, points in series.items() if label != baseline}
    lines = [
        draw_line(axes, label, points, color, line_style, marker)
        for (label, points), color, line_style, marker in zip(
            others.items(), shades(len(others)), cycle(LINE_STYLES[1:]), cycle(MARKERS)
        )
    ]
    if baseline in series:
        lines.append(draw_line(axes, baseline, series[baseline], "black", LINE_STYLES[0], "."))
    use_log_heights(axes)
    lengths = sorted({x for points in series.values() for x, _ in points})
    axes.set_xticks(lengths, [short_length(length) for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    freeze_limits(axes)
    mark_crossings(axes, lines, series.get(baseline, ()))
    label_ends(axes, lines)


def crossing(series: Series, baseline: Series) -> tuple[float, float] | None:
    """Find from where on a line stays below the baseline, between measured points along straight log-log lines.

    Args:
        series: Points of the line.
        baseline: Points of the baseline; lengths that only one of them has are passed over.

    Returns:
        The point, or None where the line never falls below, or lies below from the first length on.
    """
    reference = dict(baseline)
    both = [(math.log(x), math.log(y), math.log(y / reference[x])) for x, y in sorted(series) if x in reference]
    above = [index for index, (_, _, excess) in enumerate(both) if excess > 0]
    if not above or above[-1] + 1 == len(both):
        return None
    (x, y, excess), (next_x, next_y, next_excess) = both[above[-1]], both[above[-1] + 1]
    part = excess / (excess - next_excess)
    return math.exp(x + part * (next_x - x)), math.exp(y + part * (next_y - y))


def mark_crossings(axes: Axes, lines: Sequence[Line2D], baseline: Series) -> None:
    """Ring the points where lines fall below the baseline, and write the lengths above them."""
    found = [(crossing(line.get_xydata().tolist(), baseline), line.get_color()) for line in lines]
    found = sorted((point, color) for point, color in found if point is not None)
    places = [to_axes_fraction(axes, point) for point, _ in found]
    wanted = [y + 1.6 * LABEL_HEIGHT for _, y in places]
    heights = spread(wanted, LABEL_HEIGHT)
    for ((x, y), color), (left, _), height in zip(found, places, heights):
        axes.plot([x], [y], "o", markersize=8, markerfacecolor="none", markeredgecolor=color, markeredgewidth=1.1)
        write(axes, f"n ≈ {float(f'{x:.2g}'):g}", (left, height + wanted[0] - heights[0]), color, "center")


def use_log_heights(axes: Axes) -> None:
    """Draw heights on a logarithmic scale, with round numbers written out."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 5 * low:
        axes.yaxis.set_major_locator(MaxNLocator(6))
    else:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(plain))


def freeze_limits(axes: Axes) -> None:
    """Keep the limits as they are, so that places in them stay true whatever is drawn next."""
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())


def draw_line(
    axes: Axes, label: str, points: Series, color: Any, line_style: Any, marker: str | None = None
) -> Line2D:
    """Draw one line."""
    (line,) = axes.plot(*zip(*points), color=color, linestyle=line_style, marker=marker, label=label, clip_on=False)
    return line


def label_ends(axes: Axes, lines: Sequence[Line2D]) -> None:
    """Write each line's label behind its last point, or before it where other lines go on.

    Labels that would overlap move up or down, and stay beside the axes while there is room.
    """
    ends = [to_axes_fraction(axes, line.get_xydata()[-1]) for line in lines]
    right = max((x for x, _ in ends), default=0.0)
    columns: dict[float, list[tuple[float, int]]] = {}
    for index, (x, y) in enumerate(ends):
        columns.setdefault(right if x > 0.93 * right else round(x, 3), []).append((y, index))
    for x, column in columns.items():
        column.sort()
        heights = spread([y for y, _ in column], LABEL_HEIGHT)
        excess = max(0.0, heights[-1] - 1) or min(0.0, heights[0])
        side = "left" if x == right else "right"
        for (_, index), height in zip(column, heights):
            write(axes, lines[index].get_label(), (x, height - excess), lines[index].get_color(), side)


def to_axes_fraction(axes: Axes, point: tuple[float, float]) -> tuple[float, float]:
    """Turn a point of the data into shares of the axes' width and height; limits must be frozen."""
    x, y = (axes.transScale + axes.transLimits).transform(point)
    return float(x), float(y)


def write(axes: Axes, text: str, place: tuple[float, float], color: Any, alignment: str) -> None:
    """Write text with its left, center or right at a place, given in shares of the axes, and a little aside of it."""
    axes.annotate(
        text,
        place,
        xycoords="axes fraction",
        xytext=({"left": 7, "center": 0, "right": -7}[alignment], 0),
        textcoords="offset points",
        horizontalalignment=alignment,
        verticalalignment="center",
        fontsize=9,
        color=color,
    )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move sorted heights apart to at least a gap, each group around its own middle."""
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and bottom(groups[-1], gap) < bottom(groups[-2], gap) + len(groups[-2]) * gap:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [bottom(group, gap) + index * gap for group in groups for index in range(len(group))]


def bottom(group: Sequence[float], gap: float) -> float:
    """Return where the lowest of a group of heights moves to."""
    return sum(group) / len(group) - (len(group) - 1) / 2 * gap


def shades(count: int) -> list[tuple[float, float, float, float]]:
    """Return colours from dark to light, which stay in order when they are printed in grey."""
    return [colormaps["viridis"](0.62 * index / max(1, count - 1)) for index in range(count)]


def plain(value: float, position: int | None = None) -> str:
    """Write a number without a power of ten, as long as it is short."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def short_length(length: float) -> str:
    """Write a length in tokens, whole multiples of 1024 as 1k, 2k, ..."""
    return f"{length / 1024:g}k" if length >= 1024 and length % 1024 == 0 else f"{length:g}"
