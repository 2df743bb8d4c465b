"""Documents into examples: packed into blocks of n tokens each, or one example a document."""

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np
from torch.utils import data as torch_data
from transformers import PreTrainedTokenizerBase

from .tokenizers import find_frame


try:
    import pyarrow as pa
    import pyarrow.compute as pc
    from datasets import Dataset, IterableDataset
except ImportError as error:
    raise ImportError("Making training examples needs datasets: pip install linformer_hf[train]") from error


EPOCH = "epoch"  # of an example: in which pass over a stream it was read
FRAME = 2  # tokens, one before the text of a block and one behind it
DOCUMENTS = 1000  # that are tokenized, and looked up, together
BATCH_TOKENS = 2**20  # of blocks that are written together


class ExampleStream(torch_data.IterableDataset):
    """Examples of a stream of documents, pass after pass without an end.

    A Trainer sees a single epoch of as many steps as it is told. So it resumes in the right place even in a later
    pass, which it could not tell from the first one. The documents come in another order in each pass.

    Args:
        documents: Rows with `text`.
        make: From texts to examples.
        mark_passes: Whether each example carries the number of its pass as `epoch`, for `MaskingCollator`.
    """

    def __init__(
        self,
        documents: IterableDataset,
        make: Callable[[Iterable[str]], Iterator[dict[str, Any]]],
        mark_passes: bool,
    ) -> None:
        super().__init__()
        self.documents = documents
        self.make = make
        self.mark_passes = mark_passes

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in count():
            example = None
            for example in self.read_pass(number):
                yield {**example, EPOCH: number} if self.mark_passes else example
            if example is None:
                return  # more processes read than there are files

    def read_pass(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the examples of one pass."""
        documents = deepcopy(self.documents)  # the epoch of a stream is shared between processes, a copy's is not
        documents.set_epoch(number)
        yield from self.make(row["text"] for row in documents)


Examples = Dataset | ExampleStream


def read_once(examples: Examples) -> Iterable[dict[str, Any]]:
    """Return the examples of one pass over a table or a stream."""
    return examples.read_pass(0) if isinstance(examples, ExampleStream) else examples


def pack_blocks(
    table: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    num_tokens: int,
    keep_offsets: bool = False,
    num_workers: int | None = None,
    mark_passes: bool = False,
) -> Examples:
    """Pack documents into blocks of exactly `num_tokens` tokens.

    A block is a start token, text, and an end token; documents follow each other with an end token between. The whole
    text is packed, and what is left over at its end is dropped. The blocks do not depend on the number of processes.

    Args:
        table: With the column `text`.
        tokenizer: The tokenizer.
        num_tokens: Length of a block.
        keep_offsets: Also keep `offset_mapping`, which whole-word masking reads.
        num_workers: Processes that tokenize and cut; not for a stream.
        mark_passes: As in `ExampleStream`, of a stream.

    Returns:
        Rows with `input_ids`; a stream of them where the documents are one.

    Raises:
        ValueError: If the text is shorter than one block, or the tokenizer has no token for the start or the end.
    """
    if isinstance(table, IterableDataset):
        options = {"tokenizer": tokenizer, "num_tokens": num_tokens, "keep_offsets": keep_offsets}
        stream = ExampleStream(table, partial(iterate_blocks, **options), mark_passes)
        check_blocks(next(iter(stream.read_pass(0)), None) is not None, num_tokens)
        return stream
    frame = find_frame(tokenizer)
    room = room_in(num_tokens)
    documents = table.map(
        tokenize,
        batched=True,
        batch_size=DOCUMENTS,
        num_proc=num_workers,
        remove_columns=table.column_names,
        fn_kwargs={"tokenizer": tokenizer, "end_token": frame[1], "keep_offsets": keep_offsets},
        desc="Tokenizing",
    )
    # where each thousand documents ends in the text, in tokens
    groups = documents.with_format("arrow").iter(DOCUMENTS)
    ends = np.cumsum(
        [pc.sum(pc.list_value_length(group["input_ids"])).as_py() or 0 for group in groups], dtype=np.int64
    )
    num_blocks = int(ends[-1]) // room if len(ends) else 0
    check_blocks(num_blocks > 0, num_tokens)
    index = Dataset.from_dict({"block": np.arange(num_blocks)}).with_format("arrow")
    blocks = index.map(
        cut_blocks,
        batched=True,
        batch_size=max(1, BATCH_TOKENS // num_tokens),
        num_proc=num_workers,
        remove_columns=["block"],
        fn_kwargs={"documents": documents, "ends": ends, "num_tokens": num_tokens, "frame": frame},
        desc="Packing blocks",
    )
    return blocks.with_format(None)


def room_in(num_tokens: int) -> int:
    """Return how many tokens of text a block holds between those that frame it.

    Raises:
        ValueError: If it holds none.
    """
    if num_tokens <= FRAME:
        raise ValueError(
            f"--max_seq_length is {num_tokens}, but {FRAME} tokens frame the text of a block: give more than {FRAME}."
        )
    return num_tokens - FRAME


def check_blocks(is_filled: bool, num_tokens: int) -> None:
    """Check that there is a block.

    Raises:
        ValueError: If the text is shorter than one.
    """
    if not is_filled:
        raise ValueError(
            f"The text is shorter than one block of {num_tokens} tokens: give more text, a smaller --max_seq_length, "
            "or --line_by_line."
        )


def tokenize(batch: dict, tokenizer: PreTrainedTokenizerBase, end_token: int, keep_offsets: bool) -> dict:
    """Turn documents into tokens, each with an end token behind it."""
    encoded = tokenizer(
        batch["text"],
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=keep_offsets,
        verbose=False,
    )
    tokens = {"input_ids": [[*ids, end_token] for ids in encoded["input_ids"]]}
    if keep_offsets:
        tokens["offset_mapping"] = [[*offsets, (0, 0)] for offsets in encoded["offset_mapping"]]
    return tokens


def cut_blocks(
    batch: pa.Table, documents: Dataset, ends: np.ndarray, num_tokens: int, frame: tuple[int, int]
) -> pa.Table:
    """Cut consecutive blocks out of tokenized documents.

    Args:
        batch: The numbers of the blocks, one after the other.
        documents: With `input_ids` and, where they are kept, `offset_mapping`.
        ends: Where each thousand documents ends, in tokens from the start of the text.
        num_tokens: Length of a block.
        frame: Ids of the start and the end token.
    """
    numbers = batch["block"].to_numpy()
    room = num_tokens - len(frame)
    first, last = int(numbers[0]) * room, (int(numbers[-1]) + 1) * room
    groups = np.searchsorted(ends, first, "right"), np.searchsorted(ends, last, "left")
    read = documents.with_format("arrow")[int(groups[0]) * DOCUMENTS : (int(groups[1]) + 1) * DOCUMENTS]
    start = int(ends[groups[0] - 1]) if groups[0] else 0
    tokens = flatten(read["input_ids"]).to_numpy()[first - start : last - start].reshape(-1, room)
    blocks = np.empty((len(numbers), num_tokens), dtype=np.int32)
    blocks[:, 0], blocks[:, 1:-1], blocks[:, -1] = frame[0], tokens, frame[1]
    columns = {"input_ids": as_lists(pa.array(blocks.ravel()), num_tokens)}
    if "offset_mapping" in documents.column_names:
        spans = flatten(flatten(read["offset_mapping"])).to_numpy().reshape(-1, 2)[first - start : last - start]
        offsets = np.zeros((len(numbers), num_tokens, 2), dtype=np.int64)
        offsets[:, 1:-1] = spans.reshape(-1, room, 2)
        columns["offset_mapping"] = as_lists(as_lists(pa.array(offsets.ravel()), 2), num_tokens)
    return pa.table(columns)


def flatten(lists: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Put the items of lists behind each other."""
    return pc.list_flatten(lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists)


def as_lists(values: pa.Array, length: int) -> pa.ListArray:
    """Cut values into lists of one length."""
    return pa.ListArray.from_arrays(np.arange(0, len(values) + 1, length, dtype=np.int32), values)


def iterate_blocks(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, num_tokens: int, keep_offsets: bool = False
) -> Iterator[dict[str, list]]:
    """Yield the blocks that `pack_blocks` makes, and read no more texts than they need.

    Raises:
        ValueError: If the tokenizer has no token for the start or the end of a text.
    """
    start_token, end_token = find_frame(tokenizer)
    room, texts, none = room_in(num_tokens), iter(texts), (0, 0)
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    while batch := list(islice(texts, DOCUMENTS)):
        tokens = tokenize({"text": batch}, tokenizer, end_token, keep_offsets)
        ids += (token for document in tokens["input_ids"] for token in document)
        offsets += (offset for document in tokens.get("offset_mapping", ()) for offset in document)
        full = len(ids) // room * room
        for begin in range(0, full, room):
            block = {"input_ids": [start_token, *ids[begin : begin + room], end_token]}
            if keep_offsets:
                block["offset_mapping"] = [none, *offsets[begin : begin + room], none]
            yield block
        del ids[:full], offsets[:full]


def cut_lines(
    table: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    num_tokens: int,
    keep_offsets: bool = False,
    num_workers: int | None = None,
    mark_passes: bool = False,
) -> Examples:
    """Make each document one example, cut to `num_tokens` tokens.

    Arguments and what comes back are those of `pack_blocks`. With `keep_offsets` every example is padded to the full
    length, as whole-word masking needs.
    """
    options = {"tokenizer": tokenizer, "num_tokens": num_tokens, "keep_offsets": keep_offsets}
    if isinstance(table, IterableDataset):
        return ExampleStream(table, partial(iterate_lines, **options), mark_passes)
    return table.map(
        encode_lines,
        batched=True,
        batch_size=DOCUMENTS,
        num_proc=num_workers,
        remove_columns=table.column_names,
        fn_kwargs=options,
        desc="Cutting the documents",
    )


def iterate_lines(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, num_tokens: int, keep_offsets: bool = False
) -> Iterator[dict[str, list]]:
    """Yield the examples that `cut_lines` makes, and read no more texts than they need."""
    texts = iter(texts)
    while batch := list(islice(texts, DOCUMENTS)):
        encoded = encode_lines({"text": batch}, tokenizer, num_tokens, keep_offsets)
        for values in zip(*encoded.values()):
            yield dict(zip(encoded, values))


def encode_lines(batch: dict, tokenizer: PreTrainedTokenizerBase, num_tokens: int, keep_offsets: bool) -> dict:
    """Turn documents into examples of at most `num_tokens` tokens."""
    return dict(
        tokenizer(
            batch["text"],
            truncation=True,
            max_length=num_tokens,
            padding="max_length" if keep_offsets else False,
            return_offsets_mapping=keep_offsets,
            return_token_type_ids=False,
        )
    )
