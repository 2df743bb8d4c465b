"""Whether low rank holds for a model and a text: the spectrum of its attention maps, and the k to take."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..common.files import check_own_folder, write_json
from ..common.loading import LoadingArguments, check_length, check_tokenizer, load_config, load_whole
from ..common.measurement import Stopwatch
from ..common.options import check_counts
from ..common.records import check_record, model_facts, write_results
from ..data.blocks import iterate_blocks, iterate_lines
from ..data.texts import TextArguments, load_texts
from ..data.tokenizers import read_tokenizer
from .accumulation import sum_over_texts
from .figures import plot_spectrum
from .summary import MEANINGS, compare_halves, recommendation, record_numbers, summarize, table


logger = logging.get_logger(__name__)

FILE_NAME = "spectrum.json"
STATE = "spectrum_state.safetensors"
LONGEST = 512  # tokens of a text by default: the paper's n


@dataclass
class SpectrumArguments(TextArguments, LoadingArguments):
    """The model, the text, and how much of it is read."""

    model_name_or_path: str = field(kw_only=True, metadata={"help": "An encoder: dense, or a Linformer."})
    output_dir: str = field(
        kw_only=True,
        metadata={"help": "Folder for numbers and figure; a command that was stopped continues when it is repeated."},
    )
    dense_name_or_path: str | None = field(
        default=None,
        metadata={"help": "The dense model that a Linformer was converted from, to compare its maps with."},
    )
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Length of a text in tokens. By default 512, or all that the model reads."}
    )
    line_by_line: bool = field(
        default=False, metadata={"help": "Take each document as it is, instead of packing texts of equal length."}
    )
    max_texts: int = field(default=100, metadata={"help": "Number of texts to read, the first ones."})
    batch_size: int = field(default=4, metadata={"help": "Number of texts that are read together."})
    projected_length: int | None = field(
        default=None, metadata={"help": "The k of figure and table. By default a quarter of the length."}
    )
    energy: float = field(default=0.95, metadata={"help": "Share of the energy that the recommended k keeps."})
    save_steps: int = field(default=10, metadata={"help": "Number of batches from one save to the next."})


def analyze_spectrum(arguments: SpectrumArguments) -> dict[str, Any]:
    """Decompose the attention maps of a model on many texts, and say which k keeps most of them.

    The output folder receives `spectrum.json`, the figure as PNG and SVG, and the record `results.json`.

    Args:
        arguments: Model, text and output folder.

    Returns:
        The content of `spectrum.json`.

    Raises:
        ValueError: If arguments contradict each other, text and models do not fit, or the output folder holds
            something else.
    """
    watch = Stopwatch()
    counts = ("max_texts", "batch_size", "save_steps", "projected_length")
    check_counts({name: getattr(arguments, name) for name in counts})
    if not 0 < arguments.energy <= 1:
        raise ValueError(f"--energy is {arguments.energy}; it must be above 0 and at most 1.")
    folder = check_own_folder(arguments.output_dir, lambda names: STATE in names)
    check_record(folder)
    documents = read_documents(arguments)
    model, tokenizer = load_model(arguments.model_name_or_path, **arguments.loading())
    dense = None
    if arguments.dense_name_or_path is not None:
        dense = load_encoder(arguments.dense_name_or_path, trust_remote_code=arguments.trust_remote_code)
        check_tokenizer(tokenizer, dense, arguments.dense_name_or_path)
        check_pair(model, dense)
    longest = text_length(arguments.max_seq_length, model, dense)
    texts = cut_texts(documents, tokenizer, longest, arguments.line_by_line, arguments.max_texts)
    num_ranks = count_ranks(model, len(texts[0]))
    rank = arguments.projected_length or -(-num_ranks // 4)
    if rank > num_ranks:
        raise ValueError(f"--projected_length is {rank}; these maps have at most {num_ranks} singular values.")

    sums = sum_over_texts(
        model,
        dense,
        texts,
        pad_token_id=tokenizer.pad_token_id or 0,
        num_ranks=num_ranks,
        batch_size=arguments.batch_size,
        file=folder / STATE,
        save_steps=arguments.save_steps,
    )
    spectrum = {
        "model": arguments.model_name_or_path,
        "dense_model": arguments.dense_name_or_path,
        "num_texts": len(texts),
        "longest_text": len(texts[0]),
        "rank": rank,
        **summarize({name: total / len(texts) for name, total in sums.items()}, rank, arguments.energy),
        "meanings": MEANINGS,
    }
    write_json(folder / FILE_NAME, spectrum)
    plot_spectrum(spectrum, folder / "spectrum")
    write_results(folder, record_numbers(spectrum) | watch.read(), (arguments,), {"model": model_facts(model)})
    report = [
        table(spectrum),
        recommendation(arguments.energy, spectrum["longest_text"], spectrum["projected_length"]),
        compare_halves("0.95", spectrum["ranks"]["0.95"]),
        f"The figure and all numbers are in {folder}.",
    ]
    logger.info("\n".join(line for line in report if line))
    return spectrum


def load_model(name: str, **loading: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load an encoder with its tokenizer.

    Raises:
        ValueError: If the two do not fit, the weights are damaged or incomplete, or there is no tokenizer.
    """
    model = load_encoder(name, **loading)
    tokenizer = read_tokenizer(name, loading)
    check_tokenizer(tokenizer, model, name)
    return model, tokenizer


