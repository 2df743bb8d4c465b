"""How close a Linformer is to the dense encoder it was converted from, and what each costs, at several lengths."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..common.files import write_text
from ..common.heads import MASKED_LM, head_of_checkpoint, head_of_class, shared_head
from ..common.loading import LoadingArguments, check_tokenizer, load_config, load_whole, model_length
from ..common.measurement import STEADY_SECONDS, Stopwatch, median_speedup, peak_tensor_bytes, seconds_in_turns
from ..common.options import check_counts, check_seed
from ..common.records import FILE_NAME, check_record_folder, model_facts, read_results, write_results
from ..data.blocks import iterate_blocks
from ..data.masking import MaskingCollator
from ..data.texts import TextArguments, load_texts
from ..data.tokenizers import read_tokenizer
from .companion_files import local_folder
from .comparison_page import PAGE, measures, page, summary_lines, table_lines
from .distances import FEWEST_EMBEDDINGS, similarity_correlation
from .embeddings import MEAN_EMBEDDING, TextEmbedding, read_embedding
from .families import check_parent
from .retrieval import compare_retrieval
from .windows import read, window_sizes


logger = logging.get_logger(__name__)

SMALLEST_LENGTH = 8
LENGTHS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
MASKED_SHARE = 0.15


@dataclass(kw_only=True)
class ComparisonArguments(TextArguments, LoadingArguments):
    """Options of a comparison."""

    dense_name_or_path: str = field(metadata={"help": "The dense encoder, on the Hub or in a folder."})
    dense_revision: str = field(
        default="main", metadata={"help": "Which branch, tag or commit of the dense encoder to load."}
    )
    model_name_or_path: str = field(metadata={"help": "The Linformer that was converted from it, with its tokenizer."})
    output_dir: str = field(
        metadata={"help": "A folder for the page and the record; new, or of a comparison of the same models."}
    )
    lengths: list[int] | None = field(
        default=None,
        metadata={"help": "Lengths to compare at, in tokens. By default 16, 64, 128, 256, 512, 1024, ... up to n."},
    )
    max_blocks: int = field(default=64, metadata={"help": "Compare on at most this many blocks of each length."})
    batch_size: int = field(default=8, metadata={"help": "Blocks of a batch, whose time is measured."})
    rounds: int = field(
        default=5, metadata={"help": "How often each model is timed, short texts more often; the median is reported."}
    )
    seed: int = field(default=42, metadata={"help": "Which tokens are masked, and which documents held out."})
    title: str | None = field(
        default=None, metadata={"help": "Title of the page. By default it names the two models."}
    )
    note: str = field(default="", metadata={"help": "What a reader must know; stands below the title."})


def compare_models(arguments: ComparisonArguments) -> dict[int, dict[str, float]]:
    """Compare two saved models. Log tables, and write a page with the table and its command, and a record.

    Returns:
        The numbers of each length, as from `compare`.

    Raises:
        ValueError: If models, text, lengths and folder do not fit.
    """
    folder = check_record_folder(arguments.output_dir, "dense_model")
    check_same_models(folder, arguments)
    check_numbers(arguments.lengths or (), arguments.max_blocks, arguments.batch_size, arguments.rounds)
    check_seed(arguments.seed)
    documents = read_documents(arguments)
    watch = Stopwatch()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = arguments.dense_name_or_path, arguments.model_name_or_path
    sources = {**arguments.loading(), "revision": arguments.dense_revision}, arguments.loading()
    configs = [load_config(name, **source) for name, source in zip(names, sources)]
    check_parent(configs[1], configs[0], names[1], names[0])
    head = shared_head(*(head_of_checkpoint(config.architectures) for config in configs))
    dense, linformer = (
        load_whole(head.auto_class, name, dtype=torch.float32, **source)[0].to(device)
        for name, source in zip(names, sources)
    )
    dense_embedding, embedding = (
        embedding_of(name, source["revision"], source["token"], device) for name, source in zip(names, sources)
    )
    lengths = arguments.lengths or default_lengths(model_length(linformer))
    numbers = compare(
        dense,
        linformer,
        read_tokenizer(arguments.model_name_or_path, arguments.loading()),
        documents,
        lengths=lengths,
        max_blocks=arguments.max_blocks,
        batch_size=arguments.batch_size,
        rounds=arguments.rounds,
        seed=arguments.seed,
        dense_embedding=dense_embedding,
        embedding=embedding,
    )
    for line in [*table_lines(numbers), "", *summary_lines(numbers)]:
        logger.info(line)
    longest = model_length(dense)
    if max(lengths) > longest:
        logger.info(f"The dense model reads {longest} tokens; it reads longer text in windows, which are averaged.")
    folder.mkdir(parents=True, exist_ok=True)
    flat = {f"{name}_{length}": value for length, found in numbers.items() for name, value in found.items()}
    about = {"dense_model": model_facts(dense), "model": model_facts(linformer)}
    write_results(folder, flat | watch.read(), (arguments,), about)
    title = arguments.title or " beside ".join(Path(name).resolve().name for name in reversed(names))
    write_text(folder / PAGE, page(read_results(folder), measures(numbers), title, arguments.note))
    return numbers


def check_same_models(folder: Path, arguments: ComparisonArguments) -> None:
    """Check that a folder which holds a comparison holds one of the same models.

    Raises:
        ValueError: If it holds one of others, whose numbers would be lost.
    """
    earlier = read_results(folder).get("arguments", {}) if (folder / FILE_NAME).is_file() else {}
    for name in ("dense_name_or_path", "model_name_or_path"):
        asked = getattr(arguments, name)
        if earlier.get(name, asked) != asked:
            raise ValueError(
                f"{folder} holds a comparison with --{name} {earlier[name]}, and this call asks for {asked}: name a "
                "new --output_dir."
            )


def check_numbers(lengths: Sequence[int], max_blocks: int, batch_size: int, rounds: int) -> None:
    """Check the numbers of a comparison as far as they depend on no model.

    Raises:
        ValueError: At the first that is too small.
    """
    check_counts({"batch_size": batch_size, "rounds": rounds})
    if max_blocks < FEWEST_EMBEDDINGS:
        raise ValueError(f"--max_blocks is {max_blocks}; a comparison takes {FEWEST_EMBEDDINGS}.")
    for length in lengths:
        if length < SMALLEST_LENGTH:
            raise ValueError(f"--lengths has {length}; it must be {SMALLEST_LENGTH} or more.")


def read_documents(arguments: ComparisonArguments) -> list[str]:
    """Return the held-out documents, or all of the held-out files where only those are named."""
    return list(load_texts(arguments, arguments.seed, splits=("validation",))["validation"]["text"])


def compare(
    dense: PreTrainedModel,
    linformer: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    lengths: Sequence[int] = (64, 256, 512),
    max_blocks: int = 64,
    batch_size: int = 8,
    rounds: int = 5,
    seed: int = 42,
    dense_embedding: TextEmbedding = MEAN_EMBEDDING,
    embedding: TextEmbedding = MEAN_EMBEDDING,
) -> dict[int, dict[str, float]]:
    """Compare the outputs of two models on the same blocks of text, and what each costs.

    A dense model that reads less than a block reads it in windows: its embedding and its logits of labels are the mean
    over windows, and a masked word is predicted in the window in which it stands.

    Args:
        dense: The dense encoder.
        linformer: The one to compare with it, with the same head or none, on the same device.
        tokenizer: The tokenizer of both.
        texts: Documents.
        lengths: Tokens of a block.
        max_blocks: Blocks of a length, at most, and pairs or texts for retrieval.
        batch_size: Blocks of a batch, whose time is measured.
        rounds: Timings of each model, in turns; short texts take up to ten times as many. The median is reported.
        seed: Which tokens are masked.
        dense_embedding: How the dense encoder embeds a text, as from `embeddings.read_embedding`.
        embedding: How the Linformer does.

    Returns:
        For each length by name: `blocks`, `dense_windows`; of the models' embeddings `embedding_cosine`, its 5th
        percentile `embedding_cosine_p5`, and `similarity_correlation` of the similarities between blocks; with heads
        for words, `top1_agreement` and `top5_agreement` on masked tokens, the share for which the dense model's word
        is the Linformer's first, or among its first five; with heads for labels, `label_agreement`; where documents
        are long enough, the numbers of `retrieval.compare_retrieval`; each model's `…_seconds` per batch,
        `…_tokens_per_second` and `…_peak_memory_bytes` beyond weights and input; and `speedup`, the median over
        rounds of how many times faster the Linformer was.

    Raises:
        ValueError: If a length is more than the Linformer reads or than the text fills, the tokenizer does not fit, or
            a number is no count.
    """
    check_numbers(lengths, max_blocks, batch_size, rounds)
    longest = model_length(linformer)
    for length in lengths:
        if length > longest:
            raise ValueError(f"--lengths has {length}; the Linformer reads {longest} tokens.")
    for model in (dense, linformer):
        check_tokenizer(tokenizer, model, model.config.model_type)
        model.eval()
    head = shared_head(*(head_of_class(type(model).__name__) for model in (dense, linformer)))
    embedders = {
        "dense": partial(embed, dense, batch_size=batch_size, embedding=dense_embedding),
        "linformer": partial(embed, linformer, batch_size=batch_size, embedding=embedding),
    }
    documents = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    numbers = {}
    for length in logging.tqdm(lengths, desc="Comparing", unit="length"):
        blocks = make_blocks(tokenizer, texts, length, max_blocks).to(dense.device)
        found = {"blocks": len(blocks), "dense_windows": len(window_sizes(length, model_length(dense)))}
        found |= compare_readings(dense, linformer, blocks.split(batch_size), (dense_embedding, embedding))
        if head == MASKED_LM:
            found |= compare_words(dense, linformer, mask_blocks(tokenizer, blocks, seed), batch_size)
        found |= compare_retrieval(tokenizer, documents, length, model_length(dense), max_blocks, embedders)
        numbers[length] = found | compare_cost(dense, linformer, blocks[:batch_size], rounds)
    return numbers


def default_lengths(longest: int) -> list[int]:
    """Return the lengths to compare at where none are named, up to the longest input of the Linformer."""
    return [*(length for length in LENGTHS if length < longest), longest]


def embedding_of(name: str, revision: str, token: str | None, device: torch.device | str) -> TextEmbedding:
    """Return how a model on the Hub or in a folder embeds a text; by the mean over tokens where it does not say."""
    folder = local_folder(name, revision, token)
    return MEAN_EMBEDDING if folder is None else read_embedding(folder, device)


def make_blocks(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int, most: int) -> torch.Tensor:
    """Pack documents into blocks of token ids, `(blocks, length)`.

    Raises:
        ValueError: If the text fills fewer than three.
    """
    blocks = [block["input_ids"] for block in islice(iterate_blocks(texts, tokenizer, length), most)]
    if len(blocks) < FEWEST_EMBEDDINGS:
        raise ValueError(
            f"The text fills {len(blocks)} blocks of {length} tokens, but a comparison takes {FEWEST_EMBEDDINGS}: "
            "give more text, or smaller --lengths."
        )
    return torch.tensor(blocks)


def mask_blocks(tokenizer: PreTrainedTokenizerBase, blocks: torch.Tensor, seed: int) -> dict[str, torch.Tensor]:
    """Mask 15 % of the tokens of blocks, and return `input_ids` and `labels`, `(blocks, length)` each."""
    collator = MaskingCollator(tokenizer, MASKED_SHARE, hide_all=True, seed=seed)
    masked = collator([{"input_ids": block} for block in blocks.tolist()])
    return {name: tensor.to(blocks.device) for name, tensor in masked.items()}


@torch.no_grad()
def compare_readings(
    dense: PreTrainedModel,
    linformer: PreTrainedModel,
    batches: Sequence[torch.Tensor],
    embeddings: tuple[TextEmbedding, TextEmbedding],
) -> dict[str, float]:
    """Compare the embeddings of two models and, of models with a head for labels, the likeliest label."""
    vectors, agreements = ([], []), []
    for input_ids in batches:
        readings = [read(model, input_ids, model_length(model)) for model in (dense, linformer)]
        for kept, reading, embedding in zip(vectors, readings, embeddings):
            kept.append(embedding.of_reading(reading))
        logits = [reading.logits for reading in readings]
        if predict_same_labels(logits, dense.config.num_labels):
            agreements.append((logits[0].argmax(-1) == logits[1].argmax(-1)).flatten())
    first, second = (torch.cat(kept) for kept in vectors)
    cosines = F.cosine_similarity(first, second)
    found = {
        "embedding_cosine": cosines.mean().item(),
        "embedding_cosine_p5": cosines.quantile(0.05).item(),
        "similarity_correlation": similarity_correlation(first, second),
    }
    return found | ({"label_agreement": torch.cat(agreements).float().mean().item()} if agreements else {})


def predict_same_labels(logits: Sequence[torch.Tensor | None], num_labels: int) -> bool:
    """Tell whether two models have heads that choose among the same number of labels, at least two."""
    return num_labels > 1 and all(one is not None and one.shape[-1] == num_labels for one in logits)


@torch.no_grad()
def compare_words(
    dense: PreTrainedModel, linformer: PreTrainedModel, masked: dict[str, torch.Tensor], batch_size: int
) -> dict[str, float]:
    """Compare the words that two models predict where tokens are masked."""
    hits = []
    for input_ids, labels in zip(masked["input_ids"].split(batch_size), masked["labels"].split(batch_size)):
        wanted, found = (
            read(model, input_ids, model_length(model)).logits[labels != -100] for model in (dense, linformer)
        )
        hits.append(found.topk(5).indices == wanted.argmax(-1, keepdim=True))
    hits = torch.cat(hits).float()
    return {"top1_agreement": hits[:, 0].mean().item(), "top5_agreement": hits.sum(1).mean().item()}


@torch.no_grad()
def embed(
    model: PreTrainedModel, blocks: torch.Tensor, batch_size: int, embedding: TextEmbedding = MEAN_EMBEDDING
) -> torch.Tensor:
    """Return the embeddings of blocks, `(blocks, D)`."""
    batches = blocks.to(model.device).split(batch_size)
    return torch.cat([embedding.of_reading(read(model, ids, model_length(model))) for ids in batches])


def compare_cost(
    dense: PreTrainedModel, linformer: PreTrainedModel, input_ids: torch.Tensor, rounds: int
) -> dict[str, float]:
    """Time two models in turns on one batch, and measure their memory."""
    calls = {
        "dense": lambda: embed(dense, input_ids, len(input_ids)),
        "linformer": lambda: embed(linformer, input_ids, len(input_ids)),
    }
    memory = {name: peak_tensor_bytes(call) for name, call in calls.items()}  # also the first, slower call of each
    seconds = seconds_in_turns(calls, rounds, input_ids.device, STEADY_SECONDS)
    found = {"speedup": median_speedup(seconds["dense"], seconds["linformer"])}
    for name in calls:
        median = statistics.median(seconds[name])
        found |= {
            f"{name}_seconds": median,
            f"{name}_tokens_per_second": input_ids.numel() / median,
            f"{name}_peak_memory_bytes": memory[name],
        }
    return found
