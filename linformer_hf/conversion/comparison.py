"""How near a Linformer is to the dense encoder it came from, and what each costs, at several lengths."""

import statistics
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..common.heads import MASKED_LM, head_of_checkpoint, head_of_class, shared_head
from ..common.loading import LoadingArguments, check_tokenizer, model_length
from ..common.measurement import seconds_in_turns
from ..common.records import FILE_NAME, Stopwatch, model_facts, read_results, write_results
from ..data.blocks import MaskingCollator, pack_blocks
from ..data.texts import TextArguments, in_memory, load_texts
from .windows import (
    mean_embeddings,
    read,
    recall,
    similarity_correlation,
    window_sizes,
)


logger = logging.get_logger(__name__)

SMALLEST_LENGTH = 8
FEWEST_BLOCKS = 3  # two would have one similarity, which correlates with nothing
MASKED_SHARE = 0.15


@dataclass(kw_only=True)
class ComparisonArguments(TextArguments, LoadingArguments):
    """Which two models are compared, on what text, and where the numbers go."""

    dense_name_or_path: str = field(metadata={"help": "The dense encoder, on the Hub or in a folder."})
    model_name_or_path: str = field(metadata={"help": "The Linformer that was made from it, with its tokenizer."})
    output_dir: str = field(metadata={"help": "A new folder for results.json."})
    lengths: list[int] = field(
        default_factory=lambda: [64, 256, 512], metadata={"help": "Lengths to compare at, in tokens."}
    )
    max_blocks: int = field(default=64, metadata={"help": "Compare on at most so many blocks of each length."})
    batch_size: int = field(default=8, metadata={"help": "Blocks that are read, and timed, together."})
    rounds: int = field(default=5, metadata={"help": "How often each model is timed; the median counts."})
    seed: int = field(default=42, metadata={"help": "Which tokens are masked, and which documents held out."})


def compare_models(arguments: ComparisonArguments) -> dict[int, dict[str, float]]:
    """Compare the two models that a command line names, log a table, and leave a record.

    Returns:
        The numbers of each length, as from `compare`.

    Raises:
        ValueError: If models, text, lengths and folder do not fit.
    """
    folder = Path(arguments.output_dir)
    refuse_other_folder(folder)
    watch = Stopwatch()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dense_source = {"pretrained_model_name_or_path": arguments.dense_name_or_path}
    source = {"pretrained_model_name_or_path": arguments.model_name_or_path, **arguments.loading()}
    configs = [AutoConfig.from_pretrained(**one) for one in (dense_source, source)]
    head = shared_head(*(head_of_checkpoint(config.architectures) for config in configs))
    dense, linformer = (
        head.auto_class.from_pretrained(**one, dtype=torch.float32).to(device) for one in (dense_source, source)
    )
    tokenizer = AutoTokenizer.from_pretrained(**source)
    numbers = compare(
        dense,
        linformer,
        tokenizer,
        read_documents(arguments),
        lengths=arguments.lengths,
        max_blocks=arguments.max_blocks,
        batch_size=arguments.batch_size,
        rounds=arguments.rounds,
        seed=arguments.seed,
    )
    for line in table_lines(numbers):
        logger.info(line)
    longest = model_length(dense)
    if max(arguments.lengths) > longest:
        logger.info(f"The dense model reads {longest} tokens; longer text it reads in windows, which are averaged.")
    folder.mkdir(parents=True, exist_ok=True)
    flat = {f"{name}_{length}": value for length, found in numbers.items() for name, value in found.items()}
    about = {"dense_model": model_facts(dense), "model": model_facts(linformer)}
    write_results(folder, flat | watch.read(), (arguments,), about)
    return numbers


def refuse_other_folder(folder: Path) -> None:
    """Refuse to write into a folder that holds more than the record of a comparison.

    Raises:
        ValueError: With the first names in it.
    """
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if names and not (names == [FILE_NAME] and "dense_model" in read_results(folder).get("about", {})):
        raise ValueError(f"{folder} holds {', '.join(names[:3])}, not a comparison; name a new --output_dir.")


