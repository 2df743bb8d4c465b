"""Linformers with a different k in each layer, and the RoBERTa of the same shape, to count what they cost."""

from conftest import tiny_config
from transformers import RobertaConfig


BATCH = 3


def mixed_config(projection_type, projection_sharing, **fields):
    """Describe a model whose layers have different k, where its kind allows that."""
    one_kernel = (projection_type, projection_sharing) == ("conv", "layerwise")
    lengths = {"projected_length": 8 if one_kernel else [8, 4]}
    kind = {"projection_type": projection_type, "projection_sharing": projection_sharing}
    return tiny_config(**(kind | lengths | fields))


def with_attention(config, implementation):
    config._attn_implementation = implementation
    return config


def dense_twin(model_class, implementation="eager", **fields):
    """Build the RoBERTa that has the shape of `tiny_config`."""
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    config = RobertaConfig(
        **{name: getattr(tiny_config(), name) for name in names},
        max_position_embeddings=34,
        type_vocab_size=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation=implementation,
    )
    return model_class(config, **fields)


def labels_for(input_ids):
    """Label the first three tokens of each text."""
    labels = input_ids.clone()
    labels[:, 3:] = -100
    return labels
