"""Whether low rank holds for a model and a text: the spectrum of its attention maps, and the k that it asks for."""

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..common.figures import plot_spectrum
from ..common.loading import LoadingArguments, check_length, check_tokenizer
from ..common.records import Stopwatch, model_facts, write_json, write_results
from ..data.blocks import cut_lines, pack_blocks
from ..data.texts import TextArguments, load_texts
from .singular_values import (
    attention_maps,
    cumulative_values,
    effective_rank,
    kept_energy,
    pad_ranks,
    rank_k_error,
    ranks_keeping,
    recommend,
    relative_distance,
    singular_values,
    token_maps,
)


logger = logging.get_logger(__name__)

FILE_NAME = "spectrum.json"
STATE = "spectrum_state.safetensors"
LONGEST = 512  # tokens of a text where nothing is said: the paper's n
SHARES = (0.9, 0.95, 0.99)
DIGITS = 4
Sums = dict[str, torch.Tensor]  # over texts, each (L, H) or (L, H, R)

MEANINGS = {
    "cumulative": "share of the sum of singular values in the first k of them, mean over texts, of which k keeps a "
    "shorter one whole: (layers, heads, k)",
    "energy": "the same of their squares",
    "error": "Frobenius norm of what the best map of rank `rank` misses, over that of the map: (layers, heads)",
    "effective_rank": "exponential of the entropy of normalised singular values: (layers, heads)",
    "ranks": "smallest k at which a layer's energy, in the mean over heads, reaches a share: (layers,) for each share",
    "distance": "Frobenius norm of the Linformer's map between tokens minus the dense one's, over the latter's, each "
    "model reading its own hidden states: (layers, heads)",
    "least_distance": "what a map of rank k can reach at best, k being the layer's own",
}


@dataclass
class SpectrumArguments(TextArguments, LoadingArguments):
    """Which model is looked at, on which text, and how closely."""

    model_name_or_path: str = field(kw_only=True, metadata={"help": "An encoder: dense, or a Linformer."})
    output_dir: str = field(
        kw_only=True, metadata={"help": "Where numbers and figure go; the same command goes on where it was stopped."}
    )
    dense_name_or_path: str | None = field(
        default=None, metadata={"help": "The dense model that a Linformer came from, to compare its maps with."}
    )
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Length of a text in tokens. By default 512, or all that the model reads."}
    )
    line_by_line: bool = field(
        default=False, metadata={"help": "Take each document as it is, instead of packing texts of equal length."}
    )
    max_texts: int = field(default=100, metadata={"help": "Look at this many texts, the first ones."})
    batch_size: int = field(default=4, metadata={"help": "Texts that are read together."})
    projected_length: int | None = field(
        default=None, metadata={"help": "The k of figure and table. By default a quarter of the length."}
    )
    share: float = field(default=0.95, metadata={"help": "Share of the energy that the recommended k keeps."})
    save_steps: int = field(default=10, metadata={"help": "Save what was summed up each so many batches."})


def analyze_spectrum(arguments: SpectrumArguments) -> dict[str, Any]:
    """Decompose a model's attention maps on many texts, and say which k keeps most of them.

    Into the output folder go `spectrum.json`, the figure as PNG and SVG, and the record `results.json`.

    Args:
        arguments: Model, text and output folder.

    Returns:
        What `spectrum.json` holds.

    Raises:
        ValueError: If arguments contradict each other, text and models do not fit, or the output folder holds
            something else.
    """
    watch = Stopwatch()
    check_arguments(arguments)
    model, dense, tokenizer = load_models(arguments)
    longest = text_length(arguments.max_seq_length, model, dense)
    texts = read_texts(arguments, tokenizer, longest)
    num_ranks = count_ranks(model, len(texts[0]))
    rank = arguments.projected_length or -(-num_ranks // 4)
    if rank > num_ranks:
        raise ValueError(f"--projected_length is {rank}; these maps have at most {num_ranks} singular values.")

    sums = sum_over_texts(arguments, model, dense, texts, tokenizer.pad_token_id or 0, num_ranks)
    spectrum = {
        "model": arguments.model_name_or_path,
        "dense_model": arguments.dense_name_or_path,
        "num_texts": len(texts),
        "longest_text": len(texts[0]),
        "rank": rank,
        **summarize({name: total / len(texts) for name, total in sums.items()}, rank, arguments.share),
        "meanings": MEANINGS,
    }
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE_NAME, spectrum)
    plot_spectrum(spectrum, folder / "spectrum")
    write_results(folder, numbers(spectrum) | watch.read(), (arguments,), {"model": model_facts(model)})
    logger.info(f"{table(spectrum)}\n{sentence(spectrum)}\nThe figure and all numbers lie in {folder}.")
    return spectrum


