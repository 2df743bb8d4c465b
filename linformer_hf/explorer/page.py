"""The page to see a Linformer at work: rank, cost, slots, and answers.

It shows what `exhibits` and `checkpoints` compute.
Every handler is a function of what its visitor's controls say, so that visitors never see each other's state.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.utils import logging

from .models import (
    MOST_CHARACTERS,
    MOST_TOKENS,
    UNTRAINED,
    answer,
    attend,
    describe,
    load_checkpoint,
    slot_weights,
    strongest_tokens,
)
from .pictures import (
    STYLE_SHEET,
    draw_areas,
    draw_bars,
    draw_lines,
    draw_map,
    draw_table,
    lay_out,
    list_numbers,
    metric,
    noted,
)
from .space import write_space
from .views import synthetic_map, view_cost, view_rank


try:
    import gradio as gr
except ImportError as error:
    raise ImportError("The explorer needs gradio: pip install linformer_hf[explore]") from error


logger = logging.get_logger(__name__)

QUICKSTART = Path("runs", "quickstart")
MAP_TOKENS = 96  # of the synthetic map
EXAMPLE = "The file is closed when the object is deleted, and the method returns the number of bytes written."
MASKED_EXAMPLE = "This method returns the [MASK] of the object."
SYNTHETIC, REAL = "Synthetic map", "A head of the checkpoint"
KERNELS = {"Fused (SDPA)": "sdpa", "Plain, which keeps the maps": "eager"}
SIDES = {"Keys, E": "keys", "Values, F": "values"}
LENGTH_TICKS = {128: "128", 512: "512", 2048: "2k", 16384: "16k"}
MULTIPLY_TICKS = {1e10: "10 G", 1e11: "100 G", 1e12: "1 T", 1e13: "10 T"}
SHARE_TICKS = {0.0: "0", 0.5: "50 %", 1.0: "100 %"}
LIMITS = f"Up to {MOST_CHARACTERS:,} characters, of which the first {MOST_TOKENS} tokens are read."
LIVE = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
ONCE = {"show_progress": "minimal", "api_visibility": "private"}
THEME = gr.themes.Base(
    primary_hue="teal",
    neutral_hue="gray",
    font=["system-ui", "sans-serif"],
    font_mono=["ui-monospace", "monospace"],
).set(block_info_text_color="*neutral_600", block_info_text_color_dark="*neutral_300")
INTRODUCTION = """# Linformer explorer

Attention compares every token with every token: n × n. A Linformer compares every token with k slots: n × k. See
when that loses little, and what it saves."""


@dataclass
class ExplorerArguments:
    """Which checkpoint the page starts with, and where the page is served or written."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "A checkpoint to start with. By default runs/quickstart, or a small untrained model."},
    )
    host: str = field(default="127.0.0.1", metadata={"help": "Address to serve at; 0.0.0.0 is all of this machine's."})
    port: int = field(default=7860, metadata={"help": "Port to serve at."})
    space: str | None = field(
        default=None, metadata={"help": "Write the page into this new folder, ready to be a Space, and end."}
    )


def explore(arguments: ExplorerArguments) -> None:
    """Serve the page until it is stopped, or write it as a Space.

    Args:
        arguments: Checkpoint, and where the page goes.

    Raises:
        ValueError: If the checkpoint does not load, the port is none, or the Space's folder is not empty.
    """
    if arguments.space is not None:
        name = arguments.model_name_or_path or default_name()
        load_checkpoint(name)
        write_space(arguments.space, None if name == UNTRAINED else name)
        return
    if not 1 <= arguments.port <= 65535:
        raise ValueError(f"--port is {arguments.port}; it must lie between 1 and 65535.")
    logger.info(f"The page is at http://{arguments.host}:{arguments.port}; Ctrl+C ends it.")
    open_page(build_page(arguments.model_name_or_path), arguments.host, arguments.port)


