"""What a Linformer costs on paper, and its dense twin: parameters, multiplies, and bytes kept for the backward pass.

The twin is a RoBERTa of equal depth, width, heads and MLP; every formula takes it from the Linformer's configuration.
Letters are the paper's: n tokens, k slots, and M model width, I width of the MLP, H heads, V vocabulary.

A multiply is one multiplication with its addition in a matrix product, half of what others count as floating-point
operations. Sums, softmax, norms and look-ups are not counted.
"""

from ..configuration_linformer import LinformerConfig


INDEX_BYTES = 8
SOFTMAX_BYTES = 4  # of what a fused kernel keeps for each query, in float32 whatever the others are in
ROBERTA_PADDING_ROWS = 2  # of its position table, before the first token's


def count_parameters(config: LinformerConfig, with_head: bool = False) -> int:
    """Count the weights of a Linformer.

    Args:
        config: The model.
        with_head: Count the masked-language-model head too; its map to the vocabulary is tied to the word embeddings.
    """
    if config.projection_type == "linear":
        sizes = [length * config.max_position_embeddings for length in config.projected_lengths]
    elif config.projection_type == "conv":
        sizes = [config.max_position_embeddings // length * config.hidden_size for length in config.projected_lengths]
    else:
        sizes = [0]
    if config.projection_sharing == "layerwise":
        projections = max(sizes)
    else:
        projections = sum(sizes) * (1 if config.projection_sharing == "key_value" else 2)
    if config.projection_sharing == "none" and config.projection_type == "linear":
        projections *= config.num_attention_heads
    return encoder_parameters(config, config.max_position_embeddings, with_head) + projections


def dense_parameters(config: LinformerConfig, with_head: bool = False) -> int:
    """Count the weights of the dense twin, which reads as many tokens. Arguments as in `count_parameters`."""
    return encoder_parameters(config, config.max_position_embeddings + ROBERTA_PADDING_ROWS, with_head)


def encoder_parameters(config: LinformerConfig, num_positions: int, with_head: bool) -> int:
    """Count what both have: embeddings, layers and head."""
    width = config.hidden_size
    norm = 2 * width
    square = width * width + width
    embeddings = (config.vocab_size + num_positions + config.type_vocab_size) * width + norm
    mlp = 2 * width * config.intermediate_size + config.intermediate_size + width
    head = square + norm + config.vocab_size
    return embeddings + config.num_hidden_layers * (4 * square + mlp + 2 * norm) + (head if with_head else 0)


def count_multiplies(
    config: LinformerConfig, num_tokens: int | None = None, batch_size: int = 1, num_predictions: int = 0
) -> int:
    """Count the multiplies of a forward pass of a Linformer.

    A layer that compresses first, with E = F, takes 2 n M^2 for queries and output, k n M to compress, 2 k M^2 for
    keys and values, 2 n k M for the attention and 2 n M I for the MLP. With E and F apart it compresses twice. With
    a matrix a head, or fewer tokens than slots, keys and values are mapped first: 4 n M^2 in all four maps, 2 k n M to
    compress, and M^2 a batch for each of the two biases. Poolings compress by sums alone, and a convolution by n M
    multiplies.

    Args:
        config: The model.
        num_tokens: Tokens of each sequence; n by default.
        batch_size: Sequences.
        num_predictions: Tokens of the batch that the masked-language-model head is computed at; 0 without a head.
    """
    num_tokens = num_tokens or config.max_position_embeddings
    total = head_multiplies(config, num_predictions)
    for length in config.projected_lengths:
        total += batch_size * layer_multiplies(config, length, num_tokens)
        total += 2 * config.hidden_size**2 if maps_first(config, length, num_tokens) else 0
    return total


def layer_multiplies(config: LinformerConfig, projected_length: int, num_tokens: int) -> int:
    """Count the multiplies of one layer and sequence, but for the biases of maps that come first."""
    width = config.hidden_size
    slots = filled_slots(config, projected_length, num_tokens)
    if config.projection_type == "linear":
        compress = slots * num_tokens * width
    elif config.projection_type == "conv":
        compress = slots * (config.max_position_embeddings // projected_length) * width
    else:
        compress = 0
    mapped_rows = num_tokens if maps_first(config, projected_length, num_tokens) else slots
    maps = 2 * (num_tokens + mapped_rows) * width**2
    attention = 2 * num_tokens * slots * width
    mlp = 2 * num_tokens * width * config.intermediate_size
    return maps + compressions(config, projected_length, num_tokens) * compress + attention + mlp


def filled_slots(config: LinformerConfig, projected_length: int, num_tokens: int) -> int:
    """Return the slots that a layer attends to: all k of a matrix, or the windows that the tokens fill."""
    if config.projection_type == "linear":
        return projected_length
    return -(-num_tokens // (config.max_position_embeddings // projected_length))


def maps_first(config: LinformerConfig, projected_length: int, num_tokens: int) -> bool:
    """Tell whether a layer maps keys and values before it compresses them, which then is the cheaper order."""
    is_short = config.projection_type == "linear" and num_tokens < projected_length
    return config.projection_sharing == "none" or is_short


def compressions(config: LinformerConfig, projected_length: int, num_tokens: int) -> int:
    """Return how often a layer compresses: twice where keys and values differ by then, or have projections apart."""
    apart = config.projection_sharing == "headwise" and config.projection_type in ("linear", "conv")
    return 2 if apart or maps_first(config, projected_length, num_tokens) else 1


def dense_multiplies(
    config: LinformerConfig, num_tokens: int | None = None, batch_size: int = 1, num_predictions: int = 0
) -> int:
    """Count the multiplies of a forward pass of the dense twin: 4 n M^2 + 2 n^2 M + 2 n M I for each layer.

    Arguments as in `count_multiplies`.
    """
    num_tokens = num_tokens or config.max_position_embeddings
    width = config.hidden_size
    layer = 2 * num_tokens * width * (2 * width + num_tokens + config.intermediate_size)
    return batch_size * config.num_hidden_layers * layer + head_multiplies(config, num_predictions)


def head_multiplies(config: LinformerConfig, num_predictions: int) -> int:
    """Count the multiplies of the masked-language-model head: M^2 + M V for each token that it is computed at."""
    return num_predictions * config.hidden_size * (config.hidden_size + config.vocab_size)


def predicted_speedup(
    config: LinformerConfig, num_tokens: int | None = None, labelled_share: float | None = None
) -> float:
    """Return how many times more multiplies the dense twin takes.

    A training step takes three times those of a forward pass in both, so that its ratio is the same.

    Args:
        config: The Linformer.
        num_tokens: Tokens of each sequence; n by default.
        labelled_share: Share of the tokens that a masked-language-model head is to predict. The twin's head is
            computed at all tokens, the Linformer's at these alone if `config.sparse_prediction`. None leaves out the
            head.
    """
    num_tokens = num_tokens or config.max_position_embeddings
    dense_predictions = predictions = 0
    if labelled_share is not None:
        dense_predictions = num_tokens
        predictions = round(labelled_share * num_tokens) if config.sparse_prediction else num_tokens
    dense = dense_multiplies(config, num_tokens, num_predictions=dense_predictions)
    return dense / count_multiplies(config, num_tokens, num_predictions=predictions)


def crossing_length(config: LinformerConfig) -> int | None:
    """Return the fewest tokens at which a Linformer takes no more multiplies than its twin; None if n is too few."""
    fewest, most = 1, config.max_position_embeddings
    if predicted_speedup(config, most) < 1:
        return None
    # the twin's excess is below zero at first and rises from there, so there is one crossing to close in on
    while fewest < most:
        middle = (fewest + most) // 2
        if predicted_speedup(config, middle) < 1:
            fewest = middle + 1
        else:
            most = middle
    return fewest


def activation_bytes(
    config: LinformerConfig,
    num_tokens: int | None = None,
    batch_size: int = 1,
    implementation: str = "sdpa",
    element_size: int = 4,
) -> int:
    """Count the bytes that the forward pass of a Linformer without a head keeps for the backward pass.

    Exact for a training step without dropout on a CPU, with one exception: SDPA computes a convolution with
    `projection_sharing="none"` in plain steps and keeps more.

    Args:
        config: The model.
        num_tokens: Tokens of each sequence; n by default.
        batch_size: Sequences.
        implementation: `"sdpa"`, which keeps one number for each query, or `"eager"`, which keeps the attention maps.
        element_size: Bytes of a number: 4 in float32, 2 in bfloat16.
    """
    num_tokens = num_tokens or config.max_position_embeddings
    total = 0
    for length in config.projected_lengths:
        slots = filled_slots(config, length, num_tokens)
        total += layer_bytes(config, num_tokens, slots, batch_size, implementation, element_size)
        total += element_size * batch_size * 2 * slots * config.hidden_size  # keys and values
        total += compression_bytes(config, length, num_tokens, batch_size, element_size)
    indices = batch_size * num_tokens + num_tokens + 1  # words, positions, and one segment for all
    return total + embedding_bytes(config, num_tokens, batch_size, element_size) + indices * INDEX_BYTES


def compression_bytes(
    config: LinformerConfig, projected_length: int, num_tokens: int, batch_size: int, element_size: int
) -> int:
    """Count what one layer keeps to compress: mapped rows, or compressed rows that are still to be mapped."""
    width = config.hidden_size
    slots = filled_slots(config, projected_length, num_tokens)
    is_mapped = maps_first(config, projected_length, num_tokens)
    numbers = 0 if is_mapped else slots * width
    others = 0
    if config.projection_type == "linear":
        numbers += num_tokens * width if is_mapped else 0  # what is mapped first; else the input, which is kept anyway
        numbers += config.num_attention_heads * slots * num_tokens if config.projection_sharing == "none" else 0
    elif config.projection_type == "mean_pool":
        others = slots * INDEX_BYTES
    else:
        numbers += slots * (config.max_position_embeddings // projected_length) * width  # whole windows
        if config.projection_type == "max_pool":
            numbers += slots * width
            others = slots
    biases = 2 * width * element_size if is_mapped else 0
    times = compressions(config, projected_length, num_tokens)
    return times * batch_size * (numbers * element_size + others) + biases


def dense_activation_bytes(
    config: LinformerConfig,
    num_tokens: int | None = None,
    batch_size: int = 1,
    implementation: str = "sdpa",
    element_size: int = 4,
) -> int:
    """Count the bytes that the dense twin keeps for the backward pass, as `activation_bytes` does."""
    num_tokens = num_tokens or config.max_position_embeddings
    layer = layer_bytes(config, num_tokens, num_tokens, batch_size, implementation, element_size)
    # keys, values, and what is activated
    layer += element_size * batch_size * num_tokens * (2 * config.hidden_size + config.intermediate_size)
    indices = 3 * batch_size * num_tokens  # words, positions and segments
    embeddings = embedding_bytes(config, num_tokens, batch_size, element_size) + indices * INDEX_BYTES
    return config.num_hidden_layers * layer + embeddings


def layer_bytes(
    config: LinformerConfig, num_tokens: int, keys: int, batch_size: int, implementation: str, element_size: int
) -> int:
    """Count what a layer keeps in both models.

    Six numbers a channel (input, queries, attention output, both inputs of the norms, input of the MLP), one a channel
    of the MLP (before the activation), mean and deviation of two norms, and the attention's own.
    """
    tokens = batch_size * num_tokens
    numbers = tokens * (6 * config.hidden_size + config.intermediate_size + 4)
    if implementation == "eager":
        return (numbers + tokens * config.num_attention_heads * keys) * element_size
    return numbers * element_size + tokens * config.num_attention_heads * SOFTMAX_BYTES


def embedding_bytes(config: LinformerConfig, num_tokens: int, batch_size: int, element_size: int) -> int:
    """Count what the embeddings keep in both models: the sum that is normalised, and its mean and deviation."""
    return batch_size * num_tokens * (config.hidden_size + 2) * element_size
