"""The figure of a spectrum: how fast the singular values of attention maps decay, by layer and by head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..common.figures import FAINT, HEIGHT, INK, WIDTH, Axes, Figure, in_style, save_figure, shades


def plot_spectrum(spectrum: Mapping[str, Any], file_stem: str | Path) -> list[Path]:
    """Draw a spectrum as `draw_spectrum` does, and write it.

    Args:
        spectrum: As in `draw_spectrum`.
        file_stem: Where to write, without a suffix.

    Returns:
        The two files, PNG and SVG.
    """
    return save_figure(draw_spectrum(spectrum), file_stem)


@in_style
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
    axes.yaxis.set_major_formatter(as_percent)
    # three layers are enough for the legend, as the shades of the others lie between theirs
    named = sorted({0, len(means) // 2, len(means) - 1})
    axes.legend(handles=[means[index] for index in named], loc="lower right")


def draw_heads(axes: Axes, values: list[list[float]], rank: int) -> None:
    """Draw a cell for each head, layers from left to right and heads from bottom to top."""
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
    axes.locator_params(integer=True, nbins=12)
    axes.set(xlabel="Layer", ylabel="Head", title=f"The same at k = {rank}, head by head")
    bar = axes.figure.colorbar(image, ax=axes, pad=0.03, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_formatter(as_percent)
    bar.ax.tick_params(length=0)


def as_percent(share: float, position: int | None = None) -> str:
    """Write a share as a percentage, with the digits that a short range needs."""
    return f"{round(100 * share, 6):g}%"
