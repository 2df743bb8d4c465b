# Copyright 2026 The linformer_hf authors.
# Licensed under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0
"""The configuration of a Linformer: its fields, their defaults, and which values may be combined."""

from difflib import get_close_matches
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


VERSION = "0.2.0"

PROJECTION_SHARING = ("none", "headwise", "key_value", "layerwise")
PROJECTION_TYPES = ("linear", "mean_pool", "max_pool", "conv")
CLASSIFIER_POOLING = ("cls", "mean")
POSITION_INITS = ("sinusoidal", "normal")
ATTENTION_INITS = ("mimetic", "normal")
# The first of each type is its default; pooling has no weights to initialize.
PROJECTION_INITS = {
    "linear": ("window", "folded", "normal"),
    "conv": ("pick", "window", "normal"),
    "mean_pool": (),
    "max_pool": (),
}

# Fields that decide the shapes of the weights.
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

# Fields that only a Linformer has, so that an unknown field with a similar name is taken for a misspelling.
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

# Every checkpoint names all classes, so that each class can load a checkpoint saved by another.
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
    """The configuration of a Linformer encoder (Wang et al. 2020, arXiv 2006.04768), with RoBERTa's field names.

    Fields that RoBERTa has keep its name, meaning and default, with one exception: `max_position_embeddings` is
    exactly n, the longest input in tokens, at positions 0 to n - 1.

    Args:
        max_position_embeddings: The paper's n: the longest input in tokens, the number of rows of the position table
            and of columns of the projections E and F.
        projected_length: The paper's k: the number of slots that keys and values are compressed into. One number for
            all layers, or a list of numbers from the first layer on, the last of which holds for all further layers:
            `[256, 64]` is 256 in the first layer and 64 in the others (the paper's non-uniform projected dimension).
        projection_sharing: What shares a projection (paper, section 4). `"none"`: every head of every layer has its
            own E and F. `"headwise"`: one E and one F per layer. `"key_value"`: one E = F per layer. `"layerwise"`:
            one matrix for the whole model; a layer with a smaller k uses its first rows.
        projection_type: How N tokens become k slots. `"linear"`: learned matrices. `"mean_pool"` and `"max_pool"`:
            windows of n / k tokens. `"conv"`: a depthwise convolution over those windows, kernel = stride.
        position_init: Initialization of the position table. `"sinusoidal"`: sines and cosines (Vaswani et al. 2017),
            so that nearby positions are similar from the first step on. `"normal"`: as in RoBERTa.
        attention_init: Initialization of query and key maps. `"mimetic"`: almost equal to each other, so that tokens
            attend to similar tokens (Trockman and Kolter 2023, arXiv 2305.09828). `"normal"`: as in RoBERTa.
        projection_init: Initialization of the projections. For matrices `"window"`, each slot averages a window of
            n / k tokens; `"folded"`, token j goes to slot j mod k; or `"normal"`, the paper's N(0, 1/n). For
            convolutions `"pick"`, channel c takes token c mod W of a window of W; `"window"`, the mean of the window;
            or `"normal"`, N(0, 1/W). None means `"pick"` for convolutions and `"window"` for matrices, but `"folded"`
            if layers with different k share one matrix.
        sparse_prediction: With labels, compute the masked-language-model head at labelled positions only. The loss
            is the same; `logits` then has one row per label, `(labels, vocabulary)`.
        classifier_pooling: What represents a sequence: `"cls"`, its first real token, or `"mean"`, the mean of its
            real tokens.
        classifier_activation: Activation of the heads for classification and multiple choice: RoBERTa's tanh, or
            another one that transformers knows by name (DistilBERT's heads use relu, ELECTRA's gelu).
        classifier_dropout: Dropout of the classification heads; None means `hidden_dropout_prob`.
        pad_token_id: Id of the padding token; its word embedding is initialized to zero. None if there is none.
        auto_map: Where `trust_remote_code` finds the classes in a checkpoint; set automatically.
        linformer_version: Version of linformer_hf that saves the configuration; set automatically.

    Raises:
        ValueError: If a value is not allowed; the message names the field, the value and what is allowed.
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
        refuse_misspelled(kwargs)
        self.linformer_version = VERSION
        self.auto_map = {**AUTO_MAP, **(self.auto_map or {})}
        super().__post_init__(**kwargs)
        self.validate_linformer()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "LinformerConfig":
        """Make a configuration from the fields of a config.json, as transformers does.

        Raises:
            ValueError: If a field that decides the shapes of the weights is missing; its default may be wrong for
                them.
        """
        missing = [name for name in SHAPING_FIELDS if name not in config_dict and name not in kwargs]
        if missing:
            raise ValueError(f"The configuration lacks {', '.join(missing)}; use the config.json of the weights.")
        return super().from_dict(config_dict, **kwargs)

    @property
    def projected_lengths(self) -> list[int]:
        """The k of each layer, from the first to the last."""
        if isinstance(self.projected_length, int):
            return [self.projected_length] * self.num_hidden_layers
        lengths = list(self.projected_length)
        return lengths + lengths[-1:] * (self.num_hidden_layers - len(lengths))

    def validate_linformer(self) -> None:
        """Check the values, each and in combination.

        Raises:
            ValueError: For the first field that is wrong, with its value and what is allowed.
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
                f"`hidden_size` is {self.hidden_size}; it must be a multiple of `num_attention_heads` = "
                f"{self.num_attention_heads}."
            )
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(
                f"`pad_token_id` is {self.pad_token_id}; it must be in the vocabulary, 0 to {self.vocab_size - 1}, "
                "or None. Take it from the tokenizer."
            )
        if self.is_decoder:
            raise ValueError(
                "`is_decoder` is True, but a Linformer cannot be a decoder: every slot mixes all positions, so a "
                "token would see the future. Use it as an encoder, or use a causal model for generation."
            )
        self._validate_projected_length()
        self._validate_projection_init()

    def _validate_projected_length(self) -> None:
        longest = self.max_position_embeddings
        lengths = self.projected_lengths
        if len(lengths) != self.num_hidden_layers:
            raise ValueError(
                f"`projected_length` lists {len(lengths)} numbers for `num_hidden_layers` = {self.num_hidden_layers}; "
                "give at most one per layer (the last holds for all further layers), or a single number for all."
            )
        for length in lengths:
            if not 1 <= length <= longest:
                raise ValueError(
                    f"`projected_length` is {self.projected_length}; each must be between 1 and "
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
                "use `projection_sharing` = 'key_value'."
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
                "with a smaller k uses the first rows of the shared matrix, which with `projection_init` = 'window' "
                "cover only the beginning of a text: use `projection_sharing` = 'key_value', or give one number."
            )


def refuse_newer(version: str | None) -> None:
    """Refuse a configuration saved by a newer linformer_hf, which may have fields that this version would ignore.

    Only major and minor version count: patch releases do not change the fields.

    Raises:
        ValueError: With both versions and the repair.
    """
    if version and major_and_minor(version) > major_and_minor(VERSION):
        raise ValueError(
            f"This checkpoint was saved by linformer_hf {version}; this is {VERSION}. Update the package with `pip "
            "install --upgrade linformer_hf`."
        )


def major_and_minor(version: str) -> list[int]:
    """Return the first two numbers of a version."""
    return [int(part) for part in version.split(".")[:2]]


def refuse_misspelled(unknown: dict[str, Any]) -> None:
    """Refuse an unknown field with a name similar to one of `OWN_FIELDS`.

    Transformers accepts fields of any name, so a misspelled field would have no effect.

    Raises:
        ValueError: With the field and the similar one.
    """
    for name in unknown:
        similar = get_close_matches(name, OWN_FIELDS, n=1, cutoff=0.8)
        if similar:
            raise ValueError(f"`{name}` is not a field of a Linformer; did you mean `{similar[0]}`?")


__all__ = ["LinformerConfig"]
