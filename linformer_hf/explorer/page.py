"""The interactive page: how well low rank fits attention, what a Linformer costs, reads and answers.

Every handler is a function of what its visitor's controls say, so that visitors never see each other's state.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from transformers.utils import logging

from .checkpoints import UNTRAINED, describe, load_checkpoint
from .controls import gr
from .drawing import STYLE_SHEET
from .public_models import ALLOWED, MODEL_TYPES
from .space import write_space
from .store import CheckpointStore
from .tab_answers import build_answers
from .tab_cost import build_cost
from .tab_rank import build_rank
from .tab_slots import build_slots


logger = logging.get_logger(__name__)

QUICKSTART = Path("runs", "quickstart")
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
THEME = gr.themes.Base(
    primary_hue="teal",
    neutral_hue="gray",
    font=["system-ui", "sans-serif"],
    font_mono=["ui-monospace", "monospace"],
).set(block_info_text_color="*neutral_600", block_info_text_color_dark="*neutral_300")
INTRODUCTION = """# Linformer explorer

Self-attention compares every token with every token: n × n. A Linformer first compresses the n tokens into k slots,
and compares every token with every slot: n × k. This page shows when that loses little, and what it saves."""
LIMITS = """### Limits of a Linformer

- **Bounded length.** n is fixed when a model is made; longer inputs are refused until
  `resize_position_embeddings` changes n.
- **No autoregressive use.** Each slot mixes all positions, later ones too, so that a Linformer cannot generate text
  from left to right.
- **Errors where attention is not of low rank.** A map that needs more than k singular values is not rebuilt exactly
  (tab *Rank*). A converted model has to be trained to make up for it.
- **Little gain on short texts.** Below a few hundred tokens compressing costs about what it saves (tab *Cost*)."""
LOCAL_ACCESS = (
    "Choose a listed checkpoint, or write the name of a folder on this computer or of a repository on the Hub, as in "
    "owner/model. Weights must be in safetensors. No code of a checkpoint is run."
)
PUBLIC_ACCESS = (
    "Choose a listed checkpoint, or write the name of a repository on the Hub, as in owner/model. This server loads "
    f"{ALLOWED} (types: {', '.join(MODEL_TYPES)}), without an access token, with weights in safetensors only. No code "
    "of a checkpoint is run."
)


@dataclass
class ExplorerArguments:
    """Which checkpoints the page offers, and where the page is served or written."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "The checkpoint to start with. By default runs/quickstart, or a small untrained model."},
    )
    more_models: list[str] = field(
        default_factory=list,
        metadata={"help": "Further checkpoints that visitors may choose. All are loaded at the start and stay."},
    )
    host: str = field(
        default="127.0.0.1",
        metadata={
            "help": "Address to serve at; 0.0.0.0 is all of this machine's. At another address than the local one "
            "visitors load listed checkpoints and small public models of the Hub only."
        },
    )
    port: int = field(default=7860, metadata={"help": "Port to serve at."})
    public: bool = field(
        default=False,
        metadata={"help": "Apply the rules for strangers at the local address too, as behind a proxy server."},
    )
    space: str | None = field(
        default=None, metadata={"help": "Write the page into this new folder, ready to be a Space, and end."}
    )


def explore(arguments: ExplorerArguments) -> None:
    """Serve the page until it is stopped, or write it as a Space.

    Args:
        arguments: Checkpoints, and where the page goes.

    Raises:
        ValueError: If a checkpoint does not load, the port does not exist, or the Space's folder is not empty.
    """
    names = [arguments.model_name_or_path or default_name(), *arguments.more_models]
    if arguments.space is not None:
        for name in names:
            load_checkpoint(name)
        write_space(arguments.space, names)
        return
    if not 1 <= arguments.port <= 65535:
        raise ValueError(f"--port is {arguments.port}; it must lie between 1 and 65535.")
    serve_page(names, arguments.host, arguments.port, is_public=arguments.public)


