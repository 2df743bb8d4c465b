"""The singular values of attention maps summed over many texts, saved on the way so that a run can be continued."""

import json
import zlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.utils import logging

from ..common.files import written_aside
from .maps import attention_maps, relative_distance, token_maps
from .singular_values import (
    cumulative_values,
    effective_rank,
    kept_energy,
    map_singular_values,
    pad_ranks,
    rank_k_error,
)


logger = logging.get_logger(__name__)

Sums = dict[str, torch.Tensor]  # over texts, each (L, H) or (L, H, R)


def sum_over_texts(
    model: PreTrainedModel,
    dense: PreTrainedModel | None,
    texts: list[list[int]],
    pad_token_id: int,
    num_ranks: int,
    batch_size: int,
    file: Path,
    save_steps: int,
) -> Sums:
    """Sum the measurements of all texts, continuing from a saved state where there is one.

    Args:
        model: The encoder.
        dense: The dense model that a Linformer is compared with.
        texts: Token ids of each text, from long to short.
        pad_token_id: The token that fills up shorter texts.
        num_ranks: R, the singular values that are kept of each map.
        batch_size: Texts that are read together.
        file: The saved state.
        save_steps: Batches from one save to the next.

    Raises:
        ValueError: If the state belongs to another run.
    """
    run = fingerprint(model, dense, texts)
    sums, done = load_state(file, run) if file.is_file() else ({}, 0)
    steps = range(done, len(texts), batch_size)
    with logging.tqdm(total=len(texts), initial=done, desc="Decomposing", unit="text") as bar:
        for step, start in enumerate(steps, start=1):
            batch = texts[start : start + batch_size]
            for name, total in measure(model, dense, batch, pad_token_id, num_ranks).items():
                sums[name] = sums[name] + total if name in sums else total
            bar.update(len(batch))
            if step % save_steps == 0 or step == len(steps):
                save_state(file, run, sums, start + len(batch))
    return sums


def measure(
    model: PreTrainedModel, dense: PreTrainedModel | None, texts: list[list[int]], pad_token_id: int, num_ranks: int
) -> Sums:
    """Measure the maps of one batch, summed over its texts in float64."""
    rows = [torch.tensor(text) for text in texts]
    input_ids = pad_sequence(rows, batch_first=True, padding_value=pad_token_id).to(model.device)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(model.device)
    maps = attention_maps(model, input_ids, mask)
    layers = [measure_layer(pad_ranks(map_singular_values(layer, mask), num_ranks)) for layer in maps]
    if dense is not None:
        references = attention_maps(dense, input_ids, mask)
        for found, slots, own, reference in zip(layers, maps, token_maps(model, maps, mask), references):
            found["distance"] = relative_distance(own, reference, mask)
            best = rank_k_error(map_singular_values(reference, mask))
            # a layer cannot come closer to the dense map than the best map of rank k, its number of slots
            found["least_distance"] = best[..., min(slots.shape[-1], best.shape[-1]) - 1]
    return {name: torch.stack([layer[name].double().sum(0).cpu() for layer in layers]) for name in layers[0]}


def measure_layer(values: torch.Tensor) -> dict[str, torch.Tensor]:
    """Measure singular values, `(B, H, R)`."""
    return {
        "cumulative": cumulative_values(values),
        "energy": kept_energy(values),
        "error": rank_k_error(values),
        "effective_rank": effective_rank(values),
    }


def fingerprint(model: PreTrainedModel, dense: PreTrainedModel | None, texts: list[list[int]]) -> str:
    """Return a checksum of weights and texts, by which a saved state belongs to its run."""
    found = zlib.crc32(json.dumps(texts).encode())
    for encoder in filter(None, (model, dense)):
        for name, weight in encoder.named_parameters():
            if name.startswith("pooler."):  # drawn at random where a checkpoint has none, and no part of a map
                continue
            found = zlib.crc32(weight.detach().cpu().flatten().numpy(), found)
    return f"{found:08x}"


def save_state(file: Path, run: str, sums: Sums, num_texts: int) -> None:
    """Save the sums over the texts so far; if the process is killed meanwhile, the state before stays."""
    with written_aside(file) as unfinished:
        save_file(sums, unfinished, metadata={"run": run, "texts": str(num_texts)})


def load_state(file: Path, run: str) -> tuple[Sums, int]:
    """Load the sums, and the number of texts in them.

    Raises:
        ValueError: If they are of another model or text, or the file is damaged.
    """
    try:
        with safe_open(file, framework="pt") as state:
            metadata = state.metadata() or {}
            names = state.keys()
            sums = {name: state.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged ({error}); remove it to start again.") from error
    if metadata.get("run") != run:
        raise ValueError(f"{file.parent} holds the state of another model or text; name a new --output_dir.")
    logger.info(f"Continuing after the {metadata['texts']} texts that {file} holds.")
    return sums, int(metadata["texts"])