def check_arguments(arguments: SpectrumArguments) -> None:
    """Check what can be checked before anything is loaded.

    Raises:
        ValueError: At the first argument that is out of range, or if the output folder holds something else.
    """
    for name in ("max_texts", "batch_size", "save_steps", "projected_length"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} is {value}; it must be at least 1.")
    if not 0 < arguments.share <= 1:
        raise ValueError(f"--share is {arguments.share}; it must be above 0 and at most 1.")
    folder = Path(arguments.output_dir)
    names = {path.name for path in folder.iterdir() if path.suffix != ".part"} if folder.is_dir() else set()
    if names and STATE not in names:
        raise ValueError(f"{folder} holds something else; name a new --output_dir.")


def load_models(
    arguments: SpectrumArguments,
) -> tuple[PreTrainedModel, PreTrainedModel | None, PreTrainedTokenizerBase]:
    """Load the model, the dense one it is compared with, and the tokenizer.

    Raises:
        ValueError: If the two cannot be compared, or the tokenizer does not fit.
    """
    model = load_encoder(arguments.model_name_or_path, **arguments.loading())
    tokenizer = AutoTokenizer.from_pretrained(arguments.model_name_or_path, **arguments.loading())
    check_tokenizer(tokenizer, model, arguments.model_name_or_path)
    if arguments.dense_name_or_path is None:
        return model, None, tokenizer
    dense = load_encoder(arguments.dense_name_or_path, trust_remote_code=arguments.trust_remote_code)
    check_tokenizer(tokenizer, dense, arguments.dense_name_or_path)
    shapes = [(each.config.num_hidden_layers, each.config.num_attention_heads) for each in (model, dense)]
    kinds = [each.config.model_type for each in (model, dense)]
    if kinds[0] != "linformer" or kinds[1] == "linformer" or shapes[0] != shapes[1]:
        raise ValueError(
            f"--dense_name_or_path is a {kinds[1]} of (layers, heads) {shapes[1]}, and the model a {kinds[0]} of "
            f"{shapes[0]}; compare a Linformer with the dense model of the same shape that it came from."
        )
    return model, dense, tokenizer


def load_encoder(name: str, **loading: Any) -> PreTrainedModel:
    """Load an encoder so that it returns its attention maps, in float32, on the GPU where there is one."""
    model = AutoModel.from_pretrained(name, attn_implementation="eager", dtype=torch.float32, **loading)
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    return encoder.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def text_length(asked: int | None, *models: PreTrainedModel | None) -> int:
    """Return the longest text in tokens: what is asked for, or 512, or less where a model reads less.

    Raises:
        ValueError: If a model reads less than what is asked for.
    """
    # a model without a table of positions reads any length, and XLNet says so by -1
    bounded = [model for model in models if model and getattr(model.config, "max_position_embeddings", -1) > 0]
    return min([check_length(asked, model) for model in bounded] + [asked or LONGEST])


def read_texts(arguments: SpectrumArguments, tokenizer: PreTrainedTokenizerBase, longest: int) -> list[list[int]]:
    """Read the first texts as token ids, and sort them from long to short, so that batches hold equal lengths.

    Raises:
        ValueError: If there is less text than one block.
    """
    # nothing is trained here, so nothing needs to be held out
    texts = load_texts(replace(arguments, validation_file=arguments.validation_file or arguments.train_file), seed=0)
    documents = texts["train"]
    if hasattr(documents, "to_iterable_dataset"):
        documents = documents.to_iterable_dataset()  # tokenizes no more than is read
    make = cut_lines if arguments.line_by_line else pack_blocks
    examples = documents.map(make(tokenizer, longest), batched=True, remove_columns=["text"])
    rows = [row["input_ids"] for row in islice(examples, arguments.max_texts)]
    if not rows:
        raise ValueError(
            f"The text is shorter than one block of {longest} tokens: give more text, a smaller --max_seq_length, or "
            "--line_by_line."
        )
    return sorted(rows, key=len, reverse=True)


def count_ranks(model: PreTrainedModel, longest: int) -> int:
    """Return how many singular values a map can have: the tokens of a text, or the slots of a Linformer."""
    is_linformer = model.config.model_type == "linformer"
    return min(longest, max(model.config.projected_lengths)) if is_linformer else longest


def sum_over_texts(
    arguments: SpectrumArguments,
    model: PreTrainedModel,
    dense: PreTrainedModel | None,
    texts: list[list[int]],
    pad_token_id: int,
    num_ranks: int,
) -> Sums:
    """Sum what is measured over all texts, going on from a saved state where there is one.

    Raises:
        ValueError: If the state belongs to another run.
    """
    file = Path(arguments.output_dir, STATE)
    run = fingerprint(model, dense, texts)
    sums, done = load_state(file, run) if file.is_file() else ({}, 0)
    steps = range(done, len(texts), arguments.batch_size)
    with logging.tqdm(total=len(texts), initial=done, desc="Decomposing", unit="text") as bar:
        for step, start in enumerate(steps, start=1):
            batch = texts[start : start + arguments.batch_size]
            for name, total in measure(model, dense, batch, pad_token_id, num_ranks).items():
                sums[name] = sums[name] + total if name in sums else total
            bar.update(len(batch))
            if step % arguments.save_steps == 0 or step == len(steps):
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
    layers = [measure_layer(pad_ranks(singular_values(layer, mask), num_ranks)) for layer in maps]
    if dense is not None:
        references = attention_maps(dense, input_ids, mask)
        for found, slots, own, reference in zip(layers, maps, token_maps(model, maps, mask), references):
            found["distance"] = relative_distance(own, reference, mask)
            best = rank_k_error(singular_values(reference, mask))
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
    """Return what a saved state must agree with: a checksum of weights and texts."""
    found = zlib.crc32(json.dumps(texts).encode())
    for encoder in filter(None, (model, dense)):
        for weight in encoder.parameters():
            found = zlib.crc32(weight.detach().cpu().flatten().numpy(), found)
    return f"{found:08x}"


