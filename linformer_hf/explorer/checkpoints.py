"""A checkpoint that the page shows: a model that returns its attention maps, and its tokenizer.

Letters: H heads, N tokens, K columns of a map (N of a dense model, slots of a Linformer).
"""

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..analysis.maps import attention_maps
from ..common.heads import NO_HEAD, Head, head_of_checkpoint
from ..common.loading import check_tokenizer, model_length
from ..configuration_linformer import LinformerConfig
from ..conversion.companion_files import local_folder
from ..conversion.embeddings import TextEmbedding, read_embedding
from ..data.library_sample import manual_topics
from ..data.tokenizers import train_tokenizer
from ..modeling_linformer import LinformerForMaskedLM
from .drawing import metric


UNTRAINED = "untrained"  # the name of the small model that needs no files
MOST_CHARACTERS = 10_000
MOST_TOKENS = 128  # of a text that are read
CACHED_TEXTS = 8  # of each checkpoint, whose maps are kept


@dataclass(frozen=True)
class TokenizedText:
    """The tokens of a text that are read.

    Args:
        input_ids: Token ids, `(1, N)`.
        tokens: The text of each token.
        is_cut: Whether the text went on.
    """

    input_ids: torch.Tensor
    tokens: list[str]
    is_cut: bool


@dataclass(eq=False)
class Checkpoint:
    """A model with its tokenizer.

    Args:
        name: What visitors call it.
        model: In evaluation mode, with eager attention, which returns its maps.
        tokenizer: Its `model_max_length` becomes what the page reads.
        embedding: How a model without a head embeds a text; None if it has one, or embeds in a way that is not known.
        attend: From a text to its attention maps, one `(H, N, K)` a layer; those of the last texts are kept, so that
            dragging a slider does not run the model.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    embedding: TextEmbedding | None = None
    attend: Callable[[str], list[torch.Tensor]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        model, tokenizer = self.model, self.tokenizer
        # a model without a table of positions reads any length, and XLNet says so by -1
        is_bounded = getattr(model.config, "max_position_embeddings", -1) > 0
        tokenizer.model_max_length = min(MOST_TOKENS, model_length(model)) if is_bounded else MOST_TOKENS

        @lru_cache(maxsize=CACHED_TEXTS)
        def attend(text: str) -> list[torch.Tensor]:
            input_ids = tokenize(tokenizer, text).input_ids
            return [layer[0] for layer in attention_maps(model, input_ids, torch.ones_like(input_ids))]

        self.attend = attend

    @property
    def head(self) -> Head:
        """The head, as in `common.heads`."""
        return head_of_checkpoint(self.model.config.architectures)

    @property
    def is_linformer(self) -> bool:
        """Whether it compresses tokens into slots."""
        return self.model.config.model_type == "linformer"

    @property
    def shape(self) -> tuple[int, int]:
        """How many layers and heads it has."""
        return self.model.config.num_hidden_layers, self.model.config.num_attention_heads

    @property
    def num_slots(self) -> int:
        """The largest k of its layers; 1 of a dense model."""
        return max(self.model.config.projected_lengths) if self.is_linformer else 1

    @property
    def num_bytes(self) -> int:
        """How much memory its weights take."""
        return sum(weight.numel() * weight.element_size() for weight in self.model.parameters())


def load_checkpoint(name: str, folder: str | Path | None = None, **loading: Any) -> Checkpoint:
    """Load a model with the head that it names, and its tokenizer; code and pickles that lie beside it are not run.

    Args:
        name: A folder, a repository on the Hub, or `UNTRAINED`.
        folder: Where its files lie, if elsewhere.
        **loading: More of what `from_pretrained` takes.

    Raises:
        ValueError: If it does not load, with the reason.
    """
    if name == UNTRAINED:
        return untrained_checkpoint()
    source = name if folder is None else folder
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **loading)
        head = head_of_checkpoint(config.architectures)
        model = head.auto_class.from_pretrained(
            source,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation="eager",
            dtype=torch.float32,
            **loading,
        )
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **loading)
        check_tokenizer(tokenizer, model, name)
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError, StrictDataclassError) as error:
        raise ValueError(
            f"{name} does not load: {first_line(error)} A checkpoint needs an encoder, its weights in safetensors, "
            "and its tokenizer."
        ) from error
    return Checkpoint(name, model.eval(), tokenizer, find_embedding(str(source)) if head == NO_HEAD else None)


def find_embedding(source: str) -> TextEmbedding | None:
    """Read how a model embeds a text; None if its files do not say, or say what is not supported."""
    folder = local_folder(source)
    try:
        return None if folder is None else read_embedding(folder)
    except (OSError, ValueError):
        return None


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, cut to what a page has room for."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def untrained_checkpoint() -> Checkpoint:
    """Make a small Linformer with random weights, and a tokenizer learned from the manual that Python carries."""
    topics = manual_topics(Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py"))
    tokenizer = train_tokenizer(topics, vocab_size=2048, max_length=MOST_TOKENS)
    config = LinformerConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=MOST_TOKENS,
        projected_length=16,
        architectures=["LinformerForMaskedLM"],
        attn_implementation="eager",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LinformerForMaskedLM(config)
    return Checkpoint(UNTRAINED, model.eval(), tokenizer)


def describe(checkpoint: Checkpoint) -> str:
    """Say in a sentence what a checkpoint is."""
    config = checkpoint.model.config
    size = f"{metric(checkpoint.model.num_parameters())} parameters"
    if checkpoint.name == UNTRAINED:
        start = "**An untrained Linformer** with random weights: its maps and answers mean nothing"
    else:
        start = f"**{checkpoint.name}**: {'Linformer' if checkpoint.is_linformer else config.model_type}"
    if not checkpoint.is_linformer:
        return f"{start}; {size}."
    slots = ", ".join(map(str, dict.fromkeys(config.projected_lengths)))
    return f"{start}; n = {config.max_position_embeddings}, k = {slots}, {size}."


def check_text(text: str) -> None:
    """Refuse a text that is empty or too long for the page.

    Raises:
        ValueError: With what is allowed.
    """
    if not text.strip():
        raise ValueError("The text is empty; write a sentence.")
    if len(text) > MOST_CHARACTERS:
        raise ValueError(
            f"The text has {len(text):,} characters; this page reads up to {MOST_CHARACTERS:,}. Shorten it."
        )


def tokenize(tokenizer: PreTrainedTokenizerBase, text: str) -> TokenizedText:
    """Turn the beginning of a text into tokens, at most `model_max_length` of them.

    Raises:
        ValueError: If the text is empty or too long.
    """
    check_text(text)
    whole = tokenizer(text, verbose=False)["input_ids"]
    input_ids = tokenizer(text, truncation=True, return_tensors="pt")["input_ids"]
    tokens = [readable(tokenizer.decode([token])) for token in input_ids[0].tolist()]
    return TokenizedText(input_ids, tokens, len(whole) > len(tokens))


def readable(token: str) -> str:
    """Write the text of a token so that white space can be seen."""
    return token.strip() or ("↵" if "\n" in token else "␣")