def load_encoder(name: str, **loading: Any) -> PreTrainedModel:
    """Load an encoder so that it returns its attention maps, in float32, on the GPU where there is one.

    Raises:
        ValueError: If its weights are damaged or incomplete.
    """
    load_config(name, **loading)  # its error names a model that is not to be had
    model, _ = load_whole(AutoModel, name, attn_implementation="eager", dtype=torch.float32, **loading)
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    return encoder.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def check_pair(model: PreTrainedModel, dense: PreTrainedModel) -> None:
    """Check that a Linformer is compared with a dense model of the same shape.

    Raises:
        ValueError: If the first is no Linformer, the second is one, or layers and heads differ.
    """
    shapes = [(each.config.num_hidden_layers, each.config.num_attention_heads) for each in (model, dense)]
    kinds = [each.config.model_type for each in (model, dense)]
    if kinds[0] != "linformer" or kinds[1] == "linformer" or shapes[0] != shapes[1]:
        raise ValueError(
            f"--dense_name_or_path is a {kinds[1]} of (layers, heads) {shapes[1]}, and the model a {kinds[0]} of "
            f"{shapes[0]}; compare a Linformer with the dense model of the same shape that it was converted from."
        )


def text_length(requested: int | None, *models: PreTrainedModel | None) -> int:
    """Return the longest text in tokens: the requested length, or 512, or less where a model reads less.

    Raises:
        ValueError: If a model reads less than the requested length.
    """
    # a model without position embeddings reads any length; in the configuration of XLNet that is -1
    limited = [model for model in models if model and getattr(model.config, "max_position_embeddings", -1) > 0]
    return min([check_length(requested, model) for model in limited] + [requested or LONGEST])


def read_documents(source: TextArguments) -> Iterable[str]:
    """Return the documents; nothing is trained, so none of them are held out."""
    return (row["text"] for row in load_texts(source, seed=0, splits=("train",))["train"])


def cut_texts(
    documents: Iterable[str], tokenizer: PreTrainedTokenizerBase, longest: int, line_by_line: bool, max_texts: int
) -> list[list[int]]:
    """Return the first texts as token ids, sorted from long to short, so that batches hold equal lengths.

    Args:
        documents: To cut.
        tokenizer: The tokenizer.
        longest: Tokens of a text.
        line_by_line: Take each document as it is, cut to this length, instead of packing them.
        max_texts: Number of texts.

    Raises:
        ValueError: If there is less text than one block.
    """
    iterate = iterate_lines if line_by_line else iterate_blocks
    rows = [row["input_ids"] for row in islice(iterate(documents, tokenizer, longest), max_texts)]
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
