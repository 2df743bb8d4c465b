"""Tokenizers: loaded, with an error that names what is missing, or trained on the text."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.decoders import Sequence as DecoderSequence
from tokenizers.decoders import Strip
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Metaspace
from tokenizers.pre_tokenizers import Sequence as PreTokenizerSequence
from tokenizers.processors import RobertaProcessing, TemplateProcessing
from tokenizers.processors import Sequence as ProcessorSequence
from tokenizers.trainers import BpeTrainer
from transformers import (
    AutoTokenizer,
    BertTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
)
from transformers.utils import logging


logger = logging.get_logger(__name__)

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
NEEDED_FOR = {"mask": "mask words", "pad": "make batches of texts of different lengths"}


def load_tokenizer(
    name: str, loading: Mapping[str, Any] | None = None, needs: Sequence[str] = ()
) -> PreTrainedTokenizerBase:
    """Load a tokenizer that puts a token before each text and one behind it.

    A folder with nothing but `vocab.txt` is read as a BERT tokenizer, one with `vocab.json` and `merges.txt` as a
    RoBERTa tokenizer. One that has such tokens and does not add them is changed, so that it does.

    Args:
        name: On the Hub or in a folder.
        loading: What `from_pretrained` is told, as in `{"revision": "main"}`.
        needs: Special tokens that it must have, as in `("mask", "pad")`.

    Raises:
        ValueError: If there is no tokenizer, or it lacks a special token.
    """
    tokenizer = read_tokenizer(name, loading or {})
    for token in needs:
        if getattr(tokenizer, f"{token}_token") is None:
            raise ValueError(
                f"The tokenizer of {name} has no {token} token, so it cannot {NEEDED_FOR[token]}: name another one, "
                f"or add a {token} token with its `add_special_tokens` and save it."
            )
    add_frame(tokenizer)
    return tokenizer


def read_tokenizer(name: str, loading: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """Load a tokenizer as it is, from its description or, where a folder holds none, from its vocabulary.

    Raises:
        ValueError: If there is no tokenizer.
    """
    folder = Path(name)
    files = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    reason = "."
    if not folder.is_dir() or files & {"tokenizer.json", "tokenizer_config.json", "config.json"}:
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, **loading)
            if len(tokenizer) > len(tokenizer.all_special_tokens):
                return tokenizer  # without its files, a known class makes one without words
        except (ValueError, ImportError, KeyError, TypeError) as error:
            reason = f" ({type(error).__name__})."
            if not folder.is_dir():
                raise ValueError(
                    f"The tokenizer of {name} does not load: {str(error).strip().splitlines()[0]}"
                ) from error
    if {"vocab.json", "merges.txt"} <= files:
        return RobertaTokenizer.from_pretrained(name)
    if "vocab.txt" in files:
        return load_word_pieces(folder)
    raise ValueError(
        f"{name} holds no tokenizer that loads{reason} It needs tokenizer.json, vocab.txt, or vocab.json with "
        "merges.txt; save a tokenizer there with its `save_pretrained`, or name another one."
    )


def load_word_pieces(folder: Path) -> BertTokenizer:
    """Load a BERT tokenizer from its vocabulary alone; one with capital letters in it keeps those of a text."""
    words = (folder / "vocab.txt").read_text("utf-8").split("\n")
    is_cased = any(word != word.lower() for word in words if not (word.startswith("[") and word.endswith("]")))
    logger.info(
        f"{folder} holds vocab.txt alone; it is read as a BERT tokenizer, {'cased' if is_cased else 'lower case'}."
    )
    tokenizer = BertTokenizer.from_pretrained(str(folder), do_lower_case=not is_cased)
    missing = [token for token in ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]") if token not in words]
    if missing:
        raise ValueError(f"{folder / 'vocab.txt'} lacks the special tokens {', '.join(missing)}.")
    return tokenizer


def add_frame(tokenizer: PreTrainedTokenizerBase) -> None:
    """Make a tokenizer that adds no tokens to a text put one before it and one behind it, if it has such tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    frame = frame_tokens(tokenizer)
    if backend is None or frame is None or tokenizer("")["input_ids"]:
        return
    start, end = tokenizer.convert_ids_to_tokens(list(frame))
    template = TemplateProcessing(
        single=f"{start}:0 $A:0 {end}:0",
        pair=f"{start}:0 $A:0 {end}:0 $B:1 {end}:1",
        special_tokens=[(start, frame[0]), (end, frame[1])],
    )
    others = [] if backend.post_processor is None else [backend.post_processor]
    backend.post_processor = ProcessorSequence([*others, template])
    logger.info(f"The tokenizer adds no tokens to a text; from now on it puts {start} before it and {end} behind it.")


def frame_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int] | None:
    """Return the ids of the tokens before and behind a text, or None if the tokenizer has none.

    They are those that it adds to a text, or else its `cls` or `bos`, and its `sep` or `eos` token.
    """
    added = tokenizer("")["input_ids"]
    if len(added) == 2:
        return added[0], added[1]
    starts = (tokenizer.cls_token_id, tokenizer.bos_token_id)
    ends = (tokenizer.sep_token_id, tokenizer.eos_token_id)
    start, end = (next((token for token in tokens if token is not None), None) for tokens in (starts, ends))
    return None if start is None or end is None else (start, end)


def find_frame(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Return the ids of the tokens before and behind a text.

    Raises:
        ValueError: If the tokenizer has none.
    """
    frame = frame_tokens(tokenizer)
    if frame is None:
        raise ValueError(
            "The tokenizer has no token for the start or the end of a text: add them, as in "
            "`tokenizer.add_special_tokens({'cls_token': '<s>', 'sep_token': '</s>'})`, and save it."
        )
    return frame


def train_tokenizer(texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE with RoBERTa's special tokens.

    The first word of a text is read as if a blank stood before it, so that words split beforehand are the same tokens
    as in a sentence. Decoding takes one blank away again; a text that begins with blanks comes back with one less.

    Args:
        texts: The documents to learn from.
        vocab_size: Number of tokens, special ones included; at least 261.
        max_length: The longest input of the model, n, in tokens.

    Returns:
        A tokenizer with ids 0 `<s>`, 1 `<pad>`, 2 `</s>`, 3 `<unk>`, 4 `<mask>`.

    Raises:
        ValueError: If the vocabulary has no room for the 256 bytes and the special tokens.
    """
    smallest = 256 + len(SPECIAL)
    if vocab_size < smallest:
        raise ValueError(f"--vocab_size is {vocab_size}; 256 bytes and {len(SPECIAL)} special tokens need {smallest}.")
    mask = AddedToken("<mask>", lstrip=True, special=True)  # takes the blank before it, as a word's first token does
    backend = Tokenizer(BPE())
    # ByteLevel's own `add_prefix_space` would also put a blank behind each mask token, as before the full stop in
    # "is <mask>."; Metaspace can do it where a text begins, and only there
    blank_at_start = Metaspace(replacement=" ", prepend_scheme="first", split=False)
    backend.pre_tokenizer = PreTokenizerSequence([blank_at_start, ByteLevel(add_prefix_space=False)])
    backend.decoder = DecoderSequence([ByteLevelDecoder(), Strip(" ", 1, 0)])
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[*SPECIAL[:-1], mask],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    ids = {token: backend.token_to_id(token) for token in SPECIAL}
    backend.post_processor = RobertaProcessing(("</s>", ids["</s>"]), ("<s>", ids["<s>"]), True, True)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token=mask,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
    )
