"""Pictures and numbers as HTML, where Gradio has no component: maps as images, areas to scale, numbers with names.

Ink is the page's own colour, so that they suit light and dark. Images lie inside the HTML: as files, each step of a
slider would leave one on the server.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO


try:
    import numpy as np
    from matplotlib import colormaps
    from PIL import Image
except ImportError as error:
    raise ImportError("Drawing maps needs matplotlib: pip install linformer_hf[explore]") from error


MOST_NAMES = 48  # of columns, that can be read side by side
STYLE_SHEET = """
.pictures { display: flex; flex-wrap: wrap; gap: 1.1rem; align-items: flex-start; }
.pictures figure { margin: 0; flex: 1 1 130px; min-width: 0; }
.pictures figure.wide, .pictures dl, .pictures p { flex-basis: 100%; margin: 0; }
.pictures figcaption { font-size: 0.85rem; opacity: 0.8; margin: 0.35rem 0; }
.pictures .map img { width: 100%; image-rendering: pixelated; border-radius: 4px; display: block; }
.pictures .map.wide { padding-left: 0.9rem; }
.pictures .map.wide img { max-height: 340px; min-height: 120px; }
.pictures .map.wide div { position: relative; }
.pictures .map.wide i { position: absolute; left: -0.9rem; transform: translateY(-50%); font-style: normal; }
.pictures .map.wide i { color: var(--color-accent); }
.pictures .names { display: flex; margin-top: 0.25rem; }
.pictures .names span { flex: 1; min-width: 0; writing-mode: vertical-rl; font-size: 0.7rem; line-height: 1; }
.pictures .names span { display: flex; align-items: center; max-height: 6em; overflow: hidden; white-space: nowrap; }
.pictures .areas { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1.5rem; max-width: 520px; }
.pictures .areas div { aspect-ratio: 1; border-radius: 3px; }
.pictures .areas .dense { background: var(--neutral-400); opacity: 0.55; }
.pictures .areas .frame { outline: 1px dashed var(--neutral-400); outline-offset: -1px; }
.pictures .areas .linformer { background: var(--color-accent); height: 100%; aspect-ratio: auto; border-radius: 0; }
.pictures dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(120px, 1fr)); gap: 0.8rem 1rem; }
.pictures dl { align-items: end; }
.pictures dt { font-size: 0.85rem; opacity: 0.8; }
.pictures dd { margin: 0; font-size: 1.2rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.pictures [role=alert] { padding: 0.8rem 1rem; border-left: 3px solid var(--color-accent); }
.pictures [role=alert] { background: var(--background-fill-secondary); }
/* Gradio's base theme draws a chosen radio button that is hovered over as if it were not chosen */
input[type=radio]:checked:hover { background-color: var(--checkbox-background-color-selected) !important; }
"""


def draw_map(values: np.ndarray, caption: str, largest: float | None = None) -> str:
    """Draw a matrix as one dot an entry, from dark at zero to light at the largest.

    Shades follow the square root, which makes small entries visible.

    Args:
        values: `(rows, columns)`; what is below zero is drawn as zero.
        caption: What it is.
        largest: Value of the lightest shade. None takes the largest that is there.
    """
    text = escape(caption)
    return f'<figure class="map">{draw_dots(values, text, largest)}<figcaption>{text}</figcaption></figure>'


def draw_table(values: np.ndarray, caption: str, columns: Sequence[str], marked_row: int) -> str:
    """Draw a matrix as `draw_map` does over the whole width, with one row marked and its columns named.

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
        f'<figure class="map wide"><div><i style="top: {top:.2f}%">▸</i>{draw_dots(values, text, None)}</div>'
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
    """Draw the n x n square beside the n x k strip, to one scale; a dashed line shows the area that is saved."""
    width = 100 * num_slots / num_tokens
    label = f"A square of {num_tokens} by {num_tokens}, and a strip of {num_tokens} by {num_slots}, to scale"
    return (
        f'<figure class="areas" role="img" aria-label="{label}"><div class="dense"></div>'
        f'<div class="frame"><div class="linformer" style="width: {width:.4f}%"></div></div>'
        f"<figcaption>Dense: n × n = {num_tokens:,} × {num_tokens:,}</figcaption>"
        f"<figcaption>Linformer: n × k = {num_tokens:,} × {num_slots:,}</figcaption></figure>"
    )


def list_numbers(numbers: Mapping[str, str]) -> str:
    """Set numbers, already written out, under their names."""
    rows = [f"<div><dt>{escape(name)}</dt><dd>{escape(number)}</dd></div>" for name, number in numbers.items()]
    return f"<dl>{''.join(rows)}</dl>"


def write_note(text: str) -> str:
    """Set a sentence where a picture would be, and have screen readers say it."""
    return lay_out(f'<p role="alert">{escape(text)}</p>')


def lay_out(*parts: str) -> str:
    """Set pictures side by side where there is room."""
    return f'<div class="pictures">{"".join(parts)}</div>'


def metric(value: float, unit: str = "") -> str:
    """Write a number with three digits and a prefix, as in 1.23 G."""
    prefixes = ("", "k", "M", "G", "T", "P")
    power = min(len(prefixes) - 1, max(0, int(math.log10(max(value, 1)) // 3)))
    return f"{value / 1000**power:.3g} {prefixes[power]}{unit}".rstrip()
