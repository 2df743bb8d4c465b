# Copyright 2026 The linformer_hf authors.
# Licensed under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0
"""What a Linformer is: the fields of its configuration and which of their values fit together."""

from difflib import get_close_matches
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


VERSION = "0.1.0"

PROJECTION_SHARING = ("none", "headwise", "key_value", "layerwise")
PROJECTION_TYPES = ("linear", "mean_pool", "max_pool", "conv")
CLASSIFIER_POOLING = ("cls", "mean")
POSITION_INITS = ("sinusoidal", "normal")
ATTENTION_INITS = ("mimetic", "normal")
# The first of each is the default; poolings have no weights to initialize.
PROJECTION_INITS = {
    "linear": ("window", "folded", "normal"),
    "conv": ("pick", "window", "normal"),
    "mean_pool": (),
    "max_pool": (),
}

SHAPING_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "projected_length",
    "projection_sharing",
    "projection_type",
)

# Fields that the host does not know under other names, so that a near miss is a slip.
OWN_FIELDS = (
    "max_position_embeddings",
    "projected_length",
    "projection_sharing",
    "projection_type",
    "position_init",
    "attention_init",
    "projection_init",
    "sparse_prediction",
    "classifier_pooling",
    "classifier_activation",
)

# Every checkpoint names all heads, so that any of them loads from a folder saved by any other.
AUTO_MAP = {
    "AutoConfig": "configuration_linformer.LinformerConfig",
    "AutoModel": "modeling_linformer.LinformerModel",
    "AutoModelForPreTraining": "modeling_linformer.LinformerForMaskedLM",
    "AutoModelForMaskedLM": "modeling_linformer.LinformerForMaskedLM",
    "AutoModelForSequenceClassification": "modeling_linformer.LinformerForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_linformer.LinformerForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_linformer.LinformerForQuestionAnswering",
    "AutoModelForMultipleChoice": "modeling_linformer.LinformerForMultipleChoice",
}


