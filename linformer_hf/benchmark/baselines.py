"""The models that are measured against each other: Linformer, its dense twin, and other efficient encoders (peers).

All have the same depth, width, heads, vocabulary, longest input and MACs of the MLP, and all Linformers the same k.
Other peers keep the setting that they were published with: 64 landmarks (Nystromformer), windows of 512 (Longformer),
blocks of 64 (BigBird), windows of 128 in two of three layers (ModernBERT). FNet has no heads.
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
PEERS_WITH_K = ("linformer", "lucidrains", "tatp22")
WITHOUT_POOLER = {"add_pooling_layer": False}


class HostModel(nn.Module):
    """A model of Transformers behind the two calls that are measured: with labels and without."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the last hidden states, `(B, N, M)`, or with labels, `(B, N)`, the loss; takes `attention_mask`."""
        if mask and self.model.config.model_type == "fnet":
            raise ValueError("FNet does not support a padding mask")
        if labels is None:
            return self.model(input_ids, **mask).last_hidden_state
        return self.model(input_ids, labels=labels, **mask).loss


class PeerModel(nn.Module):
    """The model of another package, which maps token ids to scores and does not compute a loss."""

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.model.to_logits = head

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the last hidden states, `(B, N, M)`, or with labels, `(B, N)`, the loss; refuses a mask."""
        if mask:
            raise ValueError("this package does not support a padding mask")
        outputs = self.model(input_ids)
        return outputs if labels is None else F.cross_entropy(outputs.float().flatten(0, 1), labels.flatten())


@dataclass(frozen=True)
class MeasuredModel:
    """A model to measure: its name, as `build` takes it, and its k where it has one."""

    name: str
    projected_length: int | None = None

    def __str__(self) -> str:
        return self.name if self.projected_length is None else f"{self.name} k={self.projected_length}"


def build(name: str, config: LinformerConfig, with_head: bool) -> nn.Module:
    """Build a model with the shape that a Linformer's configuration describes.

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
    """Build a model of Transformers.

    Args:
        model_type: The name of its family, as in `AutoConfig.for_model`.
        config: The shape.
        with_head: Build it with its masked-language-model head.
        fields: Fields of its configuration beside those of the shape, or in place of them.
        without_head: Arguments of the class without a head.
        implementation: The attention implementation; None takes the default of Transformers.
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
    """Build the Linformer of the package `linformer`: pre-norm, maps first, a matrix E and a matrix F per layer."""
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
    """Build a BigBird; up to 704 tokens it computes full attention by its own choice."""
    return host_model("big_bird", config, with_head, {"attention_type": "block_sparse"}, WITHOUT_POOLER)


def fnet(config: LinformerConfig, with_head: bool) -> HostModel:
    """Build an FNet, which mixes tokens with a Fourier transform."""
    return host_model("fnet", config, with_head, {}, WITHOUT_POOLER)


def modernbert(config: LinformerConfig, with_head: bool) -> HostModel:
    """Build a ModernBERT; its MLP has three matrices where ours has two, so each is two thirds as wide."""
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
    """Return the last map of a package's model: to the vocabulary, or the identity."""
    return nn.Linear(config.hidden_size, config.vocab_size) if with_head else nn.Identity()


def installed(package: str) -> ModuleType:
    """Import the package of a peer when it is built: it is optional, and one that is missing must not stop others.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        return import_module(package.replace("-", "_"))
    except ImportError as error:
        raise ImportError(f"This peer needs {package}: pip install {package}") from error