def read_documents(arguments: ComparisonArguments) -> list[str]:
    """Return the held-out documents; of held-out files named alone, all."""
    if arguments.validation_file and not arguments.train_file:
        arguments = replace(arguments, train_file=arguments.validation_file)
    return list(in_memory(load_texts(arguments, arguments.seed)["validation"])["text"])


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
) -> dict[int, dict[str, float]]:
    """Compare what two models make of the same blocks of text, and what each costs.

    A dense model that reads less than a block reads it in windows: its embedding and its answer are the mean over
    them, and its words come from the window they stand in.

    Args:
        dense: The dense encoder.
        linformer: The one to compare with it, with the same head or none, on the same device.
        tokenizer: The tokenizer of both.
        texts: Documents.
        lengths: Tokens of a block.
        max_blocks: Blocks of a length, at most, and documents for retrieval.
        batch_size: Blocks that are read, and timed, together.
        rounds: Timings of each model, in turns; the median counts.
        seed: Which tokens are masked.

    Returns:
        For each length by name: `blocks`, `dense_windows`; of mean-pooled embeddings `embedding_cosine`, its 5th
        percentile `embedding_cosine_p5`, and `similarity_correlation` of the similarities between blocks; with heads
        for words, `top1_agreement` and `top5_agreement` on masked tokens, the share for which the dense model's word
        is the Linformer's first, or among its first five; with heads for labels, `label_agreement`; where documents
        are long enough, `retrieval_pairs` and each model's `…_recall_at_1` from first to second halves; each model's
        `…_seconds` a batch, `…_tokens_per_second` and `…_peak_memory_bytes` beyond weights and input; and `speedup`,
        the median over rounds of how many times faster the Linformer was.

    Raises:
        ValueError: If a length is more than the Linformer reads or than the text fills, the tokenizer does not fit, or
            a number is no count.
    """
    for name, number in (("max_blocks", max_blocks), ("batch_size", batch_size), ("rounds", rounds)):
        if number < 1:
            raise ValueError(f"--{name} is {number}; it must be at least 1.")
    longest = model_length(linformer)
    for length in lengths:
        if not SMALLEST_LENGTH <= length <= longest:
            raise ValueError(
                f"--lengths has {length}; the Linformer reads {longest} tokens, from {SMALLEST_LENGTH} on."
            )
    for model in (dense, linformer):
        check_tokenizer(tokenizer, model, model.config.model_type)
        model.eval()
    numbers = {}
    for length in lengths:
        blocks = make_blocks(tokenizer, texts, length, max_blocks).to(dense.device)
        pairs = [half.to(dense.device) for half in make_halves(tokenizer, texts, length, max_blocks)]
        found = {"blocks": len(blocks), "dense_windows": len(window_sizes(length, model_length(dense)))}
        found |= compare_readings(dense, linformer, blocks.split(batch_size))
        if shared_head(*(head_of_class(type(model).__name__) for model in (dense, linformer))) == MASKED_LM:
            found |= compare_words(dense, linformer, mask_blocks(tokenizer, blocks, seed), batch_size)
        if len(pairs[0]) > 1:
            found["retrieval_pairs"] = len(pairs[0])
            for name, model in (("dense", dense), ("linformer", linformer)):
                found[f"{name}_recall_at_1"] = recall(*(embed(model, half.split(batch_size)) for half in pairs))
        numbers[length] = found | compare_cost(dense, linformer, blocks[:batch_size], rounds)
    return numbers


def make_blocks(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int, most: int) -> torch.Tensor:
    """Pack documents into blocks of token ids, `(blocks, length)`.

    Raises:
        ValueError: If the text fills fewer than three.
    """
    blocks = pack_blocks(tokenizer, length)({"text": list(texts)})["input_ids"][:most]
    if len(blocks) < FEWEST_BLOCKS:
        raise ValueError(
            f"The text fills {len(blocks)} blocks of {length} tokens, but a comparison takes {FEWEST_BLOCKS}: give "
            "more text, or smaller --lengths."
        )
    return torch.tensor(blocks)


