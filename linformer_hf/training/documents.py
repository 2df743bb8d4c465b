"""Documents as examples for training without labels: blocks of equal length or one example each."""

from transformers import PreTrainedTokenizerBase

from ..data.blocks import Examples, cut_lines, pack_blocks
from ..data.texts import Texts


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
    num_workers: int | None = None,
    mark_passes: bool = True,
) -> tuple[Examples | None, Dataset | None]:
    """Turn documents into examples to train on, and held-out ones in memory, both without masks.

    Args:
        texts: Documents to train on and held-out ones, or one of these.
        tokenizer: The tokenizer.
        num_tokens: Length of a block, or the longest example, in tokens.
        line_by_line: Make each document one example instead of packing blocks of equal length.
        keep_offsets: Keep what whole-word masking reads.
        num_workers: Processes that tokenize.
        mark_passes: Whether examples of a stream carry the number of their pass, for `MaskingCollator`.

    Returns:
        None in place of examples for which there is no text.

    Raises:
        ValueError: If a text is shorter than one block.
    """
    make = cut_lines if line_by_line else pack_blocks
    examples = {}
    for split, table in texts.items():
        workers = num_workers if isinstance(table, Dataset) else None
        try:
            examples[split] = make(table, tokenizer, num_tokens, keep_offsets, workers, mark_passes)
        except ValueError as error:
            raise ValueError(f"{'Training' if split == 'train' else 'Held-out'} text: {error}") from error
    return examples.get("train"), examples.get("validation")
