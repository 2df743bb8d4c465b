"""A checkpoint that is looked at: how it loads, what it attends to in a text, what its slots read, what it answers.

Letters: H heads, N tokens, K columns of a map (N of a dense model, slots of a Linformer).
"""

import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..analysis.singular_values import attention_maps
from ..common.heads import MASKED_LM, NO_HEAD, SEQUENCE_CLASSIFICATION, Head, head_of_checkpoint
from ..common.loading import check_tokenizer, model_length
from ..configuration_linformer import LinformerConfig
from ..data.blocks import train_tokenizer
from ..data.texts import manual_topics
from ..modeling_linformer import LinformerForMaskedLM, LinformerModel
from .pictures import metric


UNTRAINED = "untrained"  # stands for the small model that needs no files
CACHED_MODELS = 2
CACHED_TEXTS = 8
MOST_CHARACTERS = 10_000
MOST_TOKENS = 128
ANSWERS = 8
MASKS = ("[MASK]", "<mask>")  # what may be written for a hidden word, whatever the tokenizer calls it


@dataclass(frozen=True)
class Checkpoint:
    """A model that returns its attention maps, in evaluation mode, and its tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

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


@dataclass(frozen=True)
class Attended:
    """What a model attends to in a text.

    Args:
        tokens: The text of each token.
        is_cut: Whether the text went on.
        maps: A map for each layer, `(H, N, K)`.
    """

    tokens: list[str]
    is_cut: bool
    maps: list[torch.Tensor]


@lru_cache(maxsize=CACHED_MODELS)
def load_checkpoint(name: str) -> Checkpoint:
    """Load a model with the head that it names, and its tokenizer; code and pickles that lie beside it are not run.

    Args:
        name: A folder, a repository of the Hub, or `UNTRAINED`.

    Raises:
        ValueError: If it does not load, with the reason.
    """
    if name == UNTRAINED:
        return untrained_checkpoint()
    if not name:
        raise ValueError("No checkpoint is named; write a folder, or a repository of the Hub as in you/my-linformer.")
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        model = head_of_checkpoint(config.architectures).auto_class.from_pretrained(
            name,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation="eager",
            dtype=torch.float32,
        )
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        check_tokenizer(tokenizer, model, name)
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise ValueError(
            f"{name} does not load: {reason} Name a folder, or a repository of the Hub, with an encoder, its weights "
            "in safetensors and its tokenizer."
        ) from error
    return Checkpoint(name, model.eval(), tokenizer)


def describe(name: str) -> str:
    """Say in a sentence what a checkpoint is."""
    checkpoint = load_checkpoint(name)
    config = checkpoint.model.config
    size = f"{metric(checkpoint.model.num_parameters())} parameters"
    if name == UNTRAINED:
        start = "**An untrained Linformer**, made when the page started, so that its maps and answers are chance"
    else:
        start = f"**{name}**, a {'Linformer' if checkpoint.is_linformer else config.model_type}"
    if not checkpoint.is_linformer:
        return f"{start}; {size}."
    slots = ", ".join(map(str, dict.fromkeys(config.projected_lengths)))
    return f"{start}; n = {config.max_position_embeddings}, k = {slots}, {size}."


def untrained_checkpoint() -> Checkpoint:
    """Make a small Linformer from nothing, with a tokenizer learned from the manual that every Python carries."""
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


def check_text(text: str) -> None:
    """Refuse a text that is empty or too long to be read here.

    Raises:
        ValueError: With what is allowed.
    """
    if not text.strip():
        raise ValueError("The text is empty; write a sentence.")
    if len(text) > MOST_CHARACTERS:
        raise ValueError(
            f"The text has {len(text):,} characters; this page reads up to {MOST_CHARACTERS:,}. Shorten it."
        )


@lru_cache(maxsize=CACHED_TEXTS)
def attend(name: str, text: str) -> Attended:
    """Read a text and keep what the model attends to.

    Args:
        name: As in `load_checkpoint`.
        text: Up to `MOST_CHARACTERS` characters, of which the first `MOST_TOKENS` tokens are read.

    Raises:
        ValueError: If text or checkpoint are refused, or the model returns no maps.
    """
    check_text(text)
    checkpoint = load_checkpoint(name)
    ids, is_cut = encode(checkpoint, text)
    maps = attention_maps(checkpoint.model, ids, torch.ones_like(ids))
    tokens = [readable(checkpoint.tokenizer, token) for token in ids[0].tolist()]
    return Attended(tokens, is_cut, [layer[0] for layer in maps])


def encode(checkpoint: Checkpoint, text: str) -> tuple[torch.Tensor, bool]:
    """Turn the beginning of a text into token ids, `(1, N)`, and tell whether the text went on."""
    model = checkpoint.model
    # a model without a table of positions reads any length, and XLNet says so by -1
    bounded = getattr(model.config, "max_position_embeddings", -1) > 0
    longest = min(MOST_TOKENS, model_length(model)) if bounded else MOST_TOKENS
    encoded = checkpoint.tokenizer(text, verbose=False)["input_ids"]
    cut = checkpoint.tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")["input_ids"]
    return cut, len(encoded) > cut.shape[1]


def readable(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Write a token so that it can be seen."""
    text = tokenizer.decode([token])
    return text.strip() or ("↵" if "\n" in text else "␣")


