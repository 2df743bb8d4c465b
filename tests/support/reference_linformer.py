"""The Linformer encoder written from its equations, one head, one query, one slot and one token at a time.

It takes plain numbers, lists and a dictionary of float64 tensors, and uses nothing of linformer_hf; gradients come
from autograd over scalars and vectors. Padding does not exist here: a sequence is the list of its real tokens, which
count their positions 0, 1, 2, ... from the first one on.
"""

import math
from dataclasses import dataclass

import torch


@dataclass
class Settings:
    """The numbers of a model that its weights do not tell."""

    num_heads: int
    longest: int  # n
    slots: list[int]  # k of each layer
    sharing: str
    projection_type: str
    epsilon: float


def encode(weights, settings, ids, segments, real):
    """Encode one sequence.

    Args:
        weights: The encoder's parameters by name, in float64.
        settings: See `Settings`.
        ids: Word of each place, padding included.
        segments: Token type of each place.
        real: Places of the real tokens, in order.

    Returns:
        The embeddings and each layer's output: a list of vectors, one a real token, for each.
    """
    rows = []
    for position, place in enumerate(real):
        total = weights["embeddings.word_embeddings.weight"][ids[place]]
        total = total + weights["embeddings.position_embeddings.weight"][position]
        total = total + weights["embeddings.token_type_embeddings.weight"][segments[place]]
        rows.append(layer_norm(total, weights, "embeddings.layer_norm", settings.epsilon))
    states = [rows]
    for layer in range(len(settings.slots)):
        rows = block(rows, weights, settings, layer)
        states.append(rows)
    return states


def block(rows, weights, settings, layer):
    """Attention and MLP, each added to its input and normalised afterwards."""
    name = f"layers.{layer}"
    attended = attention(rows, weights, settings, layer)
    after = []
    for row, change in zip(rows, attended):
        row = layer_norm(row + change, weights, f"{name}.attention_layer_norm", settings.epsilon)
        inner = affine(row, weights, f"{name}.mlp.intermediate")
        inner = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))  # GELU
        change = affine(inner, weights, f"{name}.mlp.output")
        after.append(layer_norm(row + change, weights, f"{name}.mlp_layer_norm", settings.epsilon))
    return after


def attention(rows, weights, settings, layer):
    """softmax(Q K~^T / sqrt(d)) V~ of every head, side by side, and the output map."""
    name = f"layers.{layer}.attention"
    width = len(rows[0]) // settings.num_heads
    heads = []
    for head in range(settings.num_heads):
        channels = slice(head * width, (head + 1) * width)
        keys = slots_of_head(rows, weights, settings, layer, head, channels, "key")
        values = slots_of_head(rows, weights, settings, layer, head, channels, "value")
        outputs = []
        shares = shares_of_head(rows, weights, settings, layer, head, channels)
        for row in rows:
            query = affine(row, weights, f"{name}.query", channels)
            scores = [torch.exp(torch.dot(query, key) / math.sqrt(width)) for key in keys]
            scores = [share * score for share, score in zip(shares, scores, strict=True)]
            outputs.append(sum(score * value for score, value in zip(scores, values)) / sum(scores))
        heads.append(outputs)
    return [affine(torch.cat([outputs[i] for outputs in heads]), weights, f"{name}.output") for i in range(len(rows))]


def shares_of_head(rows, weights, settings, layer, head, channels):
    """How much of each slot the tokens reach, as plain numbers: 1 for each window that holds a token."""
    num_slots, longest = settings.slots[layer], settings.longest
    if settings.projection_type != "linear":
        return [1.0] * math.ceil(len(rows) / (longest // num_slots))
    projection = projection_of_head(weights, settings, layer, head, channels, "key")
    shares = []
    for slot in range(num_slots):
        squares = [projection[slot, position].item() ** 2 for position in range(longest)]
        shares.append(sum(squares[: len(rows)]) / sum(squares))
    return shares


def slots_of_head(rows, weights, settings, layer, head, channels, which):
    """Compressed keys or values of one head: compress, map, add the bias; with a projection a head, map first."""
    matrix = weights[f"layers.{layer}.attention.{which}.weight"][channels]
    bias = weights[f"layers.{layer}.attention.{which}.bias"][channels]
    projection = projection_of_head(weights, settings, layer, head, channels, which)
    num_slots = settings.slots[layer]
    if settings.sharing == "none":
        return [slot + bias for slot in compress([matrix @ row for row in rows], settings, num_slots, projection)]
    return [matrix @ slot + bias for slot in compress(rows, settings, num_slots, projection)]


def projection_of_head(weights, settings, layer, head, channels, which):
    """The matrix E or F, or the convolution's kernel, that one head sees; None for the poolings."""
    if settings.projection_type in ("mean_pool", "max_pool"):
        return None
    if settings.sharing == "layerwise":
        return weights["projection.weight"]
    if settings.sharing == "key_value":
        return weights[f"layers.{layer}.attention.projection.weight"]
    weight = weights[f"layers.{layer}.attention.{which}_projection.weight"]
    if settings.sharing == "headwise":
        return weight
    return weight[head] if settings.projection_type == "linear" else weight[channels]


def compress(rows, settings, num_slots, projection):
    """Turn the rows of real tokens into slots; a window without a token gives none."""
    slots = []
    window = settings.longest // num_slots
    for slot in range(num_slots):
        if settings.projection_type == "linear":
            entries = projection[slot].unbind()
            slots.append(sum(entries[position] * row for position, row in enumerate(rows)))
            continue
        held = rows[slot * window : (slot + 1) * window]
        if not held:
            break
        if settings.projection_type == "mean_pool":
            slots.append(sum(held) / len(held))
        elif settings.projection_type == "max_pool":
            largest = held[0]
            for row in held[1:]:
                largest = torch.maximum(largest, row)
            slots.append(largest)
        else:
            slots.append(sum(projection[:, place] * row for place, row in enumerate(held)))
    return slots


def affine(row, weights, name, outputs=slice(None)):
    """A linear map with bias, of which only some outputs may be wanted."""
    return weights[f"{name}.weight"][outputs] @ row + weights[f"{name}.bias"][outputs]


def layer_norm(row, weights, name, epsilon):
    """Subtract the mean, divide by the deviation, scale and shift."""
    centred = row - row.sum() / len(row)
    variance = (centred * centred).sum() / len(row)
    return centred / torch.sqrt(variance + epsilon) * weights[f"{name}.weight"] + weights[f"{name}.bias"]
