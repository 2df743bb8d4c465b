"""Masked words: which tokens of an example are masked, and the perplexity of token frequencies alone."""

import math
import zlib
from array import array
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain

import torch
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    PreTrainedTokenizerBase,
)

from .blocks import EPOCH


try:
    from datasets import Dataset
except ImportError as error:
    raise ImportError("Masking examples needs datasets: pip install linformer_hf[train]") from error


class MaskingCollator:
    """Pad examples and mask their tokens; examples that carry labels are only padded.

    What is masked follows from the example, the epoch and the seed alone. It is new in each epoch, and the same
    however examples meet in batches and processes, and wherever a run resumes. An example of a stream says itself in
    which pass it was read. A padding mask that hides nothing is left out, so that full blocks take the model's path
    without padding.

    Args:
        tokenizer: The tokenizer.
        mlm_probability: Share of the tokens to predict; of these 80 % become the mask token, 10 % a random one.
        whole_word_mask: Mask all tokens of a word together; all of them become the mask token.
        hide_all: Let all tokens to predict become the mask token. Without it a tenth of them can be copied, which
            alone makes the loss a tenth smaller.
        seed: Which tokens.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        mlm_probability: float,
        whole_word_mask: bool = False,
        hide_all: bool = False,
        seed: int = 0,
    ) -> None:
        shares = {"mask_replace_prob": 1.0, "random_replace_prob": 0.0} if whole_word_mask or hide_all else {}
        self.mask = DataCollatorForLanguageModeling(
            tokenizer, mlm_probability=mlm_probability, whole_word_mask=whole_word_mask, **shares
        )
        self.pad = DataCollatorForTokenClassification(tokenizer)
        self.seed = seed
        self.epoch = torch.zeros((), dtype=torch.long).share_memory_()  # loading processes see it change

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        """Turn examples into a batch of `input_ids`, `labels` and, where needed, `attention_mask`, `(B, N)` each."""
        batch = dict(self.pad([self.mask_example(example) for example in examples]))
        if "attention_mask" in batch and bool(batch["attention_mask"].all()):
            del batch["attention_mask"]
        return batch

    def mask_example(self, example: dict) -> dict:
        """Mask one example, unless it carries labels already."""
        if "labels" in example:
            return example
        epoch = int(example.get(EPOCH, self.epoch))
        example = {name: value for name, value in example.items() if name != EPOCH}
        digest = zlib.crc32(array("q", [self.seed, epoch, *example["input_ids"]]))
        self.mask.generator = torch.Generator().manual_seed(digest)
        return {name: tensor[0].tolist() for name, tensor in self.mask([example]).items()}


def mask_once(
    examples: Dataset, tokenizer: PreTrainedTokenizerBase, mlm_probability: float, seed: int, hide_all: bool = False
) -> Dataset:
    """Fix the masks of a held-out set, so that every evaluation asks for the same tokens.

    Args:
        examples: With `input_ids`, padded or not.
        tokenizer: The tokenizer.
        mlm_probability: Share of the tokens to predict.
        seed: Which tokens; `hide_all` does not change which.
        hide_all: As in `MaskingCollator`.

    Returns:
        The examples with `labels`: the id of a token to predict, -100 elsewhere.
    """
    collator = MaskingCollator(tokenizer, mlm_probability, hide_all=hide_all, seed=seed)
    kept = [name for name in ("input_ids", "attention_mask") if name in examples.column_names]
    return examples.select_columns(kept).map(
        collator.mask_example, load_from_cache_file=False, desc="Masking the held-out text"
    )


def unigram_perplexity(
    training: Iterable[list[int]], masked: Dataset, vocab_size: int, never_predicted: Collection[int] = ()
) -> float:
    """Return the perplexity of guessing each masked token from token frequencies alone.

    A model that has learned nothing but frequencies reaches this number; one that reads context is well below it.

    Args:
        training: Token ids of the training text, whose frequencies count (plus one for each token).
        masked: The held-out examples, with `labels`.
        vocab_size: Number of tokens.
        never_predicted: Ids of tokens that are no labels, such as `<s>`, `</s>` and `<pad>`; they do not count.

    Raises:
        ValueError: If no token is to be predicted.
    """
    counts = Counter(chain.from_iterable(training))
    left_out = set(never_predicted)
    total = sum(count for token, count in counts.items() if token not in left_out) + vocab_size - len(left_out)
    labels = [label for row in masked["labels"] for label in row if label != -100]
    if not labels:
        raise ValueError("The held-out text is so short that no token of it is masked; give more of it.")
    return math.exp(-sum(math.log((counts[label] + 1) / total) for label in labels) / len(labels))
