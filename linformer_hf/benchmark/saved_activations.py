"""How many bytes of activations a Linformer and its dense twin save for the backward pass.

The twin is a RoBERTa of equal depth, width, heads and MLP. Every formula takes its shape from the Linformer's
configuration. Letters: B batch, H heads, n tokens, k slots, M model width.
"""

from ..configuration_linformer import LinformerConfig
from .macs import compressions, filled_slots, maps_first


INDEX_BYTES = 8
MASK_BYTES = 4  # of what is added to a score, until it is converted to a smaller dtype
SOFTMAX_BYTES = 4  # of what a fused kernel saves for each query, in float32 whatever the dtype of the others


def activation_bytes(
    config: LinformerConfig,
    num_tokens: int | None = None,
    batch_size: int = 1,
    implementation: str = "sdpa",
    element_size: int = 4,
) -> int:
    """Count the bytes that the forward pass of a Linformer without a head saves for the backward pass.

    Exact for a training step without dropout on a CPU, with one exception: SDPA computes a convolution with
    `projection_sharing="none"` in plain steps and saves more.

    Args:
        config: The model.
        num_tokens: Tokens of each sequence; n by default.
        batch_size: Sequences.
        implementation: `"sdpa"`, which saves one number for each query, or `"eager"`, which saves the attention maps.
        element_size: Bytes of a number: 4 in float32, 2 in bfloat16.
    """
    num_tokens = num_tokens or config.max_position_embeddings
    total = 0
    for length in config.projected_lengths:
        slots = filled_slots(config, length, num_tokens)
        total += layer_bytes(config, num_tokens, slots, batch_size, implementation, element_size)
        total += element_size * batch_size * 2 * slots * config.hidden_size  # keys and values
        total += compression_bytes(config, length, num_tokens, batch_size, element_size)
    if implementation == "sdpa" and config.projection_type == "linear" and num_tokens < config.max_position_embeddings:
        total += mask_bytes(config, element_size)
    indices = batch_size * num_tokens + num_tokens + 1  # words, positions, and one segment for all
    return total + embedding_bytes(config, num_tokens, batch_size, element_size) + indices * INDEX_BYTES


def compression_bytes(
    config: LinformerConfig, projected_length: int, num_tokens: int, batch_size: int, element_size: int
) -> int:
    """Count what the compression of one layer saves: the rows that it maps, before or after it compresses them."""
    width = config.hidden_size
    slots = filled_slots(config, projected_length, num_tokens)
    is_mapped = maps_first(config, projected_length, num_tokens)
    numbers = 0 if is_mapped else slots * width
    others = 0
    if config.projection_type == "linear":
        numbers += num_tokens * width if is_mapped else 0  # the mapped rows
        numbers += config.num_attention_heads * slots * num_tokens if config.projection_sharing == "none" else 0
    elif config.projection_type == "mean_pool":
        others = slots * INDEX_BYTES
    else:
        numbers += slots * (config.max_position_embeddings // projected_length) * width  # whole windows
        if config.projection_type == "max_pool":
            numbers += slots * width
            others = slots
    times = compressions(config, projected_length, num_tokens)
    return times * batch_size * (numbers * element_size + others)


def mask_bytes(config: LinformerConfig, element_size: int) -> int:
    """Count the numbers that texts shorter than n add to the scores of the slots, which a fused kernel saves."""
    lengths = config.projected_lengths
    if config.projection_sharing == "layerwise" and element_size >= MASK_BYTES:
        return max(lengths) * element_size  # all layers read the same numbers
    heads = config.num_attention_heads if config.projection_sharing == "none" else 1
    return sum(lengths) * heads * element_size


def dense_activation_bytes(
    config: LinformerConfig,
    num_tokens: int | None = None,
    batch_size: int = 1,
    implementation: str = "sdpa",
    element_size: int = 4,
) -> int:
    """Count the bytes that the dense twin saves for the backward pass, as `activation_bytes` does."""
    num_tokens = num_tokens or config.max_position_embeddings
    layer = layer_bytes(config, num_tokens, num_tokens, batch_size, implementation, element_size)
    # keys, values, and the output of the activation
    layer += element_size * batch_size * num_tokens * (2 * config.hidden_size + config.intermediate_size)
    indices = 3 * batch_size * num_tokens  # words, positions and segments
    embeddings = embedding_bytes(config, num_tokens, batch_size, element_size) + indices * INDEX_BYTES
    return config.num_hidden_layers * layer + embeddings


def layer_bytes(
    config: LinformerConfig, num_tokens: int, keys: int, batch_size: int, implementation: str, element_size: int
) -> int:
    """Count what a layer saves in both models.

    For each token: six vectors of width M (input, queries, attention output, both inputs of the norms, input of the
    MLP), one of the MLP's width (before the activation), mean and deviation of two norms, and the attention's own.
    """
    tokens = batch_size * num_tokens
    numbers = tokens * (6 * config.hidden_size + config.intermediate_size + 4)
    if implementation == "eager":
        return (numbers + tokens * config.num_attention_heads * keys) * element_size
    return numbers * element_size + tokens * config.num_attention_heads * SOFTMAX_BYTES


def embedding_bytes(config: LinformerConfig, num_tokens: int, batch_size: int, element_size: int) -> int:
    """Count what the embeddings save in both models: the sum that is normalized, and its mean and deviation."""
    return batch_size * num_tokens * (config.hidden_size + 2) * element_size
