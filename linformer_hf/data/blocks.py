"""Text into training examples: a tokenizer, blocks of n tokens, masks, and what frequencies alone would reach."""

import json
import math
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain

import torch
from tokenizers import AddedToken, ByteLevelBPETokenizer
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    PreTrainedTokenizerBase,
    RobertaTokenizer,
)


try:
    from datasets import Dataset
except ImportError as error:
    raise ImportError("Making training examples needs datasets: pip install linformer_hf[train]") from error


def train_tokenizer(texts: Iterable[str], vocab_size: int, max_length: int) -> RobertaTokenizer:
    """Learn a byte-level BPE with RoBERTa's special tokens.

    Args:
        texts: The documents to learn from.
        vocab_size: Number of tokens, special ones included; at least 261.
        max_length: The longest input of the model, n, in tokens.

    Returns:
        A tokenizer with ids 0 `<s>`, 1 `<pad>`, 2 `</s>`, 3 `<unk>`, 4 `<mask>`.

    Raises:
        ValueError: If the vocabulary has no room for the 256 bytes and the special tokens.
    """
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    smallest = 256 + len(special)
    if vocab_size < smallest:
        raise ValueError(f"--vocab_size is {vocab_size}; 256 bytes and {len(special)} special tokens need {smallest}.")
    learner = ByteLevelBPETokenizer()
    learner.train_from_iterator(texts, vocab_size=vocab_size, special_tokens=special, show_progress=False)
    learned = json.loads(learner.to_str())["model"]
    return RobertaTokenizer(
        vocab=learned["vocab"],
        merges=[tuple(pair) for pair in learned["merges"]],
        mask_token=AddedToken("<mask>", lstrip=True),  # takes the blank before it, as a word's first token does
        model_max_length=max_length,
    )


def pack_blocks(
    tokenizer: PreTrainedTokenizerBase, num_tokens: int, keep_offsets: bool = False
) -> Callable[[dict], dict]:
    """Make a batched map from documents to blocks of exactly `num_tokens` tokens.

    A block is a start token, text, and an end token; documents follow each other with an end token between. What is
    left over at the end of a batch of documents is dropped.

    Args:
        tokenizer: The tokenizer.
        num_tokens: Length of a block.
        keep_offsets: Also keep `offset_mapping`, which whole-word masking reads.

    Returns:
        A function from a batch with `text` to one with `input_ids`, for `Dataset.map(..., batched=True)`.

    Raises:
        ValueError: If the tokenizer does not put one token before a text and one behind it.
    """
    frame = tokenizer("")["input_ids"]
    if len(frame) != 2:
        raise ValueError(
            f"The tokenizer adds {len(frame)} special tokens to a text; an encoder's adds a start and an end."
        )
    (start_token, end_token), room = frame, num_tokens - 2

    def pack(batch: dict) -> dict:
        encoded = tokenizer(
            batch["text"], add_special_tokens=False, return_offsets_mapping=keep_offsets, verbose=False
        )
        ids = list(chain.from_iterable([*document, end_token] for document in encoded["input_ids"]))
        starts = range(0, len(ids) - room + 1, room)
        packed = {"input_ids": [[start_token, *ids[start : start + room], end_token] for start in starts]}
        if keep_offsets:
            none = (0, 0)
            offsets = list(chain.from_iterable([*document, none] for document in encoded["offset_mapping"]))
            packed["offset_mapping"] = [[none, *offsets[start : start + room], none] for start in starts]
        return packed

    return pack


def cut_lines(
    tokenizer: PreTrainedTokenizerBase, num_tokens: int, keep_offsets: bool = False
) -> Callable[[dict], dict]:
    """Make a batched map from documents to one example each, cut to `num_tokens` tokens.

    Arguments are those of `pack_blocks`. With `keep_offsets` every example is padded to the full length, as
    whole-word masking needs.
    """

    def cut(batch: dict) -> dict:
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

    return cut


class MaskingCollator:
    """Pad examples and mask their tokens; examples that carry labels are only padded.

    What is masked follows from the example, the epoch and the seed alone. It is new in each epoch, and the same
    however examples meet in batches and processes, and wherever a run resumes. A padding mask that hides nothing is
    left out, so that full blocks take the model's path without padding.

    Args:
        tokenizer: The tokenizer.
        mlm_probability: Share of the tokens to predict; of these 80 % become the mask token, 10 % a random one.
        whole_word_mask: Mask all tokens of a word together; all of them become the mask token.
        hide_all: Let all tokens to predict become the mask token. Without it a tenth of them stands there to be
            copied, which alone makes the loss a tenth smaller.
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
        digest = zlib.crc32(array("q", [self.seed, int(self.epoch), *example["input_ids"]]))
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


def unigram_perplexity(training: Iterable[list[int]], masked: Dataset, vocab_size: int) -> float:
    """Return the perplexity of guessing each masked token from token frequencies alone.

    That is what a model reaches that has learnt nothing but frequencies: a number to be well below.

    Args:
        training: Token ids of the training text, whose frequencies count (plus one for each token).
        masked: The held-out examples, with `labels`.
        vocab_size: Number of tokens.
    """
    counts = Counter(chain.from_iterable(training))
    total = counts.total() + vocab_size
    labels = [label for row in masked["labels"] for label in row if label != -100]
    return math.exp(-sum(math.log((counts[label] + 1) / total) for label in labels) / len(labels))
