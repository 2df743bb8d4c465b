"""How many multiply-accumulate operations (MACs) a Linformer and its dense twin take.

The twin is a RoBERTa of equal depth, width, heads and MLP. Every formula takes its shape from the Linformer's
configuration. Letters are the paper's: n tokens, k slots, and M model width, I width of the MLP, V vocabulary.

A MAC is one multiplication with its addition in a matrix product: two floating-point operations. Sums, softmax, norms
and look-ups are not counted.
"""

from ..configuration_linformer import LinformerConfig


def count_macs(
    config: LinformerConfig, num_tokens: int | None = None, batch_size: int = 1, num_predictions: int = 0
) -> int:
    """Count the MACs of a forward pass of a Linformer.

    A layer that compresses first, with E = F, takes 2 n M^2 for queries and output, k n M to compress, 2 k M^2 for
    keys and values, 2 n k M for the attention and 2 n M I for the MLP. With E and F apart it compresses twice. With
    a matrix a head, or fewer tokens than slots, keys and values are mapped first: 4 n M^2 in all four maps and 2 k n M
    to compress. Poolings compress by sums alone, and a convolution by n M MACs.

    All k slots are counted. A matrix with zeros, as that of a new model has, may leave slots that no token of a short
    text reaches, and a model on a CPU does not compute those.

    Args:
        config: The model.
        num_tokens: Tokens of each sequence; n by default.
        batch_size: Sequences.
        num_predictions: Tokens of the batch that the masked-language-model head is computed at; 0 without a head.
    """
    num_tokens = num_tokens or config.max_position_embeddings
    total = head_macs(config, num_predictions)
    for length in config.projected_lengths:
        total += batch_size * layer_macs(config, length, num_tokens)
    return total


def layer_macs(config: LinformerConfig, projected_length: int, num_tokens: int) -> int:
    """Count the MACs of one layer and sequence."""
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
    """Return the slots that a layer computes: all k of a matrix, or the windows that the tokens reach."""
    if config.projection_type == "linear":
        return projected_length
    return -(-num_tokens // (config.max_position_embeddings // projected_length))


def maps_first(config: LinformerConfig, projected_length: int, num_tokens: int) -> bool:
    """Tell whether a layer maps keys and values before it compresses them, which then is the cheaper order."""
    is_short = config.projection_type == "linear" and num_tokens < projected_length
    return config.projection_sharing == "none" or is_short


def compressions(config: LinformerConfig, projected_length: int, num_tokens: int) -> int:
    """Return how often a layer compresses: twice where E and F differ, or where keys and values are mapped first."""
    apart = config.projection_sharing == "headwise" and config.projection_type in ("linear", "conv")
    return 2 if apart or maps_first(config, projected_length, num_tokens) else 1


def dense_macs(
    config: LinformerConfig, num_tokens: int | None = None, batch_size: int = 1, num_predictions: int = 0
) -> int:
    """Count the MACs of a forward pass of the dense twin: 4 n M^2 + 2 n^2 M + 2 n M I for each layer.

    Arguments as in `count_macs`.
    """
    num_tokens = num_tokens or config.max_position_embeddings
    width = config.hidden_size
    layer = 2 * num_tokens * width * (2 * width + num_tokens + config.intermediate_size)
    return batch_size * config.num_hidden_layers * layer + head_macs(config, num_predictions)


def head_macs(config: LinformerConfig, num_predictions: int) -> int:
    """Count the MACs of the masked-language-model head: M^2 + M V for each token that it is computed at."""
    return num_predictions * config.hidden_size * (config.hidden_size + config.vocab_size)


def predicted_speedup(
    config: LinformerConfig, num_tokens: int | None = None, labelled_share: float | None = None
) -> float:
    """Return the MACs of the dense twin over those of the Linformer.

    A training step takes three times the MACs of a forward pass in both, so that its ratio is the same.

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
    dense = dense_macs(config, num_tokens, num_predictions=dense_predictions)
    return dense / count_macs(config, num_tokens, num_predictions=predictions)


def crossing_length(config: LinformerConfig) -> int | None:
    """Return the fewest tokens at which a Linformer takes no more MACs than its twin; None if it takes more at n."""
    fewest, most = 1, config.max_position_embeddings
    if predicted_speedup(config, most) < 1:
        return None
    # the MACs of the twin minus those of the Linformer are a parabola that starts below zero: one root, to bisect
    while fewest < most:
        middle = (fewest + most) // 2
        if predicted_speedup(config, middle) < 1:
            fewest = middle + 1
        else:
            most = middle
    return fewest