def serve_page(
    model_names: Sequence[str] = (),
    host: str | None = None,
    port: int | None = None,
    share: bool = False,
    is_public: bool = False,
    **options: Any,
) -> gr.Blocks:
    """Build the page and serve it, without reporting its use to anyone.

    Visitors are taken for strangers unless the page is served at this machine's local address alone.

    Args:
        model_names: As in `build_page`.
        host: Address to serve at. None is the environment's, as a Space sets it, or this machine alone.
        port: Port to serve at. None is the first free one from 7860.
        share: Whether Gradio gives the page a public address.
        is_public: Whether to take visitors for strangers at the local address too, as behind a proxy server.
        **options: More of what `gradio.Blocks.launch` takes.

    Returns:
        The page.

    Raises:
        ValueError: If a listed checkpoint does not load.
    """
    page = build_page(model_names, is_public=is_public or not is_local(host, share))
    if port is not None:
        logger.info(f"The page is at http://{host or 'localhost'}:{port}; Ctrl+C ends it.")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    page.launch(
        server_name=host,
        server_port=port,
        share=share,
        theme=THEME,
        css=STYLE_SHEET,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        quiet=port is not None,  # where it looks for a free port, Gradio alone knows which it found
        max_file_size="1mb",
        **options,
    )
    return page


def is_local(host: str | None, share: bool) -> bool:
    """Tell whether only this machine reaches a page: not by an address of the network, a Space, or a shared link."""
    host = host or os.environ.get("GRADIO_SERVER_NAME") or LOCAL_HOSTS[0]
    return host in LOCAL_HOSTS and not share and "SPACE_ID" not in os.environ


def build_page(model_names: Sequence[str] = (), is_public: bool = True) -> gr.Blocks:
    """Build the page.

    Args:
        model_names: The checkpoints that it lists, folders or repositories of the Hub, the first one shown at the
            start. An empty list takes the quickstart's where it is there, or a small untrained model.
        is_public: Whether visitors may be strangers, who load nothing else but small public models of the Hub. False
            lets them load any folder, and use the token of whoever serves the page.

    Returns:
        The page, which `serve_page` builds and serves.

    Raises:
        ValueError: If a listed checkpoint does not load.
    """
    names = list(model_names) or [default_name()]
    store = CheckpointStore(names, is_public)
    shown = list(store.listed)
    with gr.Blocks(title="Linformer explorer", analytics_enabled=False) as page:
        gr.Markdown(INTRODUCTION)
        chosen = gr.State(shown[0])
        wanted = gr.Dropdown(
            shown,
            value=shown[0],
            label="Checkpoint",
            info=PUBLIC_ACCESS if is_public else LOCAL_ACCESS,
            allow_custom_value=True,
            elem_id="checkpoint",
        )
        status = gr.Markdown(describe(store.get(shown[0])), elem_id="status")

        wanted.input(
            partial(choose, store),
            [wanted, chosen],
            [wanted, chosen, status],
            show_progress="minimal",
            show_progress_on=status,
            api_visibility="private",
        )
        with gr.Tab("Rank"):
            build_rank(store, chosen)
        with gr.Tab("Cost"):
            build_cost()
        with gr.Tab("Slots"):
            build_slots(store, chosen)
        with gr.Tab("Try"):
            build_answers(store, chosen)
        gr.Markdown(LIMITS)
    return page


def choose(store: CheckpointStore, name: str | None, current: str) -> tuple[str, str, Any]:
    """Load a checkpoint, or tell the visitor why it does not load and stay with the current one.

    Returns:
        The name of the checkpoint that is shown from now on, twice, and what it is.
    """
    try:
        checkpoint = store.load((name or "").strip())
    except ValueError as error:
        gr.Warning(escape(f"{error} The page stays with {current}."))
        return current, current, gr.skip()
    return checkpoint.name, checkpoint.name, describe(checkpoint)


def default_name() -> str:
    """Return the quickstart's folder where it holds a model, or `UNTRAINED`."""
    return str(QUICKSTART) if (QUICKSTART / "config.json").is_file() else UNTRAINED
