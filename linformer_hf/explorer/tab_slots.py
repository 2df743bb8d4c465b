"""The tab of the slots: which positions each slot of a projection reads, and how much.

Letters: N tokens, K slots.
"""

from functools import partial

import gradio as gr
import torch

from ..modeling_linformer import LinformerModel
from .checkpoints import Checkpoint, tokenize
from .controls import (
    EXAMPLE,
    LIVE,
    at_least_two,
    build_count,
    build_layer_and_head,
    build_text,
    connect,
    noting_errors,
    values,
)
from .drawing import draw_table, lay_out
from .store import CheckpointStore


LISTED = 8  # tokens of one slot
SIDES = {"Keys, E": "keys", "Values, F": "values"}
ABOUT = """A Linformer compresses the tokens of a text into k slots. Each slot is a weighted sum of tokens, and the
weights belong to positions, not to words. Each row of the picture is a slot, each column a token; light is a large
weight of either sign."""


def slot_weights(checkpoint: Checkpoint, layer: int, head: int, side: str, num_tokens: int) -> torch.Tensor:
    """Return with which weight each slot reads each position.

    Args:
        checkpoint: A Linformer.
        layer: From 0.
        head: From 0; it matters with `projection_sharing="none"` only.
        side: `"keys"` for E, `"values"` for F.
        num_tokens: N.

    Returns:
        `(K, N)`. Of pooling and convolution, 1 for each token in the slot's window.

    Raises:
        ValueError: If the checkpoint has no slots.
    """
    if not checkpoint.is_linformer:
        raise ValueError(
            f"{checkpoint.name} is a {checkpoint.model.config.model_type}, which has no slots: each token attends to "
            "all tokens. Choose a Linformer."
        )
    body: LinformerModel = checkpoint.model.base_model
    attention = body.layers[layer].attention
    if body.config.projection_type != "linear":
        windows = torch.arange(num_tokens) // attention.window
        return (windows == torch.arange(attention.projected_length)[:, None]).float()
    shared_weight = None if body.projection is None else body.projection()
    weight = attention.projection_weights(shared_weight)[("keys", "values").index(side)]
    return (weight[head] if weight.dim() == 3 else weight)[:, :num_tokens].detach()


def strongest_tokens(weights: torch.Tensor, tokens: list[str]) -> dict[str, float]:
    """Return the tokens that a slot reads most, with their shares of the sum of its weights' sizes.

    Args:
        weights: Of the slot, `(N,)`.
        tokens: Their texts.

    Returns:
        Shares by position from 1, text and signed weight of the token, the largest first.
    """
    order = weights.abs().argsort(descending=True, stable=True)[:LISTED].tolist()
    total = weights.abs().sum().item()
    return {
        f"{position + 1} {tokens[position]} ({weights[position]:+.3f})": weights[position].abs().item() / total
        for position in order
        if weights[position] != 0
    }


@noting_errors(num_outputs=2)
def show_slots(
    store: CheckpointStore, name: str, text: str, slot: int, layer: int, head: int, side: str
) -> tuple[str, dict[str, float]]:
    """Draw which positions each slot reads, and list the tokens of one.

    Args:
        store: Where the checkpoint is.
        name: Of the checkpoint.
        text: Whose tokens are named.
        slot: From 1.
        layer: From 1.
        head: From 1.
        side: One of `SIDES`.

    Returns:
        The picture as HTML, and the tokens of the slot as from `strongest_tokens`.
    """
    checkpoint = store.get(name)
    read = tokenize(checkpoint.tokenizer, text)
    layer, head = (min(number, most) - 1 for number, most in zip((layer, head), checkpoint.shape))
    weights = slot_weights(checkpoint, layer, head, SIDES[side], len(read.tokens))
    slot = min(slot, len(weights))
    config = checkpoint.model.config
    caption = (
        f"{len(weights)} slots (rows) × {'first ' if read.is_cut else ''}{len(read.tokens)} tokens (columns); "
        f"projection type: {config.projection_type}, sharing: {config.projection_sharing}"
    )
    picture = lay_out(draw_table(weights.abs().numpy(), caption, read.tokens, slot - 1))
    return picture, strongest_tokens(weights[slot - 1], read.tokens)


def build_slots(store: CheckpointStore, chosen: gr.State) -> None:
    """Lay out the tab."""
    gr.Markdown(ABOUT)
    with gr.Row():
        with gr.Column(scale=3, min_width=280) as main:
            slot = build_count("Slot", "The tokens of this one are listed.", store.get(chosen.value).num_slots)
        with gr.Column(scale=2, min_width=280):
            beside = gr.Column()
            text = build_text(EXAMPLE)
            layer, head = build_layer_and_head(store, chosen)
            side = gr.Radio(list(SIDES), value=next(iter(SIDES)), label="Projection", info="What it compresses.")
        controls = [chosen, text, slot, layer, head, side]
        show = partial(show_slots, store)
        picture, tokens = show(*values(controls))
        with main:
            table = gr.HTML(picture, elem_id="slots")
        with beside:
            listed = gr.Label(
                tokens,
                num_top_classes=LISTED,
                label="Position, token (weight): share of the slot's weights",
                show_heading=False,
                elem_id="slot_tokens",
            )
        connect(show, controls, [table, listed])
    chosen.change(
        lambda name: gr.Slider(maximum=at_least_two(store.get(name).num_slots), value=1), chosen, slot, **LIVE
    )
