"""Documents as examples for training without labels: blocks of equal length or one example each."""

from transformers import PreTrainedTokenizerBase

from ..data.blocks import cut_lines, pack_blocks
from ..data.texts import Table, Texts, in_memory


try:
    from datasets import Dataset
except ImportError as error:
    raise ImportError("Making training examples needs datasets: pip install linformer_hf[train]") from error


def make_examples(
    texts: Texts,
    tokenizer: PreTrainedTokenizerBase,
    num_tokens: int,
    line_by_line: bool,
    keep_offsets: bool = False,
) -> tuple[Table, Dataset]:
    """Turn documents into examples to train on, and held-out ones in memory, both without masks.

    Args:
        texts: Documents to train on and held-out ones.
        tokenizer: The tokenizer.
        num_tokens: Length of a block, or the longest example, in tokens.
        line_by_line: Make each document one example instead of packing blocks of equal length.
        keep_offsets: Keep what whole-word masking reads.

    Raises:
        ValueError: If a text is shorter than one block.
    """
    make = cut_lines if line_by_line else pack_blocks
    examples = {
        split: table.map(make(tokenizer, num_tokens, keep_offsets=keep_offsets), batched=True, remove_columns=["text"])
        for split, table in texts.items()
    }
    train, held_out = examples["train"], in_memory(examples["validation"])
    for split, table in (("train", train), ("held-out", held_out)):
        if num_rows(table) == 0:
            raise ValueError(
                f"The {split} text is shorter than one block of {num_tokens} tokens: give more text, a smaller "
                "--max_seq_length, or --line_by_line."
            )
    return train, held_out


def num_rows(table: Table) -> int | None:
    """Return the number of rows, or None of a stream."""
    return len(table) if hasattr(table, "__len__") else None
