"""Small pictures as HTML, for a page: maps as dots, areas to scale, lines, and numbers with their names.

Ink is the page's own colour, so that the pictures suit light and dark.
"""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from html import escape
from io import BytesIO
from typing import Any


try:
    import numpy as np
    from matplotlib import colormaps
    from PIL import Image
except ImportError as error:
    raise ImportError("Drawing maps needs matplotlib: pip install linformer_hf[explore]") from error


Series = Sequence[tuple[float, float]]  # points of one line, (x, y)

CHART_WIDTH, CHART_HEIGHT = 340, 210  # in the units of a font of 11
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 34  # margins for ticks and labels
MOST_NAMES = 48  # of columns, that can be read side by side
STYLE_SHEET = """
.sketches { display: flex; flex-wrap: wrap; gap: 1.1rem; align-items: flex-start; }
.sketches figure { margin: 0; flex: 1 1 130px; min-width: 0; }
.sketches figure.chart { flex-basis: 280px; }
.sketches figure.wide, .sketches dl { flex-basis: 100%; }
.sketches figcaption { font-size: 0.8rem; opacity: 0.75; margin: 0.35rem 0; }
.sketches svg { width: 100%; height: auto; display: block; }
.sketches svg text { font-size: 11px; fill: currentColor; opacity: 0.75; }
.sketches .map img { width: 100%; image-rendering: pixelated; border-radius: 4px; display: block; }
.sketches .map.wide img { max-height: 340px; min-height: 120px; }
.sketches .map.wide div { position: relative; }
.sketches .map.wide i { position: absolute; left: -0.75rem; transform: translateY(-50%); }
.sketches .map.wide i::before { content: "▸"; font-style: normal; color: var(--color-accent); }
.sketches .names { display: flex; margin-top: 0.25rem; }
.sketches .names span { flex: 1; min-width: 0; writing-mode: vertical-rl; font-size: 0.7rem; line-height: 1; }
.sketches .names span { display: flex; align-items: center; max-height: 6em; overflow: hidden; white-space: nowrap; }
.sketches .areas svg { max-width: 520px; }
.sketches .areas figcaption { display: flex; max-width: 520px; }
.sketches .areas figcaption span { flex: 0 0 53%; }
.sketches .chart { max-width: 440px; }
.sketches rect.dense, .sketches rect.saved { fill: currentColor; fill-opacity: 0.14; }
.sketches rect.saved { fill: none; stroke: currentColor; stroke-width: 0.5; stroke-dasharray: 2 2; opacity: 0.6; }
.sketches rect.linformer, .sketches circle.linformer { fill: var(--color-accent); }
.sketches circle.dense { fill: currentColor; }
.sketches path { fill: none; stroke: currentColor; }
.sketches path.grid { opacity: 0.12; }
.sketches path.mark { opacity: 0.5; stroke-dasharray: 3 3; }
.sketches path.linformer { stroke: var(--color-accent); stroke-width: 2; }
.sketches path.dense { stroke-width: 1.5; stroke-dasharray: 5 3; opacity: 0.8; }
.sketches .key { margin-right: 1.2rem; white-space: nowrap; }
.sketches .key::before { content: ""; display: inline-block; width: 1.4em; margin-right: 0.4em; }
.sketches .key::before { vertical-align: middle; }
.sketches .key.linformer::before { border-top: 2px solid var(--color-accent); }
.sketches .key.dense::before { border-top: 2px dashed currentColor; }
.sketches dl { margin: 0; display: grid; grid-template-columns: repeat(auto-fill, minmax(135px, 1fr)); gap: 0.9rem; }
.sketches dt { font-size: 0.8rem; opacity: 0.75; }
.sketches dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
.sketches ol { flex-basis: 100%; list-style: none; margin: 0; padding: 0; max-width: 520px; }
.sketches li { display: grid; grid-template-columns: 7.5em 1fr 4.5em; gap: 0.7em; align-items: center; }
.sketches li b { font-weight: 500; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.sketches li span { text-align: right; font-variant-numeric: tabular-nums; }
.sketches li i { height: 0.5em; border-radius: 2px; background: var(--color-accent); }
.sketches p { margin: 0; flex-basis: 100%; }
@media (max-width: 600px) { .sketches svg text { font-size: 13px; } }
"""


def draw_map(values: np.ndarray, caption: str, largest: float | None = None) -> str:
    """Draw a matrix as one dot an entry, from dark at zero to light at the largest.

    Shades follow the square root, which brings out what is faint.

    Args:
        values: `(rows, columns)`; what is below zero is drawn as zero.
        caption: What it is.
        largest: Value of the lightest shade. None takes the largest that is there.
    """
    text = escape(caption)
    return f'<figure class="map">{draw_dots(values, text, largest)}<figcaption>{text}</figcaption></figure>'


def draw_table(values: np.ndarray, caption: str, columns: Sequence[str], marked_row: int) -> str:
    """Draw a matrix as `draw_map` does over a whole row of the page, a row of it marked and its columns named.

    Args:
        values: `(rows, columns)`, none below zero.
        caption: What it is.
        columns: Name of each column; left out where they are too many to be read.
        marked_row: From 0.
    """
    text = escape(caption)
    top = 100 * (marked_row + 0.5) / len(values)
    names = columns if len(columns) <= MOST_NAMES else ()
    return (
        f'<figure class="map wide"><div><i style="top: {top:.2f}%"></i>{draw_dots(values, text, None)}</div>'
        f'<div class="names">{"".join(f"<span>{escape(name)}</span>" for name in names)}</div>'
        f"<figcaption>{text}</figcaption></figure>"
    )