@strict
class LinformerConfig(PreTrainedConfig):
    """Describe a Linformer encoder (Wang et al. 2020, arXiv 2006.04768) in RoBERTa's words.

    Fields that RoBERTa has keep its name, meaning and default, with one exception: `max_position_embeddings` is
    exactly n, the longest input in tokens, at positions 0 to n - 1.

    Args:
        max_position_embeddings: The paper's n: longest input in tokens, rows of the position table and columns of
            the projections E and F.
        projected_length: The paper's k: slots that keys and values are compressed into. One number for all layers,
            or a list of numbers from the first layer on, of which the last holds for all further layers:
            `[256, 64]` is 256 in the first layer and 64 in the others (the paper's non-uniform projected dimension).
        projection_sharing: Who shares a projection (paper, section 4). `"none"`: every head of every layer has its
            own E and F. `"headwise"`: one E and one F a layer. `"key_value"`: one E = F a layer. `"layerwise"`: one
            matrix for the whole model; a layer with a smaller k reads its first rows.
        projection_type: How N tokens become k slots. `"linear"`: learned matrices. `"mean_pool"` and `"max_pool"`:
            windows of n / k tokens. `"conv"`: a depthwise convolution over those windows, kernel = stride.
        position_init: How the position table of a new model starts. `"sinusoidal"`: sines and cosines (Vaswani et al.
            2017), so that neighbours are alike from the first step on. `"normal"`: as RoBERTa's.
        attention_init: How query and key maps of a new model start. `"mimetic"`: alike, so that tokens attend to what
            resembles them (Trockman and Kolter 2023, arXiv 2305.09828). `"normal"`: as RoBERTa's.
        projection_init: How the projections of a new model start. For matrices `"window"`, in which each slot
            averages a window of n / k tokens; `"folded"`, in which token j goes to slot j mod k; or `"normal"`, the
            paper's N(0, 1/n). For convolutions `"pick"`, in which channel c reads token c mod W of a window of W;
            `"window"`, the mean of the window; or `"normal"`, N(0, 1/W). None takes `"pick"` for convolutions and
            `"window"` for matrices, but `"folded"` where layers with different k share one matrix.
        sparse_prediction: With labels, compute the masked-language-model head at labelled positions only. The loss
            is the same; `logits` then has one row a label, `(labels, vocabulary)`.
        classifier_pooling: What represents a sequence: `"cls"`, its first real token, or `"mean"`, the mean of them.
        classifier_activation: Activation of the heads that classify or choose: RoBERTa's tanh, or another that the
            host names, as the heads of DistilBERT (relu) and ELECTRA (gelu) have it.
        classifier_dropout: Dropout of the classification heads; None takes `hidden_dropout_prob`.
        pad_token_id: Its word embedding starts at zero. None means that there is none.
        auto_map: Where a checkpoint's own code lies for `trust_remote_code`; filled in by itself.
        linformer_version: The version of linformer_hf that writes the configuration; filled in by itself.

    Raises:
        ValueError: If values do not fit together; the message names field, value and what is allowed.
    """

    model_type = "linformer"

    vocab_size: int = 50265
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    projected_length: int | list[int] = 128
    projection_sharing: str = "layerwise"
    projection_type: str = "linear"
    position_init: str = POSITION_INITS[0]
    attention_init: str = ATTENTION_INITS[0]
    projection_init: str | None = None
    sparse_prediction: bool = False
    classifier_pooling: str = "cls"
    classifier_activation: str = "tanh"
    classifier_dropout: float | int | None = None
    pad_token_id: int | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = True
    is_decoder: bool = False
    auto_map: dict | None = None
    linformer_version: str | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        refuse_newer(self.linformer_version)
        refuse_misspelt(kwargs)
        self.linformer_version = VERSION
        self.auto_map = {**AUTO_MAP, **(self.auto_map or {})}
        super().__post_init__(**kwargs)
        self.validate_linformer()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "LinformerConfig":
        """Make a configuration from what a config.json holds, as the host does.

        Raises:
            ValueError: If a field that decides the shape of the weights is missing; its default would be a guess.
        """
        missing = [name for name in SHAPING_FIELDS if name not in config_dict and name not in kwargs]
        if missing:
            raise ValueError(f"The configuration lacks {', '.join(missing)}; take the config.json of the weights.")
        return super().from_dict(config_dict, **kwargs)

    @property
    def projected_lengths(self) -> list[int]:
        """The k of each layer, from the first to the last."""
        if isinstance(self.projected_length, int):
            return [self.projected_length] * self.num_hidden_layers
        lengths = list(self.projected_length)
        return lengths + lengths[-1:] * (self.num_hidden_layers - len(lengths))

    def validate_linformer(self) -> None:
        """Check that the values fit together.

        Raises:
            ValueError: At the first field that does not, with its value and what is allowed.
        """
        for field, allowed in (
            ("projection_sharing", PROJECTION_SHARING),
            ("projection_type", PROJECTION_TYPES),
            ("position_init", POSITION_INITS),
            ("attention_init", ATTENTION_INITS),
            ("classifier_pooling", CLASSIFIER_POOLING),
        ):
            if getattr(self, field) not in allowed:
                raise ValueError(f"`{field}` is {getattr(self, field)!r}; it must be one of {', '.join(allowed)}.")
        for field in ("vocab_size", "hidden_size", "num_attention_heads", "max_position_embeddings"):
            if getattr(self, field) < 1:
                raise ValueError(f"`{field}` is {getattr(self, field)}; it must be at least 1.")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"`hidden_size` is {self.hidden_size}, which `num_attention_heads` = {self.num_attention_heads} does "
                "not divide; choose a width that is a multiple of the heads."
            )
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(
                f"`pad_token_id` is {self.pad_token_id}; it must lie in the vocabulary, 0 to {self.vocab_size - 1}, "
                "or be None. Take it from the tokenizer."
            )
        if self.is_decoder:
            raise ValueError(
                "`is_decoder` is True, but a Linformer cannot decode: every slot mixes all positions, so a token "
                "would see its future. Use it as an encoder, or take a causal model for generation."
            )
        self._validate_projected_length()
        self._validate_projection_init()

    def _validate_projected_length(self) -> None:
        longest = self.max_position_embeddings
        lengths = self.projected_lengths
        if len(lengths) != self.num_hidden_layers:
            raise ValueError(
                f"`projected_length` lists {len(lengths)} numbers for `num_hidden_layers` = {self.num_hidden_layers}; "
                "give at most one a layer, of which the last holds for further layers, or a single number for all."
            )
        for length in lengths:
            if not 1 <= length <= longest:
                raise ValueError(
                    f"`projected_length` is {self.projected_length}; each must lie between 1 and "
                    f"`max_position_embeddings` = {longest}."
                )
            if self.projection_type != "linear" and longest % length:
                raise ValueError(
                    f"`projected_length` is {self.projected_length}, but `projection_type` = {self.projection_type!r} "
                    f"needs windows of equal length: each must divide `max_position_embeddings` = {longest}."
                )
        if self.projection_type == "conv" and self.projection_sharing == "layerwise" and len(set(lengths)) > 1:
            raise ValueError(
                f"`projected_length` is {self.projected_length}, but with `projection_type` = 'conv' and "
                "`projection_sharing` = 'layerwise' all layers share one kernel of n / k tokens: give one number, or "
                "share by 'key_value'."
            )

    def _validate_projection_init(self) -> None:
        allowed = PROJECTION_INITS[self.projection_type]
        if self.projection_init is None or not allowed:
            return
        if self.projection_init not in allowed:
            raise ValueError(
                f"`projection_init` is {self.projection_init!r}; with `projection_type` = {self.projection_type!r} it "
                f"must be one of {', '.join(allowed)}, or None for the default."
            )
        is_shared = self.projection_type == "linear" and self.projection_sharing == "layerwise"
        if self.projection_init == "window" and is_shared and len(set(self.projected_lengths)) > 1:
            raise ValueError(
                f"`projected_length` is {self.projected_length}, but with `projection_sharing` = 'layerwise' a layer "
                "with a smaller k reads the first rows of the one matrix, and with `projection_init` = 'window' those "
                "hold the beginning of a text alone: share by 'key_value', or give one number."
            )


def refuse_newer(version: str | None) -> None:
    """Refuse what a newer linformer_hf has written; patch releases keep the format.

    Raises:
        ValueError: With both versions and the repair.
    """
    if version and [int(part) for part in version.split(".")[:2]] > [int(part) for part in VERSION.split(".")[:2]]:
        raise ValueError(
            f"This checkpoint was saved by linformer_hf {version}; this is {VERSION}. Update the package with `pip "
            "install --upgrade linformer_hf`."
        )


def refuse_misspelt(unknown: dict[str, Any]) -> None:
    """Refuse a field that is all but one of ours. The host keeps any name, which would then have no effect.

    Raises:
        ValueError: With the field and the one that may be meant.
    """
    for name in unknown:
        if meant := get_close_matches(name, OWN_FIELDS, n=1, cutoff=0.8):
            raise ValueError(f"`{name}` is no field of a Linformer; `{meant[0]}` may be meant.")


__all__ = ["LinformerConfig"]
