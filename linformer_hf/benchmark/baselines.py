"""The models that are measured against each other, and what they read: Linformer, its dense twin, and peers.

All are of one shape. Equal are depth, width, heads, vocabulary, longest input and the multiplies of the MLP.
Linformers have the same k. Others keep the setting that they were published with: 64 landmarks (Nystromformer),
windows of 512 (Longformer), blocks of 64 (BigBird), windows of 128 in two of three layers (ModernBERT). FNet has no
heads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedModel

from ..configuration_linformer import LinformerConfig
from ..modeling_linformer import LinformerForMaskedLM, LinformerModel


DENSE = ("sdpa", "eager")
PEERS = ("lucidrains", "tatp22", "nystromformer", "longformer", "bigbird", "fnet", "modernbert")
HAVE_K = ("linformer", "lucidrains", "tatp22")
LABELLED_SHARE = 0.15
FIRST_WORD = 3  # the ids before it are special
WITHOUT_POOLER = {"add_pooling_layer": False}


class HostModel(nn.Module):
    """A model with the host's signature, behind the two calls that are measured."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the last hidden states, `(B, N, M)`, or with labels, `(B, N)`, the loss; takes `attention_mask`."""
        if mask and self.model.config.model_type == "fnet":
            raise ValueError("FNet takes no mask for padding")
        if labels is None:
            return self.model(input_ids, **mask).last_hidden_state
        return self.model(input_ids, labels=labels, **mask).loss


class PeerModel(nn.Module):
    """A package's own model, which maps token ids to scores, and has no loss."""

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.model.to_logits = head

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the last hidden states, `(B, N, M)`, or with labels, `(B, N)`, the loss; refuses a mask."""
        if mask:
            raise ValueError("this package takes no mask for padding")
        outputs = self.model(input_ids)
        return outputs if labels is None else F.cross_entropy(outputs.float().flatten(0, 1), labels.flatten())


@dataclass(frozen=True)
class Contender:
    """A model to measure: what it is, and its k where it has one."""

    name: str
    projected_length: int | None = None

    def __str__(self) -> str:
        return self.name if self.projected_length is None else f"{self.name} k={self.projected_length}"


def build(name: str, config: LinformerConfig, with_head: bool) -> nn.Module:
    """Build a contender with the shape that a Linformer's configuration describes.

    Args:
        name: `"linformer"`, `"roberta sdpa"`, `"roberta eager"`, or one of `PEERS`.
        config: The shape; n is its longest input.
        with_head: Build it with its own masked-language-model head.

    Returns:
        A module that maps `input_ids`, `(B, N)`, to hidden states, or with `labels` to a loss.

    Raises:
        ImportError: If the package of a peer is not installed.
        ValueError: If a peer cannot have this shape.
    """
    if name == "linformer":
        return HostModel((LinformerForMaskedLM if with_head else LinformerModel)(config))
    if name.startswith("roberta "):
        fields = {"max_position_embeddings": config.max_position_embeddings + 2, "type_vocab_size": 2}
        return host_model("roberta", config, with_head, fields, WITHOUT_POOLER, name.removeprefix("roberta "))
    return PEER_BUILDERS[name](config, with_head)


def host_model(
    model_type: str,
    config: LinformerConfig,
    with_head: bool,
    fields: dict,
    without_head: dict | None = None,
    implementation: str | None = None,
) -> HostModel:
    """Build a model of the host's.

    Args:
        model_type: The host's name for its family.
        config: The shape.
        with_head: Build it with its masked-language-model head.
        fields: What its configuration has besides, or instead.
        without_head: Arguments of the class without a head.
        implementation: How it attends; None leaves it to the host.
    """
    shape = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        **{name: getattr(config, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")},
    }
    described = AutoConfig.for_model(model_type, **(shape | fields))
    if with_head:
        return HostModel(AutoModelForMaskedLM.from_config(described, attn_implementation=implementation))
    return HostModel(AutoModel.from_config(described, attn_implementation=implementation, **(without_head or {})))


def lucidrains(config: LinformerConfig, with_head: bool) -> PeerModel:
    """Build the Linformer of the package `linformer`: pre-norm, maps first, a matrix E and a matrix F a layer."""
    if config.intermediate_size != 4 * config.hidden_size:
        raise ValueError(
            f"its MLP is 4 times as wide as the model, {4 * config.hidden_size}, and cannot be "
            f"{config.intermediate_size}; leave out --intermediate_size"
        )
    model = installed("linformer").LinformerLM(
        num_tokens=config.vocab_size,
        dim=config.hidden_size,
        seq_len=config.max_position_embeddings,
        depth=config.num_hidden_layers,
        k=config.projected_lengths[0],
        heads=config.num_attention_heads,
        dropout=config.hidden_dropout_prob,
    )
    return PeerModel(model, vocabulary_map(config, with_head))


def tatp22(config: LinformerConfig, with_head: bool) -> PeerModel:
    """Build the Linformer of the package `linformer-pytorch`: post-norm, maps first, one matrix for all."""
    model = installed("linformer-pytorch").LinformerLM(
        num_tokens=config.vocab_size,
        input_size=config.max_position_embeddings,
        channels=config.hidden_size,
        dim_k=config.projected_lengths[0],
        dim_ff=config.intermediate_size,
        nhead=config.num_attention_heads,
        depth=config.num_hidden_layers,
        dropout_ff=config.hidden_dropout_prob,
        dropout_tokens=config.hidden_dropout_prob,
        dropout=config.attention_probs_dropout_prob,
        parameter_sharing="layerwise",
    )
    return PeerModel(model, vocabulary_map(config, with_head))


def nystromformer(config: LinformerConfig, with_head: bool) -> HostModel:
    """Build a Nystromformer; its landmarks are at most n, which must be a multiple of them."""
    num_tokens = config.max_position_embeddings
    fields = {"segment_means_seq_len": num_tokens, "num_landmarks": min(64, num_tokens)}
    return host_model("nystromformer", config, with_head, fields)


def longformer(config: LinformerConfig, with_head: bool) -> HostModel:
    """Build a Longformer without global tokens; its position table has two rows for padding."""
    fields = {"max_position_embeddings": config.max_position_embeddings + 2, "attention_window": 512}
    return host_model("longformer", config, with_head, fields, WITHOUT_POOLER)


def bigbird(config: LinformerConfig, with_head: bool) -> HostModel:
    """Build a BigBird; up to 704 tokens it attends to all pairs by itself."""
    return host_model("big_bird", config, with_head, {"attention_type": "block_sparse"}, WITHOUT_POOLER)


def fnet(config: LinformerConfig, with_head: bool) -> HostModel:
    """Build an FNet, which mixes tokens by a Fourier transform."""
    return host_model("fnet", config, with_head, {}, WITHOUT_POOLER)


def modernbert(config: LinformerConfig, with_head: bool) -> HostModel:
    """Build a ModernBERT; its MLP has three matrices for our two, so that each is two thirds as wide."""
    dropout = config.hidden_dropout_prob
    fields = {
        "intermediate_size": config.intermediate_size * 2 // 3,
        "embedding_dropout": dropout,
        "mlp_dropout": dropout,
        "attention_dropout": config.attention_probs_dropout_prob,
        "sparse_prediction": True,
        "cls_token_id": config.bos_token_id,
        "sep_token_id": config.eos_token_id,
    }
    return host_model("modernbert", config, with_head, fields)


PEER_BUILDERS: dict[str, Callable[[LinformerConfig, bool], nn.Module]] = {
    "lucidrains": lucidrains,
    "tatp22": tatp22,
    "nystromformer": nystromformer,
    "longformer": longformer,
    "bigbird": bigbird,
    "fnet": fnet,
    "modernbert": modernbert,
}


def vocabulary_map(config: LinformerConfig, with_head: bool) -> nn.Module:
    """Return what a package's model does last: score the vocabulary, or nothing."""
    return nn.Linear(config.hidden_size, config.vocab_size) if with_head else nn.Identity()


