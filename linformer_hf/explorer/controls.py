"""Controls and outputs that the tabs share, and how outputs follow controls."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from .checkpoints import MOST_CHARACTERS, MOST_TOKENS
from .drawing import write_note
from .store import CheckpointStore


try:
    import gradio as gr
    import pandas as pd
except ImportError as error:
    raise ImportError("The explorer needs gradio: pip install linformer_hf[explore]") from error


Series = Sequence[tuple[float, float]]  # points of one line, (x, y)
Outputs = tuple[Any, ...]

EXAMPLE = "The file is closed when the object is deleted, and the method returns the number of bytes written."
LIMITS = f"Up to {MOST_CHARACTERS:,} characters, of which the first {MOST_TOKENS} tokens are read."
# while a slider moves: of the steps that wait only the last one is drawn
LIVE = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
LINFORMER_COLOR, DENSE_COLOR, CHOSEN_COLOR = "#0d9488", "#8b8f98", "#d97706"  # all readable on white and on black


def build_count(label: str, info: str, most: int, value: int = 1, step: int = 1) -> gr.Slider:
    """Lay out a slider over whole numbers, in steps from the first."""
    return gr.Slider(step, at_least_two(most, step), value, step=step, precision=0, label=label, info=info)


def at_least_two(most: int, step: int = 1) -> int:
    """Return where a slider ends: Gradio refuses one of a single value, and what draws takes the value as 1."""
    return max(most, 2 * step)


def build_text(example: str, info: str = LIMITS, button: str = "Read") -> gr.Textbox:
    """Lay out a box for a text, with a button that submits it."""
    return gr.Textbox(example, label="Text", info=info, max_lines=6, submit_btn=button)


def build_layer_and_head(store: CheckpointStore, chosen: gr.State) -> tuple[gr.Slider, gr.Slider]:
    """Lay out the choice of a layer and a head, whose ranges follow the checkpoint."""
    layers, heads = store.get(chosen.value).shape
    layer = build_count("Layer", "1 is next to the input.", layers)
    head = build_count("Head", "Heads of one layer attend differently.", heads)
    chosen.change(
        lambda name: [gr.Slider(maximum=at_least_two(most), value=1) for most in store.get(name).shape],
        chosen,
        [layer, head],
        **LIVE,
    )
    return layer, head


def build_lines(points: pd.DataFrame, colors: Mapping[str, str], name: str, **options: Any) -> gr.LinePlot:
    """Lay out lines as from `line_points`, which the browser draws.

    Args:
        points: The first picture.
        colors: Of each line.
        name: `id` of the element.
        **options: Of `gradio.LinePlot`.
    """
    x, y, line = points.columns
    return gr.LinePlot(
        points,
        x=x,
        y=y,
        color=line,
        color_title=" ",
        color_map=dict(colors),
        height=300,
        buttons=["fullscreen"],
        elem_id=name,
        **options,
    )


def line_points(lines: Mapping[str, Series], x: str, y: str) -> pd.DataFrame:
    """Return the points of lines as a table: a row each, with columns of x, of y and of the line's label."""
    rows = [(*point, label) for label, points in lines.items() for point in points]
    return pd.DataFrame(rows, columns=[x, y, "Line"])


def connect(
    show: Callable[..., Outputs],
    controls: Sequence[gr.components.Component],
    outputs: Sequence[gr.components.Component],
) -> None:
    """Let outputs follow their controls: a text when it is submitted, others while they move."""
    changes = [control.submit if isinstance(control, gr.Textbox) else control.change for control in controls]
    gr.on(changes, show, list(controls), list(outputs), **LIVE)


def values(controls: Sequence[gr.components.Component]) -> list[Any]:
    """Return what controls hold at the start."""
    return [control.value for control in controls]


def noting_errors(num_outputs: int) -> Callable[[Callable[..., Outputs]], Callable[..., Outputs]]:
    """Decorate what draws a tab: a user's mistake is written into the first output, and the others are emptied.

    Args:
        num_outputs: How many there are; the first is HTML.
    """

    def decorate(show: Callable[..., Outputs]) -> Callable[..., Outputs]:
        @wraps(show)
        def show_or_note(*inputs: Any) -> Outputs:
            try:
                return show(*inputs)
            except ValueError as error:
                return (write_note(str(error)), *([None] * (num_outputs - 1)))

        return show_or_note

    return decorate
