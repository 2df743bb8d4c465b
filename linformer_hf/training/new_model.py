"""A new model for pretraining: its configuration, and the initialization that a dense twin shares with it."""

import ast
from collections.abc import Mapping
from typing import Any

import torch
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..common.loading import model_length
from ..common.options import refuse_unused
from ..configuration_linformer import LinformerConfig
from ..modeling_linformer import mimetic_query_key, sinusoidal_positions


LENGTH = 512
TOKENIZERS_OWN = ("pad_token_id", "bos_token_id", "eos_token_id")
FIELDS = {"max_seq_length": "max_position_embeddings"}  # options that are called otherwise than their field


def new_config(
    tokenizer: PreTrainedTokenizerBase,
    model_type: str | None,
    max_seq_length: int | None,
    projected_length: list[int] | None,
    projection: Mapping[str, str | None],
    config_overrides: str | None,
) -> PreTrainedConfig:
    """Describe a new model.

    Args:
        tokenizer: Its size and its special tokens are the model's.
        model_type: The family. None means a Linformer.
        max_seq_length: n in tokens. None means 512.
        projected_length: k of a Linformer: one number, or one per layer. None means the default.
        projection: Other options of a Linformer, by the names of their fields; None where one was not given.
        config_overrides: Further fields, as in `hidden_size=128,num_hidden_layers=4`; they win over defaults.

    Raises:
        ValueError: If the family is unknown, an option and an override say the same field, or fields do not fit
            together.
    """
    model_type = model_type or LinformerConfig.model_type
    is_one = projected_length is not None and len(projected_length) == 1
    projection = {"projected_length": projected_length[0] if is_one else projected_length, **projection}
    if model_type != LinformerConfig.model_type:
        refuse_unused(projection, f"with --model_type {model_type}, which has no projections")
    options = {"max_seq_length": max_seq_length, **projection}
    overridden_values = read_overrides(config_overrides, options)
    # read against the defaults first, because the fields must fit together when the configuration is made
    overridden = AutoConfig.for_model(model_type)
    if type(overridden) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise ValueError(f"--model_type is {model_type!r}, of which there is no model for masked words.")
    override(overridden, overridden_values)
    fields = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": max_seq_length or LENGTH,
        **{name: getattr(tokenizer, name) for name in TOKENIZERS_OWN},
        **{name: value for name, value in projection.items() if value is not None},
    }
    fields = {name: value for name, value in fields.items() if name not in overridden_values}
    config = type(overridden)(**{**overridden.to_diff_dict(), **fields})
    if "max_position_embeddings" in fields:
        with torch.device("meta"):
            unread = config.max_position_embeddings - model_length(AutoModelForMaskedLM.from_config(config))
        config.max_position_embeddings += unread  # RoBERTa's table has rows before the first position
    return config


def read_overrides(config_overrides: str | None, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that are overridden, as they are written.

    Args:
        config_overrides: As in `hidden_size=128,num_hidden_layers=4`.
        options: Other options that say fields, None where one was not given.

    Raises:
        ValueError: If an override is none, says what another option says, or is the tokenizer's to say.
    """
    pairs = [pair.partition("=") for pair in config_overrides.split(",")] if config_overrides else []
    if bad := next((name for name, equals, _ in pairs if not equals), None):
        raise ValueError(f"--config_overrides has {bad!r}; it must name fields as in hidden_size=128.")
    values = {name.strip(): value.strip() for name, _, value in pairs}
    for option, value in options.items():
        field = FIELDS.get(option, option)
        if value is not None and field in values:
            shown = " ".join(map(str, value)) if isinstance(value, list) else value
            raise ValueError(
                f"--{option} is {shown}, and --config_overrides says {field}={values[field]}; give one of them."
            )
    for name in TOKENIZERS_OWN:
        if name in values:
            raise ValueError(f"--config_overrides says {name}={values[name]}, which the tokenizer says; leave it out.")
    return values


def override(config: PreTrainedConfig, values: Mapping[str, str]) -> None:
    """Set fields of a configuration from strings, each as what its default is.

    Args:
        config: With its defaults. A default of None says nothing of the type, which the string then says.
        values: The fields as they are written.

    Raises:
        ValueError: If there is no such field, or the value cannot be read.
    """
    for name, value in values.items():
        if hasattr(config, name) and getattr(config, name) is None:
            try:
                setattr(config, name, ast.literal_eval(value))
            except (ValueError, SyntaxError):
                setattr(config, name, value)
        else:
            config.update_from_string(f"{name}={value}")


@torch.no_grad()
def initialize_like_linformer(model: PreTrainedModel) -> None:
    """Start the position table and the query and key maps of a new dense model as a new Linformer's, to compare both.

    Args:
        model: A BERT, RoBERTa or another one with `query` and `key` in each attention.

    Raises:
        ValueError: If its attentions have other names, or it has no table of positions.
    """
    config = model.config
    attentions = [
        module for module in model.base_model.modules() if hasattr(module, "query") and hasattr(module, "key")
    ]
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    if not attentions or table is None:
        raise ValueError(
            f"--linformer_init does not support --model_type {config.model_type}: it knows models built like BERT."
        )
    positions = sinusoidal_positions(model_length(model), config.hidden_size, config.initializer_range)
    table.weight[-len(positions) :] = positions  # RoBERTa's table has rows before the first position
    for attention in attentions:
        query, key = mimetic_query_key(config.num_attention_heads, config.hidden_size)
        attention.query.weight.copy_(query)
        attention.key.weight.copy_(key)