def installed(package: str) -> ModuleType:
    """Import a peer's package. None is an extra of ours, and one that fails must not stop the others.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        return import_module(package.replace("-", "_"))
    except ImportError as error:
        raise ImportError(f"This peer needs {package}: pip install {package}") from error


def make_inputs(
    batch_size: int,
    num_tokens: int,
    vocab_size: int,
    padded_share: float,
    with_labels: bool,
    generator: torch.Generator,
) -> dict[str, torch.Tensor]:
    """Draw a batch of texts.

    Args:
        batch_size: Texts.
        num_tokens: N, the length of the longest.
        vocab_size: Words.
        padded_share: Share of the batch that is padding behind shorter texts.
        with_labels: Label some of the tokens.
        generator: What draws.

    Returns:
        `input_ids`, `(B, N)`, and where asked for `attention_mask` and `labels` of that shape.
    """
    shape = (batch_size, num_tokens)
    inputs = {"input_ids": torch.randint(FIRST_WORD, vocab_size, shape, generator=generator)}
    if padded_share:
        inputs["attention_mask"] = padding_mask(batch_size, num_tokens, padded_share)
    if with_labels:
        is_labelled = torch.rand(shape, generator=generator) < LABELLED_SHARE
        is_labelled[-1, 0] = True  # a tiny batch has one too
        if padded_share:
            is_labelled &= inputs["attention_mask"] != 0
        inputs["labels"] = inputs["input_ids"].masked_fill(~is_labelled, -100)
    return inputs


def padding_mask(batch_size: int, num_tokens: int, padded_share: float) -> torch.Tensor:
    """Return the mask of texts of many lengths, the last of them the longest, whose padding is a share of the batch.

    Lengths beside the longest are a power of evenly spread numbers below 1, whose mean is what is left for them.

    Returns:
        1 for a real token and 0 for padding, `(B, N)`.

    Raises:
        ValueError: If the share is none, or the batch has too few texts for so much padding.
    """
    if not 0 <= padded_share < 1:
        raise ValueError(f"The share of padding is {padded_share}; it must be 0 or more, and below 1.")
    others = batch_size - 1
    left = batch_size * (1 - padded_share) - 1
    if padded_share and left <= 0:
        raise ValueError(
            f"Of {batch_size} texts of up to {num_tokens} tokens no share of {padded_share} can be padding, as the "
            "longest has none; take more texts a batch."
        )
    spread = ((torch.arange(others, dtype=torch.float64) + 0.5) / others) ** (others / left - 1 if others else 0)
    lengths = torch.cat([(num_tokens * spread).round().clamp(min=1), torch.tensor([num_tokens])])
    return (torch.arange(num_tokens) < lengths[:, None]).long()