def draw_dots(values: np.ndarray, alt: str, largest: float | None) -> str:
    """Draw the dots of `draw_map` as an image."""
    largest = float(values.max()) if largest is None else largest
    shares = np.sqrt(np.clip(values / max(largest, 1e-12), 0, 1))
    file = BytesIO()
    Image.fromarray(colormaps["viridis"](shares, bytes=True)[..., :3]).save(file, "PNG")
    return f'<img alt="{alt}" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'


def draw_areas(num_tokens: int, num_slots: int) -> str:
    """Draw the n x n square beside the n x k strip, to one scale; a dashed line shows what the strip saves."""
    width = 100 * num_slots / num_tokens
    label = f"A square of {num_tokens} by {num_tokens}, and a strip of {num_tokens} by {num_slots}, to scale"
    return (
        f'<figure class="areas"><svg viewBox="-1 -1 217 102" role="img" aria-label="{label}">'
        '<rect class="dense" width="100" height="100"/>'
        '<rect class="saved" x="115" width="100" height="100"/>'
        f'<rect class="linformer" x="115" width="{width:.4f}" height="100"/></svg>'
        f"<figcaption><span>n × n = {num_tokens:,} × {num_tokens:,}</span>"
        f"<span>n × k = {num_tokens:,} × {num_slots:,}</span></figcaption></figure>"
    )


def draw_lines(
    lines: Mapping[str, Series],
    x_ticks: Mapping[float, str],
    y_ticks: Mapping[float, str],
    x_label: str,
    mark: float,
    is_log: bool = False,
) -> str:
    """Draw up to two lines, with a mark on each: the first in the page's accent, the second dashed.

    Args:
        lines: Points of each line by its label.
        x_ticks: What stands below the axis, by its place. The outermost ticks are the ends of the axis.
        y_ticks: The same to the left.
        x_label: What runs to the right, with its unit.
        mark: The x at which the lines are marked.
        is_log: Draw both axes on logarithmic scales.
    """

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = share(x, x_ticks, is_log), share(y, y_ticks, is_log)
        return LEFT + across * (CHART_WIDTH - LEFT - RIGHT), CHART_HEIGHT - BOTTOM - up * (CHART_HEIGHT - TOP - BOTTOM)

    least = min(y_ticks)
    parts = []
    for y, text in y_ticks.items():
        left, height = place(min(x_ticks), y)
        parts.append(f'<path class="grid" d="M{left:.1f} {height:.1f}H{CHART_WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{left - 6:.1f}" y="{height + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for x, text in x_ticks.items():
        left, height = place(x, least)
        parts.append(f'<text x="{left:.1f}" y="{height + 17:.1f}" text-anchor="middle">{escape(text)}</text>')
    middle = (LEFT + CHART_WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{CHART_HEIGHT - 3}" text-anchor="middle">{escape(x_label)}</text>')
    left, height = place(mark, least)
    parts.append(f'<path class="mark" d="M{left:.1f} {height:.1f}V{TOP}"/>')
    keys = []
    for (label, points), kind in zip(lines.items(), ("linformer", "dense")):
        places = [place(x, max(y, least)) for x, y in points]
        parts.append(f'<path class="line {kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in places)}"/>')
        dots = [spot for spot, (x, _) in zip(places, points) if x == mark]
        parts += [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in dots]
        keys.append(f'<span class="key {kind}">{escape(label)}</span>')
    label = escape(f"{' and '.join(lines)} against: {x_label}")
    svg = f'<svg viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    return f'<figure class="chart"><figcaption>{"".join(keys)}</figcaption>{svg}</figure>'


def share(value: float, ticks: Mapping[float, str], is_log: bool) -> float:
    """Return how far a value lies between the outermost ticks, from 0 to 1."""
    low, high = min(ticks), max(ticks)
    if is_log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low)


def draw_bars(lengths: Mapping[str, float], texts: Sequence[str]) -> str:
    """Draw a bar for each name, the longest over the whole width.

    Args:
        lengths: None below zero, by name.
        texts: What stands behind each bar.
    """
    longest = max(lengths.values(), default=0) or 1
    rows = [
        f'<li><b title="{escape(name)}">{escape(name)}</b><i style="width: {100 * length / longest:.1f}%"></i>'
        f"<span>{escape(text)}</span></li>"
        for (name, length), text in zip(lengths.items(), texts)
    ]
    return f"<ol>{''.join(rows)}</ol>"


def write_note(text: str) -> str:
    """Set a sentence where a picture would be, and have screen readers say it."""
    return lay_out(f'<p role="alert">{escape(text)}</p>')


def noted(function: Callable[..., str]) -> Callable[..., str]:
    """Show what is wrong with an input where the picture would be."""

    @wraps(function)
    def draw(*inputs: Any) -> str:
        try:
            return function(*inputs)
        except ValueError as error:
            return write_note(str(error))

    return draw


def list_numbers(numbers: Mapping[str, str]) -> str:
    """Set numbers, already written out, under their names."""
    rows = [f"<div><dt>{escape(name)}</dt><dd>{escape(number)}</dd></div>" for name, number in numbers.items()]
    return f'<dl class="numbers">{"".join(rows)}</dl>'


def lay_out(*parts: str) -> str:
    """Set pictures side by side where there is room."""
    return f'<div class="sketches">{"".join(parts)}</div>'


def metric(value: float, unit: str = "") -> str:
    """Write a number with three digits and a prefix, as in 1.23 G."""
    prefixes = ("", "k", "M", "G", "T", "P")
    power = min(len(prefixes) - 1, max(0, int(math.log10(max(value, 1)) // 3)))
    return f"{value / 1000**power:.3g} {prefixes[power]}{unit}".rstrip()
