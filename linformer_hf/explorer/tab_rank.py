"""The tab of the rank: an attention map beside its best approximation of rank k, and the error against k.

Letters: N tokens, K columns of a map (N of a dense model, slots of a Linformer), R ranks.
"""

from dataclasses import dataclass
from functools import partial

import gradio as gr
import pandas as pd
import torch

from ..analysis.singular_values import effective_rank, kept_energy, rank_k_error
from .checkpoints import tokenize
from .controls import (
    CHOSEN_COLOR,
    DENSE_COLOR,
    EXAMPLE,
    LINFORMER_COLOR,
    LIVE,
    Series,
    build_count,
    build_layer_and_head,
    build_lines,
    build_text,
    connect,
    line_points,
    noting_errors,
    values,
)
from .drawing import draw_map, lay_out, list_numbers
from .store import CheckpointStore


MAP_TOKENS = 96  # of the synthetic map
SYNTHETIC, REAL = "Synthetic map", "A head of the checkpoint"
ERROR, ENERGY, CHOSEN = "Error", "Energy", "Chosen k"
ALL_POINTS = 24  # of a curve, before it is thinned out
ABOUT = """An attention map of low rank can be rebuilt from its first k singular values. Drag **Rank k**: the right
map is the best approximation of rank k, and the curve shows the error that remains. Where the error falls slowly, a
Linformer with few slots loses much."""


@dataclass(frozen=True)
class Approximation:
    """A map and its best approximation of rank k.

    Args:
        original: `(N, K)`.
        approximation: `(N, K)`.
        rank: k, at most R.
        errors: Frobenius norm of the difference over that of the map, at rank 1, 2, ... R, `(R,)`.
        energy: Share of the sum of squared singular values in the first 1, 2, ... R, `(R,)`.
        distance: Frobenius norm of the difference at rank k.
        effective_rank: As in `analysis.singular_values`.
    """

    original: torch.Tensor
    approximation: torch.Tensor
    rank: int
    errors: torch.Tensor
    energy: torch.Tensor
    distance: float
    effective_rank: float


def synthetic_map(decay: float, num_tokens: int) -> torch.Tensor:
    """Make an attention map whose singular values are exactly 1, exp(-decay), exp(-2 decay), ...

    Cosines are its singular vectors, so that each token attends around itself, and rows sum to one. The slower the
    decay, the narrower the attention.

    Args:
        decay: Fall of the logarithm from one singular value to the next.
        num_tokens: N.

    Returns:
        `(N, N)`, in float64.
    """
    numbers = torch.arange(num_tokens, dtype=torch.float64)
    cosines = torch.cos(torch.pi / num_tokens * numbers[:, None] * (numbers + 0.5))  # a row for each frequency
    cosines = cosines / torch.linalg.vector_norm(cosines, dim=1, keepdim=True)
    return cosines.T @ (torch.exp(-decay * numbers)[:, None] * cosines)


def approximate(original: torch.Tensor, rank: int) -> Approximation:
    """Rebuild a map, `(N, K)`, from its first k singular values (Eckart and Young 1936); k is at most R."""
    original = original.double()
    left, singular, right = torch.linalg.svd(original, full_matrices=False)
    rank = min(rank, len(singular))
    errors = rank_k_error(singular)
    return Approximation(
        original=original,
        approximation=(left[:, :rank] * singular[:rank]) @ right[:rank],
        rank=rank,
        errors=errors,
        energy=kept_energy(singular),
        distance=errors[rank - 1].item() * torch.linalg.vector_norm(singular).item(),
        effective_rank=effective_rank(singular).item(),
    )


