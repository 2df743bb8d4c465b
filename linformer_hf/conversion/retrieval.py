"""Retrieval from plain documents: second halves by first halves, long texts by passages behind their beginning."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.tokenizers import find_frame
from .distances import recall


try:
    from sklearn.feature_extraction.text import TfidfVectorizer
except ImportError as error:
    raise ImportError("Retrieval needs scikit-learn: pip install linformer_hf[train]") from error


logger = logging.get_logger(__name__)

PASSAGE_LENGTH = 64  # tokens
PASSAGES_PER_TEXT = 4
WORD = r"\w+|[^\w\s]"  # also single letters and signs, or a text of those alone would have no words

Documents = Sequence[Sequence[int]]  # token ids without a frame
Embed = Callable[[torch.Tensor], torch.Tensor]  # from blocks of token ids, `(blocks, length)`, to `(blocks, D)`


class Passages(NamedTuple):
    """Texts, passages from them, and which text each passage is from, `(passages,)`."""

    texts: torch.Tensor
    passages: torch.Tensor
    sources: torch.Tensor


def cut_pieces(documents: Documents, size: int, most: int) -> torch.Tensor:
    """Cut documents into pieces, the first piece of each, then the second of each and so on, `(pieces, size)`."""
    pieces: list[Sequence[int]] = []
    for start in count(0, size):
        found = [ids[start : start + size] for ids in documents if len(ids) >= start + size]
        pieces += found
        if not found or len(pieces) >= most:
            break
    return torch.tensor(pieces[:most], dtype=torch.long).reshape(-1, size)


def framed(tokenizer: PreTrainedTokenizerBase, pieces: torch.Tensor) -> torch.Tensor:
    """Put the tokens that a tokenizer adds before and behind a text around each piece."""
    start, end = (pieces.new_full((len(pieces), 1), token) for token in find_frame(tokenizer))
    return torch.cat([start, pieces, end], 1)


def make_halves(
    tokenizer: PreTrainedTokenizerBase, documents: Documents, length: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make pairs of blocks that follow each other in a document, `(pairs, length)` twice."""
    firsts, seconds = cut_pieces(documents, 2 * (length - 2), most).chunk(2, dim=1)
    return framed(tokenizer, firsts), framed(tokenizer, seconds)


def make_passages(
    tokenizer: PreTrainedTokenizerBase, documents: Documents, length: int, longest: int, most: int
) -> Passages | None:
    """Make blocks, and short blocks from their tokens that a model which reads `longest` tokens does not read.

    Args:
        tokenizer: The tokenizer.
        documents: Texts to cut.
        length: Tokens of a block.
        longest: What the model reads, in tokens.
        most: Blocks, at most.

    Returns:
        None where a block has no room for a passage behind those tokens, or there are fewer than two blocks.
    """
    room = PASSAGE_LENGTH - 2
    last = length - 2 - room
    pieces = cut_pieces(documents, length - 2, most)
    if last < longest or len(pieces) < 2:
        return None
    starts = torch.linspace(longest, last, PASSAGES_PER_TEXT).long().unique().tolist()
    passages = torch.stack([pieces[:, start : start + room] for start in starts], 1).flatten(0, 1)
    sources = torch.arange(len(pieces)).repeat_interleave(len(starts))
    return Passages(framed(tokenizer, pieces), framed(tokenizer, passages), sources)


def compare_retrieval(
    tokenizer: PreTrainedTokenizerBase,
    documents: Documents,
    length: int,
    longest: int,
    most: int,
    models: dict[str, Embed],
) -> dict[str, float]:
    """Measure how often models find what belongs together: halves, and long texts by passages.

    Args:
        tokenizer: The tokenizer of all models.
        documents: Texts to cut.
        length: Tokens of a block.
        longest: What the dense model reads, in tokens.
        most: Blocks, at most.
        models: How each embeds blocks, by name; `dense` is among them.

    Returns:
        Where two pairs of halves can be made, `retrieval_pairs` and each model's `…_recall_at_1`. Where blocks are
        longer than the dense model reads, `passages`, `passage_texts` and `…_passage_recall_at_1` of each model, of
        the dense model that reads the beginning of a text alone, `dense_cut`, and of `tfidf`.
    """
    found = {}
    firsts, seconds = make_halves(tokenizer, documents, length, most)
    if len(firsts) > 1:
        found["retrieval_pairs"] = len(firsts)
        for name, embed in models.items():
            found[f"{name}_recall_at_1"] = recall(embed(firsts), embed(seconds))
    made = make_passages(tokenizer, documents, length, longest, most)
    if made is None and length > longest:
        logger.info(
            f"No search by passages at {length} tokens: it takes two blocks, each cut from one document, with "
            f"{PASSAGE_LENGTH} tokens behind the {longest} that the dense model reads."
        )
    if made is not None:
        found |= {"passages": len(made.passages), "passage_texts": len(made.texts)}
        cut = torch.cat([made.texts[:, : longest - 1], made.texts[:, -1:]], 1)
        tables = {name: (embed(made.passages), embed(made.texts)) for name, embed in models.items()}
        tables["dense_cut"] = tables["dense"][0], models["dense"](cut)
        tables["tfidf"] = tfidf_tables(tokenizer, made)
        for name, (queries, keys) in tables.items():
            found[f"{name}_passage_recall_at_1"] = recall(queries, keys, made.sources)
    return found


def tfidf_tables(tokenizer: PreTrainedTokenizerBase, made: Passages) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the TF-IDF of passages and texts, weighted by the texts, as tables with a column for each word."""
    # without the frame, but with tokens for unknown words, or a text of those alone would have no words
    passages, texts = (tokenizer.batch_decode(blocks[:, 1:-1]) for blocks in (made.passages, made.texts))
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=WORD).fit(texts)
    return tuple(torch.from_numpy(vectorizer.transform(rows).toarray()) for rows in (passages, texts))