def make_halves(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make two blocks that follow each other from each document that fills them, `(documents, length)` twice."""
    start, end = tokenizer("")["input_ids"]
    room = length - 2
    encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    documents = [ids for ids in encoded if len(ids) >= 2 * room][:most]
    firsts = [[start, *ids[:room], end] for ids in documents]
    seconds = [[start, *ids[room : 2 * room], end] for ids in documents]
    return torch.tensor(firsts), torch.tensor(seconds)


def mask_blocks(tokenizer: PreTrainedTokenizerBase, blocks: torch.Tensor, seed: int) -> dict[str, torch.Tensor]:
    """Hide 15 % of the tokens of blocks, and return `input_ids` and `labels`, `(blocks, length)` each."""
    collator = MaskingCollator(tokenizer, MASKED_SHARE, hide_all=True, seed=seed)
    masked = collator([{"input_ids": block} for block in blocks.tolist()])
    return {name: tensor.to(blocks.device) for name, tensor in masked.items()}


@torch.no_grad()
def compare_readings(
    dense: PreTrainedModel, linformer: PreTrainedModel, batches: Sequence[torch.Tensor]
) -> dict[str, float]:
    """Compare embeddings and, of models with a head for labels, the likeliest label."""
    embeddings, agreements = ([], []), []
    for input_ids in batches:
        readings = [read(model, input_ids, model_length(model)) for model in (dense, linformer)]
        for kept, reading in zip(embeddings, readings):
            kept.append(mean_embeddings(reading.hidden_states[-1], reading.window_sizes))
        logits = [reading.logits for reading in readings]
        if (
            all(one is not None for one in logits)
            and logits[0].shape[-1] == logits[1].shape[-1] == dense.config.num_labels > 1
        ):
            agreements.append((logits[0].argmax(-1) == logits[1].argmax(-1)).flatten())
    first, second = (torch.cat(kept) for kept in embeddings)
    cosines = F.cosine_similarity(first, second)
    found = {
        "embedding_cosine": cosines.mean().item(),
        "embedding_cosine_p5": cosines.quantile(0.05).item(),
        "similarity_correlation": similarity_correlation(first, second),
    }
    return found | ({"label_agreement": torch.cat(agreements).float().mean().item()} if agreements else {})


@torch.no_grad()
def compare_words(
    dense: PreTrainedModel, linformer: PreTrainedModel, masked: dict[str, torch.Tensor], batch_size: int
) -> dict[str, float]:
    """Compare the words that two models put where tokens are hidden."""
    hits = []
    for input_ids, labels in zip(masked["input_ids"].split(batch_size), masked["labels"].split(batch_size)):
        wanted, found = (
            read(model, input_ids, model_length(model)).logits[labels != -100] for model in (dense, linformer)
        )
        hits.append(found.topk(5).indices == wanted.argmax(-1, keepdim=True))
    hits = torch.cat(hits).float()
    return {"top1_agreement": hits[:, 0].mean().item(), "top5_agreement": hits.sum(1).mean().item()}


@torch.no_grad()
def embed(model: PreTrainedModel, batches: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean-pooled embeddings of blocks, `(blocks, M)`."""
    readings = (read(model, input_ids, model_length(model)) for input_ids in batches)
    return torch.cat([mean_embeddings(reading.hidden_states[-1], reading.window_sizes) for reading in readings])


@torch.no_grad()
def compare_cost(
    dense: PreTrainedModel, linformer: PreTrainedModel, input_ids: torch.Tensor, rounds: int
) -> dict[str, float]:
    """Time two models in turns on one batch, and measure their memory."""
    calls = {
        "dense": lambda: embed(dense, [input_ids]),
        "linformer": lambda: embed(linformer, [input_ids]),
    }
    memory = {name: peak_memory(call) for name, call in calls.items()}  # warms up, too
    seconds = seconds_in_turns(calls, rounds, input_ids.device)
    ratios = [slow / fast for slow, fast in zip(seconds["dense"], seconds["linformer"])]
    found = {"speedup": statistics.median(ratios)}
    for name in calls:
        median = statistics.median(seconds[name])
        found |= {
            f"{name}_seconds": median,
            f"{name}_tokens_per_second": input_ids.numel() / median,
            f"{name}_peak_memory_bytes": memory[name],
        }
    return found


def peak_memory(call: Callable[[], torch.Tensor]) -> int:
    """Return the most bytes of new tensors that are alive together during a call."""
    with LiveBytes() as counted:
        call()
    return counted.peak


class LiveBytes(TorchDispatchMode):
    """Count the bytes of tensors that operations make while they live; scratch inside an operation is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0

    def __torch_dispatch__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage.data_ptr() for storage in storages((args, kwargs))}
        for storage in storages(result):
            if storage.data_ptr() not in given:  # neither a view nor a change in place
                self.live += storage.nbytes()
                weakref.finalize(storage, self.release, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return result

    def release(self, num_bytes: int) -> None:
        """Count bytes off that were freed."""
        self.live -= num_bytes


def storages(tree: Any) -> list[torch.UntypedStorage]:
    """List the storages of all tensors in nested arguments."""
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def table_lines(numbers: dict[int, dict[str, float]]) -> list[str]:
    """Set numbers as a table with a column for each length."""
    names = list(dict.fromkeys(name for found in numbers.values() for name in found))
    width = max(map(len, names))
    lines = [f"{'tokens':{width}}" + "".join(f"{length:>12}" for length in numbers)]
    for name in names:
        cells = (f"{found[name]:>12.4g}" if name in found else f"{'-':>12}" for found in numbers.values())
        lines.append(f"{name.replace('_', ' '):{width}}" + "".join(cells))
    return lines