def open_page(page: gr.Blocks, host: str | None = None, port: int | None = None, **options: Any) -> None:
    """Serve a page, without reporting its use to anyone.

    Args:
        page: As from `build_page`.
        host: Address to serve at. None is the environment's, as a Space sets it, or this machine alone.
        port: Port to serve at. None is the first free one from 7860.
        **options: More of what `gradio.Blocks.launch` takes.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    page.launch(
        server_name=host,
        server_port=port,
        theme=THEME,
        css=STYLE_SHEET,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        quiet=True,
        max_file_size="1mb",
        **options,
    )


def build_page(model_name: str | None = None) -> gr.Blocks:
    """Build the page.

    Args:
        model_name: The checkpoint that it starts with, a folder or a repository of the Hub. None takes the
            quickstart's where it is there, or a small untrained model.

    Returns:
        The page, to serve with `open_page`.

    Raises:
        ValueError: If the checkpoint does not load.
    """
    name = model_name or default_name()
    with gr.Blocks(title="Linformer explorer", analytics_enabled=False) as page:
        gr.Markdown(INTRODUCTION)
        chosen = gr.State(name)
        status = gr.Markdown(describe(name), elem_id="status")
        with gr.Accordion("Another checkpoint", open=False):
            wanted = gr.Textbox(
                label="Checkpoint",
                info="A repository of the Hub, or a folder: weights in safetensors, and none of its code is run.",
                placeholder="you/my-linformer",
                submit_btn="Load",
            )
        wanted.submit(choose, wanted, [chosen, status], **ONCE)
        with gr.Tab("Rank"):
            build_rank(name, chosen)
        with gr.Tab("Cost"):
            build_cost()
        with gr.Tab("Slots"):
            build_slots(name, chosen)
        with gr.Tab("Try"):
            build_try(chosen)
    return page


def default_name() -> str:
    """Return the quickstart's folder where it holds a model, or `UNTRAINED`."""
    return str(QUICKSTART) if (QUICKSTART / "config.json").is_file() else UNTRAINED


def choose(name: str) -> tuple[str, str]:
    """Load a checkpoint; return its name and what it is, or tell the visitor why not."""
    try:
        return name.strip(), describe(name.strip())
    except ValueError as error:
        raise gr.Error(str(error), title="The checkpoint stays", print_exception=False) from error


def build_rank(name: str, chosen: gr.State) -> None:
    """Lay out the tab of the rank."""
    gr.Markdown(
        "An attention map is of low rank when few singular values hold most of its energy. Drag k and watch the best "
        "copy of rank k come close."
    )
    with gr.Row():
        with gr.Column(min_width=280):
            rank = build_count("Rank k", "Singular values that the copy keeps.", MAP_TOKENS, 8)
            kind = gr.Radio([SYNTHETIC, REAL], value=SYNTHETIC, label="Map", info="Made by a formula, or by a model.")
            decay = gr.Slider(
                0.02,
                1,
                0.1,
                step=0.02,
                label="Decay",
                info="Singular value i is exp(−decay · i), from i = 0. Slow decay: narrow attention, high rank.",
            )
            with gr.Column(visible=False) as real:
                text = build_text(EXAMPLE)
                layer, head = build_layer_and_head(name, chosen)
        with gr.Column(scale=2, min_width=280):
            build_picture(show_rank, [kind, rank, decay, chosen, text, layer, head], "rank")
    kind.change(
        lambda kind: (gr.Slider(visible=kind == SYNTHETIC), gr.Column(visible=kind == REAL)),
        kind,
        [decay, real],
        **LIVE,
    )


def build_picture(show: Callable[..., str], controls: list[gr.components.Component], name: str) -> None:
    """Lay out a picture that follows its controls: a text when it is submitted, others while they move."""
    picture = gr.HTML(show(*(control.value for control in controls)), elem_id=name)
    changes = [control.submit if isinstance(control, gr.Textbox) else control.change for control in controls]
    gr.on(changes, show, controls, picture, **LIVE)


