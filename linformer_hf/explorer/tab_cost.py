"""The tab of the cost: n x n of dense attention beside n x k of a Linformer, in MACs and saved activations."""

from dataclasses import dataclass
from functools import lru_cache

import gradio as gr
import pandas as pd

from ..benchmark.macs import count_macs, crossing_length, dense_macs, predicted_speedup
from ..benchmark.saved_activations import activation_bytes, dense_activation_bytes
from ..configuration_linformer import LinformerConfig
from .controls import (
    CHOSEN_COLOR,
    DENSE_COLOR,
    LINFORMER_COLOR,
    Series,
    build_count,
    build_lines,
    connect,
    line_points,
    noting_errors,
    values,
)
from .drawing import draw_areas, lay_out, list_numbers, metric


MOST_TOKENS = 16_384
LENGTHS = (128, 256, 512, *range(1024, MOST_TOKENS + 1, 1024))  # the n of the curves
KERNELS = {"Fused (SDPA)": "sdpa", "Plain (eager)": "eager"}
DENSE, LINFORMER, CHOSEN = "Dense", "Linformer", "Chosen n"
X, Y = "Length n, in tokens", "MACs per token, in millions"
ABOUT = """Dense attention compares each of n tokens with n tokens, a Linformer with k slots. Drag **Length n** and
**Slots k**: the two areas are drawn to one scale, and the curves show that the cost of a token grows with n in the
dense model and stays the same in the Linformer. The numbers are counted from formulas for a whole model of the size
of RoBERTa-base (12 layers, width 768), not measured."""


@dataclass(frozen=True)
class Cost:
    """What a Linformer of RoBERTa-base's size costs at n and k, and its dense twin.

    Args:
        macs: Of a forward pass on one text.
        dense_macs: The same of the twin.
        saved_bytes: Activations saved for the backward pass, in float32.
        dense_saved_bytes: The same of the twin.
        speedup: MACs of the twin over those of the Linformer.
        crossing: Fewest tokens at which the Linformer takes no more MACs; None if n is too few.
    """

    macs: int
    dense_macs: int
    saved_bytes: int
    dense_saved_bytes: int
    speedup: float
    crossing: int | None


@lru_cache(maxsize=256)
def base_config(num_tokens: int, num_slots: int) -> LinformerConfig:
    """Describe a Linformer of RoBERTa-base's size."""
    return LinformerConfig(max_position_embeddings=num_tokens, projected_length=num_slots)


def count_cost(num_tokens: int, num_slots: int, implementation: str) -> Cost:
    """Count what n tokens cost with k slots.

    Args:
        num_tokens: n.
        num_slots: k, at most n.
        implementation: `"sdpa"` or `"eager"`, as in `benchmark.saved_activations`.
    """
    config = base_config(num_tokens, num_slots)
    return Cost(
        macs=count_macs(config),
        dense_macs=dense_macs(config),
        saved_bytes=activation_bytes(config, implementation=implementation),
        dense_saved_bytes=dense_activation_bytes(config, implementation=implementation),
        speedup=predicted_speedup(config),
        crossing=crossing_length(config),
    )


def cost_curves(num_tokens: int, num_slots: int) -> dict[str, Series]:
    """Return the millions of MACs for each token against n at this k, of both models, and a line at the chosen n."""
    lengths = sorted({length for length in LENGTHS if length >= num_slots} | {num_tokens})
    curves = {
        label: [(length, count(base_config(length, num_slots)) / length / 1e6) for length in lengths]
        for label, count in ((DENSE, dense_macs), (LINFORMER, count_macs))
    }
    top = dense_macs(base_config(MOST_TOKENS, 1)) / MOST_TOKENS / 1e6
    return {**curves, CHOSEN: [(num_tokens, 0), (num_tokens, top)]}


@noting_errors(num_outputs=2)
def show_cost(num_tokens: int, num_slots: int, kernel: str) -> tuple[str, pd.DataFrame]:
    """Draw square and strip to scale, count what whole models take, and return the curves.

    Args:
        num_tokens: n.
        num_slots: k; where it is above n, n is taken.
        kernel: One of `KERNELS`.

    Returns:
        Areas and numbers as HTML, and the points of the curves.
    """
    num_slots = min(num_slots, num_tokens)
    cost = count_cost(num_tokens, num_slots, KERNELS[kernel])
    numbers = {
        "n, k": f"{num_tokens:,}, {num_slots:,}",
        "MACs, dense": metric(cost.dense_macs),
        "MACs, Linformer": metric(cost.macs),
        "Dense / Linformer": f"{cost.speedup:.2f} ×",
        "Fewer MACs": f"no n ≤ {num_tokens:,}" if cost.crossing is None else f"n ≥ {cost.crossing:,}",
        "Saved activations, dense": metric(cost.dense_saved_bytes, "B"),
        "Saved activations, Linformer": metric(cost.saved_bytes, "B"),
        "Dense / Linformer saved": f"{cost.dense_saved_bytes / cost.saved_bytes:.2f} ×",
    }
    picture = lay_out(draw_areas(num_tokens, num_slots), list_numbers(numbers))
    return picture, line_points(cost_curves(num_tokens, num_slots), X, Y)


def build_cost() -> None:
    """Lay out the tab."""
    gr.Markdown(ABOUT)
    with gr.Row():
        with gr.Column(scale=3, min_width=280) as main, gr.Row():
            length = build_count("Length n", "Tokens of a text.", MOST_TOKENS, 2048, step=128)
            slots = build_count("Slots k", "At most n.", 1024, 128, step=16)
        with gr.Column(scale=2, min_width=280):
            beside = gr.Column()
            kernel = gr.Radio(
                list(KERNELS),
                value=next(iter(KERNELS)),
                label="Attention kernel",
                info="A plain kernel saves the attention maps for the backward pass, a fused one does not.",
            )
        controls = [length, slots, kernel]
        picture, points = show_cost(*values(controls))
        with main:
            areas = gr.HTML(picture, elem_id="cost")
        with beside:
            colors = {DENSE: DENSE_COLOR, LINFORMER: LINFORMER_COLOR, CHOSEN: CHOSEN_COLOR}
            axes = {"x_lim": [0, MOST_TOKENS], "x_axis_format": "~s", "y_axis_format": ",.0f"}
            curves = build_lines(points, colors, "cost_curves", **axes)
        connect(show_cost, controls, [areas, curves])