def save_state(file: Path, run: str, sums: Sums, done: int) -> None:
    """Save the sums over the texts done so far; a run that is killed meanwhile leaves the state before."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".part")
    save_file(sums, unfinished, metadata={"run": run, "texts": str(done)})
    os.replace(unfinished, file)


def load_state(file: Path, run: str) -> tuple[Sums, int]:
    """Load the sums, and the number of texts in them.

    Raises:
        ValueError: If another model or text made them.
    """
    with safe_open(file, framework="pt") as state:
        metadata = state.metadata()
        if metadata["run"] != run:
            raise ValueError(f"{file.parent} holds the state of another model or text; name a new --output_dir.")
        names = state.keys()
        sums = {name: state.get_tensor(name) for name in names}
    logger.info(f"Going on after the {metadata['texts']} texts that {file} holds.")
    return sums, int(metadata["texts"])


def summarize(means: Sums, rank: int, share: float) -> dict[str, Any]:
    """Turn means over texts into what the record holds: lists, and the k that keeps a share of the energy."""
    energy = means["energy"]
    means = means | {"error": means["error"][..., rank - 1]}
    return {
        **{name: rounded(mean.tolist()) for name, mean in means.items()},
        "ranks": {f"{part:g}": ranks_keeping(energy.mean(1), part).tolist() for part in SHARES},
        "share": share,
        "projected_length": recommend(energy, share),
    }


def rounded(numbers: Any) -> Any:
    """Round nested lists of numbers to what a figure can show."""
    return [rounded(number) for number in numbers] if isinstance(numbers, list) else round(numbers, DIGITS)


def at_rank(spectrum: Mapping[str, Any], name: str) -> list[float]:
    """Return a curve's value at the k of the table for each layer, the mean over heads."""
    return [sum(head[spectrum["rank"] - 1] for head in layer) / len(layer) for layer in spectrum[name]]


def over_heads(spectrum: Mapping[str, Any], name: str) -> list[float]:
    """Return the mean over heads for each layer."""
    return [sum(layer) / len(layer) for layer in spectrum[name]]


def numbers(spectrum: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of the record, one a layer where they are a list."""
    by_head = [name for name in ("error", "effective_rank", "distance", "least_distance") if name in spectrum]
    return {
        "rank": spectrum["rank"],
        "num_texts": spectrum["num_texts"],
        **{f"{name}_at_rank": at_rank(spectrum, name) for name in ("cumulative", "energy")},
        **{name: over_heads(spectrum, name) for name in by_head},
        "share": spectrum["share"],
        "projected_length": spectrum["projected_length"],
    }


def table(spectrum: Mapping[str, Any]) -> str:
    """Lay out a row for each layer: shares and error at k, and the k of each share."""
    columns = {
        "cumulative": [f"{value:.3f}" for value in at_rank(spectrum, "cumulative")],
        "energy": [f"{value:.3f}" for value in at_rank(spectrum, "energy")],
        "error": [f"{value:.3f}" for value in over_heads(spectrum, "error")],
        "effective rank": [f"{value:.1f}" for value in over_heads(spectrum, "effective_rank")],
        **{
            f"k for {100 * float(share):g} %": [str(rank) for rank in ranks]
            for share, ranks in spectrum["ranks"].items()
        },
    }
    if "distance" in spectrum:
        columns["distance"] = [f"{value:.3f}" for value in over_heads(spectrum, "distance")]
        columns["at least"] = [f"{value:.3f}" for value in over_heads(spectrum, "least_distance")]
    rows = [("layer", *columns), *zip(map(str, range(1, len(spectrum["energy"]) + 1)), *columns.values())]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
    return "\n".join(
        [f"Means over heads and {spectrum['num_texts']} texts; shares and error at k = {spectrum['rank']}:", *lines]
    )


def sentence(spectrum: Mapping[str, Any]) -> str:
    """Recommend a k, ready for the configuration."""
    lengths = spectrum["projected_length"]
    return (
        f"To keep {100 * spectrum['share']:g} % of the energy of each layer's maps on texts of up to "
        f"{spectrum['longest_text']} tokens, take projected_length={max(lengths)}, or layer by layer "
        f"projected_length={lengths}."
    )