def slot_weights(checkpoint: Checkpoint, layer: int, head: int, side: str, num_tokens: int) -> torch.Tensor:
    """Return with which weight each slot reads each position.

    Args:
        checkpoint: A Linformer.
        layer: From 0.
        head: From 0; it matters with `projection_sharing="none"` only.
        side: `"keys"` for E, `"values"` for F.
        num_tokens: N.

    Returns:
        `(K, N)`. Of pooling and convolution, 1 for each token in the slot's window.

    Raises:
        ValueError: If the checkpoint has no slots.
    """
    if not checkpoint.is_linformer:
        raise ValueError(
            f"{checkpoint.name} is a {checkpoint.model.config.model_type}, which has no slots: every token reads "
            "every token. Choose a Linformer."
        )
    body: LinformerModel = checkpoint.model.base_model
    attention = body.layers[layer].attention
    if body.config.projection_type != "linear":
        windows = torch.arange(num_tokens) // attention.window
        return (windows == torch.arange(attention.projected_length)[:, None]).float()
    shared_weight = None if body.projection is None else body.projection()
    weight = attention.projection_weights(shared_weight)[("keys", "values").index(side)]
    return (weight[head] if weight.dim() == 3 else weight)[:, :num_tokens].detach()


def strongest_tokens(weights: torch.Tensor, tokens: list[str]) -> list[tuple[int, str, float]]:
    """List the tokens that a slot reads most, by the size of their weights, `(N,)`: position, text and weight."""
    order = weights.abs().argsort(descending=True, stable=True)[:ANSWERS].tolist()
    return [(position, tokens[position], weights[position].item()) for position in order if weights[position] != 0]


@torch.no_grad()
def answer(checkpoint: Checkpoint, text: str) -> dict[str, float]:
    """Let a model do what its head is for: fill the mask, or classify.

    Args:
        checkpoint: A model for masked words or for classes.
        text: With one `[MASK]` or `<mask>` to fill, or any to classify.

    Returns:
        The likeliest answers with their probabilities, likeliest first; of a regression, the number.

    Raises:
        ValueError: If the head is another, the text is refused, or it does not hold exactly one mask.
    """
    check_text(text)
    if checkpoint.head == MASKED_LM:
        return fill_mask(checkpoint, text)
    if checkpoint.head == SEQUENCE_CLASSIFICATION:
        return classify(checkpoint, text)
    head = "no head" if checkpoint.head is NO_HEAD else f"the head {checkpoint.head.name}"
    raise ValueError(
        f"{checkpoint.name} has {head}; to try one here, choose a checkpoint that fills masks or classifies."
    )


def fill_mask(checkpoint: Checkpoint, text: str) -> dict[str, float]:
    """Return the likeliest words for the one mask in a text."""
    tokenizer = checkpoint.tokenizer
    if tokenizer.mask_token is None:
        raise ValueError(f"The tokenizer of {checkpoint.name} has no mask token, so it has no word to guess.")
    for mask in MASKS:
        text = text.replace(mask, tokenizer.mask_token)
    ids, is_cut = encode(checkpoint, text)
    places = (ids[0] == tokenizer.mask_token_id).nonzero().flatten().tolist()
    if len(places) != 1:
        where = f"The first {ids.shape[1]} tokens hold" if is_cut else "The text holds"
        raise ValueError(f"{where} {len(places)} masks; write [MASK] for exactly one word.")
    probabilities, words = checkpoint.model(ids).logits[0, places[0]].softmax(-1).topk(ANSWERS)
    named = {}
    for word, probability in zip(words.tolist(), probabilities.tolist()):
        named.setdefault(readable(tokenizer, word), probability)
    return named


def classify(checkpoint: Checkpoint, text: str) -> dict[str, float]:
    """Return the likeliest classes of a text."""
    config = checkpoint.model.config
    logits = checkpoint.model(encode(checkpoint, text)[0]).logits[0]
    if config.num_labels > 1:
        several = config.problem_type == "multi_label_classification"
        logits = logits.sigmoid() if several else logits.softmax(-1)
    found, order = logits.topk(min(ANSWERS, config.num_labels))
    return {config.id2label[index]: value for index, value in zip(order.tolist(), found.tolist())}