@noting_errors(num_outputs=2)
def show_rank(
    store: CheckpointStore, kind: str, rank: int, decay: float, name: str, text: str, layer: int, head: int
) -> tuple[str, pd.DataFrame]:
    """Draw a map beside its approximation of rank k, and the error against k.

    Args:
        store: Where the checkpoint is.
        kind: `SYNTHETIC` or `REAL`.
        rank: k.
        decay: Of the synthetic map.
        name: Of the checkpoint.
        text: What the checkpoint reads.
        layer: From 1.
        head: From 1.

    Returns:
        Maps and numbers as HTML, and the points of the curves.
    """
    if kind == SYNTHETIC:
        original, about = synthetic_map(decay, MAP_TOKENS), f"{MAP_TOKENS} tokens"
    else:
        original, about = head_map(store, name, text, layer, head)
    found = approximate(original, rank)
    largest, num_ranks = found.original.max().item(), len(found.errors)
    numbers = {
        "Rank k": f"{found.rank} of {num_ranks}",
        "Relative error": f"{100 * found.errors[found.rank - 1]:.2f} %",
        "Kept energy": f"{100 * found.energy[found.rank - 1]:.2f} %",
        "Frobenius error": f"{found.distance:.4f}",
        "Effective rank": f"{found.effective_rank:.1f}",
    }
    lines = {
        ERROR: thin_out([(0, 1.0), *enumerate(found.errors.tolist(), start=1)], found.rank),
        ENERGY: thin_out([(0, 0.0), *enumerate(found.energy.tolist(), start=1)], found.rank),
        CHOSEN: [(found.rank, 0.0), (found.rank, 1.0)],
    }
    picture = lay_out(
        draw_map(found.original.numpy(), f"The map: {about}", largest),
        draw_map(found.approximation.numpy(), f"Its best approximation of rank {found.rank}", largest),
        list_numbers(numbers),
    )
    return picture, line_points(lines, "Rank k", "Share")


def thin_out(points: Series, index: int) -> Series:
    """Keep the first points of a curve, where it bends most, and then each fourth, the one of an index, and the last.

    A browser draws the curve at each step of the slider.
    """
    kept = {*range(min(ALL_POINTS, len(points))), *range(0, len(points), 4), index, len(points) - 1}
    return [points[place] for place in sorted(kept)]


def head_map(store: CheckpointStore, name: str, text: str, layer: int, head: int) -> tuple[torch.Tensor, str]:
    """Return the attention map of one head on a text, `(N, K)`, and what its axes are."""
    checkpoint = store.get(name)
    is_cut = tokenize(checkpoint.tokenizer, text).is_cut
    maps = checkpoint.attend(text)
    heads = maps[min(layer, len(maps)) - 1]
    found = heads[min(head, len(heads)) - 1]
    columns = "slots" if checkpoint.is_linformer else "tokens"
    rows = f"first {len(found)} tokens" if is_cut else f"{len(found)} tokens"
    return found, f"{rows} (rows) × {found.shape[1]} {columns} (columns)"


def build_rank(store: CheckpointStore, chosen: gr.State) -> None:
    """Lay out the tab."""
    gr.Markdown(ABOUT)
    with gr.Row():
        with gr.Column(scale=3, min_width=280) as main:
            rank = build_count("Rank k", "How many singular values are kept.", MAP_TOKENS, 8)
        with gr.Column(scale=2, min_width=280):
            beside = gr.Column()
            kind = gr.Radio([SYNTHETIC, REAL], value=SYNTHETIC, label="Map", info="From a formula, or from a model.")
            decay = gr.Slider(
                0.02,
                1,
                0.1,
                step=0.02,
                label="Decay",
                info="Singular value i is exp(−decay · i). Slow decay: narrow attention, high rank.",
            )
            with gr.Column(visible=False) as real:
                text = build_text(EXAMPLE)
                layer, head = build_layer_and_head(store, chosen)
        controls = [kind, rank, decay, chosen, text, layer, head]
        show = partial(show_rank, store)
        picture, points = show(*values(controls))
        with main:
            maps = gr.HTML(picture, elem_id="rank")
        with beside:
            colors = {ERROR: LINFORMER_COLOR, ENERGY: DENSE_COLOR, CHOSEN: CHOSEN_COLOR}
            curves = build_lines(points, colors, "rank_curves", y_lim=[0, 1], y_axis_format=".0%")
        connect(show, controls, [maps, curves])
    kind.change(
        lambda kind: (gr.Slider(visible=kind == SYNTHETIC), gr.Column(visible=kind == REAL)),
        kind,
        [decay, real],
        **LIVE,
    )