def build_count(label: str, info: str, most: int, value: int = 1, step: int = 1) -> gr.Slider:
    """Lay out a slider over whole numbers, in steps from the first."""
    return gr.Slider(step, most, value, step=step, precision=0, label=label, info=info)


def build_text(example: str, info: str = LIMITS, button: str = "Read") -> gr.Textbox:
    """Lay out a box for a text, with a button that hands it in."""
    return gr.Textbox(example, label="Text", info=info, max_lines=6, submit_btn=button)


def build_layer_and_head(name: str, chosen: gr.State) -> tuple[gr.Slider, gr.Slider]:
    """Lay out the choice of a layer and a head, which follows the checkpoint."""
    layers, heads = load_checkpoint(name).shape
    layer = build_count("Layer", "From the input, 1, to the output.", layers)
    head = build_count("Head", "Each head attends in its own way.", heads)
    chosen.change(
        lambda name: [gr.Slider(maximum=most, value=1) for most in load_checkpoint(name).shape],
        chosen,
        [layer, head],
        **LIVE,
    )
    return layer, head


@noted
def show_rank(kind: str, rank: int, decay: float, name: str, text: str, layer: int, head: int) -> str:
    """Draw a map beside its copy of rank k, and how much of the energy it keeps."""
    if kind == SYNTHETIC:
        original, about = synthetic_map(decay, MAP_TOKENS), f"{MAP_TOKENS} tokens"
    else:
        attended = attend(name, text)
        heads = attended.maps[min(layer, len(attended.maps)) - 1]
        original = heads[min(head, len(heads)) - 1]
        columns = "slots" if load_checkpoint(name).is_linformer else "tokens"
        cut = ", where the text was cut" if attended.is_cut else ""
        about = f"{original.shape[0]} tokens{cut}, downwards; {original.shape[1]} {columns}, to the right"
    view = view_rank(original, rank)
    largest, num_ranks = view.original.max().item(), len(view.values)
    shares = (view.values / view.values[0]).tolist()
    energy = [(0, 0.0), *enumerate(view.energy.tolist(), start=1)]
    chart = draw_lines(
        {"kept energy": energy, "singular value, of the first": list(enumerate(shares, start=1))},
        {0: "0", num_ranks // 2: str(num_ranks // 2), num_ranks: str(num_ranks)},
        SHARE_TICKS,
        "rank k",
        view.rank,
    )
    numbers = {
        "k": f"{view.rank} of {num_ranks}",
        "Kept energy": f"{100 * view.energy[view.rank - 1]:.2f} %",
        "Frobenius error": f"{view.distance:.4f}",
        "Relative error": f"{100 * view.error:.2f} %",
        "Effective rank": f"{view.effective_rank:.1f}",
    }
    return lay_out(
        draw_map(view.original.numpy(), f"The map: {about}", largest),
        draw_map(view.copy.numpy(), f"Its best copy of rank {view.rank}", largest),
        list_numbers(numbers),
        chart,
    )


def build_cost() -> None:
    """Lay out the tab of the cost."""
    gr.Markdown(
        "The area of the square is what attention computes, the strip what a Linformer does, to one scale. Numbers "
        "are of whole models of RoBERTa-base's size, 12 layers of width 768, counted and not measured."
    )
    with gr.Row():
        with gr.Column(min_width=280):
            length = build_count("Length n", "Tokens of a text.", 16384, 2048, step=128)
            slots = build_count("Slots k", "What n is compressed to; at most n.", 1024, 128, step=16)
            kernel = gr.Radio(
                list(KERNELS),
                value=next(iter(KERNELS)),
                label="Attention kernel",
                info="A fused kernel never stores the maps, a plain one keeps them for the backward pass.",
            )
        with gr.Column(scale=2, min_width=280):
            build_picture(show_cost, [length, slots, kernel], "cost")


@noted
def show_cost(num_tokens: int, num_slots: int, kernel: str) -> str:
    """Draw square and strip to scale, and count what whole models take."""
    num_slots = min(num_slots, num_tokens)
    view = view_cost(num_tokens, num_slots, KERNELS[kernel])
    linformer, dense = view.curves
    numbers = {
        "n, k": f"{num_tokens:,}, {num_slots:,}",
        "Predicted speed-up": f"{view.speedup:.2f} ×",
        "Multiplies, Linformer": metric(view.multiplies[0]),
        "Multiplies, dense": metric(view.multiplies[1]),
        "Kept bytes, Linformer": metric(view.kept_bytes[0], "B"),
        "Kept bytes, dense": metric(view.kept_bytes[1], "B"),
        "Fewer multiplies from": "a longer text on" if view.crossing is None else f"n = {view.crossing:,}",
    }
    chart = draw_lines(
        {"multiplies, Linformer": linformer, "multiplies, dense": dense},
        LENGTH_TICKS,
        MULTIPLY_TICKS,
        "tokens n",
        num_tokens,
        is_log=True,
    )
    return lay_out(draw_areas(num_tokens, num_slots), list_numbers(numbers), chart)


def build_slots(name: str, chosen: gr.State) -> None:
    """Lay out the tab of the slots."""
    gr.Markdown(
        "A slot is a blend of tokens, by weights that belong to their positions. Light is a large weight, of either "
        "sign."
    )
    with gr.Row():
        with gr.Column(min_width=280):
            slot = build_count("Slot", "The one whose tokens are listed.", load_checkpoint(name).num_slots)
            text = build_text(EXAMPLE)
            layer, head = build_layer_and_head(name, chosen)
            side = gr.Radio(list(SIDES), value=next(iter(SIDES)), label="Projection", info="What it compresses.")
        with gr.Column(scale=2, min_width=280):
            build_picture(show_slots, [chosen, text, slot, layer, head, side], "slots")
    chosen.change(lambda name: gr.Slider(maximum=load_checkpoint(name).num_slots, value=1), chosen, slot, **LIVE)


@noted
def show_slots(name: str, text: str, slot: int, layer: int, head: int, side: str) -> str:
    """Draw which positions each slot reads, and list the tokens of one."""
    attended, checkpoint = attend(name, text), load_checkpoint(name)
    layer, head = (min(number, most) - 1 for number, most in zip((layer, head), checkpoint.shape))
    weights = slot_weights(checkpoint, layer, head, SIDES[side], len(attended.tokens))
    slot = min(slot, len(weights))
    strongest = strongest_tokens(weights[slot - 1], attended.tokens)
    return lay_out(
        draw_table(
            weights.abs().numpy(),
            f"{len(weights)} slots downwards, {len(attended.tokens)} tokens to the right; projections are shared: "
            f"{checkpoint.model.config.projection_sharing}",
            attended.tokens,
            slot - 1,
        ),
        f"<p>Slot {slot} reads most:</p>",
        draw_bars(
            {f"{position + 1} {token}": abs(weight) for position, token, weight in strongest},
            [f"{weight:+.3f}" for _, _, weight in strongest],
        ),
    )


def build_try(chosen: gr.State) -> None:
    """Lay out the tab of the answers."""
    gr.Markdown("What the checkpoint's own head answers.")
    with gr.Row():
        with gr.Column(min_width=280):
            info = "With [MASK] for the word to guess, or any text where the checkpoint classifies."
            text = build_text(MASKED_EXAMPLE, info, "Ask")
        with gr.Column(scale=2, min_width=280):
            build_picture(show_answers, [chosen, text], "answers")


@noted
def show_answers(name: str, text: str) -> str:
    """Draw the likeliest answers."""
    answers = answer(load_checkpoint(name), text)
    if len(answers) == 1:
        return lay_out(list_numbers({label: f"{number:.4g}" for label, number in answers.items()}))
    return lay_out(draw_bars(answers, [f"{100 * share:.2f} %" for share in answers.values()]))
