"""Where the projections of a converted model start from, and how a trained model gets fewer or more slots."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from ..configuration_linformer import LinformerConfig
from ..modeling_linformer import (
    LinformerAttention,
    LinformerPreTrainedModel,
    LinformerProjection,
    folded_identity,
)


PROJECTION_STARTS = ("leading", "window", "folded")
LIGHT = 0.08  # what tokens after the first k weigh together in a slot; less loses them, more drowns the first
LEAN = 0.1  # by how much the twins of a row differ from it


def start_matrix(start: str, slots: int, tokens: int) -> torch.Tensor:
    """Return where a projection starts from; with as many slots as tokens every start is the identity.

    Args:
        start: `"leading"`: the first k tokens have a slot each and later ones join them lightly, so that a text of k
            tokens is read exactly. `"window"`: the first and the last token have a slot each, and every other slot
            averages its share of the tokens between; for texts that fill all n. `"folded"`: what an untrained model
            starts from.
        slots: k.
        tokens: n.

    Returns:
        A matrix, `(k, n)`.

    Raises:
        ValueError: If there is no such start.
    """
    if start not in PROJECTION_STARTS:
        raise ValueError(f"`projection_start` is {start!r}; it must be one of {', '.join(PROJECTION_STARTS)}.")
    if start == "window" and slots > 2:
        return torch.block_diag(torch.ones(1, 1), window_averages(slots - 2, tokens - 2), torch.ones(1, 1))
    if start == "window":
        return window_averages(slots, tokens)
    folded = folded_identity(slots, tokens)
    if start == "leading":
        folded[:, slots:] *= LIGHT
    return folded


def window_averages(slots: int, tokens: int) -> torch.Tensor:
    """Average windows of n / k tokens, `(k, n)`; a token on a border counts in both by its share."""
    edges = torch.arange(slots + 1, dtype=torch.float64) * tokens / slots
    left, right, token = edges[:-1, None], edges[1:, None], torch.arange(tokens)
    overlap = (torch.minimum(right, token + 1) - torch.maximum(left, token)).clamp(min=0)
    return (overlap * slots / tokens).float()


@torch.no_grad()
def start_projections(model: LinformerPreTrainedModel, start: str) -> None:
    """Let every projection of a model start as `start_matrix` says; convolutions start as means of their windows.

    Raises:
        ValueError: If there is no such start, or layers would read only the first windows of a text.
    """
    config = model.config
    uneven = config.projection_sharing == "layerwise" and len(set(config.projected_lengths)) > 1
    if start == "window" and uneven:
        raise ValueError(
            f"`projected_length` is {config.projected_length}, but layers that share one matrix read its first rows, "
            "which would be the windows of a text's beginning: start from 'leading', or share by 'key_value'."
        )
    for module in model.modules():
        if isinstance(module, LinformerProjection) and module.is_matrix:
            slots, tokens = module.weight.shape[-2:]
            module.weight.copy_(start_matrix(start, slots, tokens).expand_as(module.weight))


@torch.no_grad()
def change_projected_length(model: LinformerPreTrainedModel, projected_length: int | list[int]) -> None:
    """Change k, the slots of a trained model, in the projections and the configuration together.

    Fewer slots average neighbouring ones. More slots make twins of rows, of those that blend most tokens first: with
    k doubled the output stays all but the same. A convolution's kernel is stretched to its new window.

    Args:
        model: A Linformer with any head, or none; changed in place.
        projected_length: The new k, for all layers or one a layer.

    Raises:
        ValueError: If k does not fit the model; the message names it. Nothing is changed then.
    """
    trial = copy.copy(model.config)
    trial.__dict__["projected_length"] = projected_length
    trial.validate_linformer()
    is_shared = trial.projection_type == "linear" and trial.projection_sharing == "layerwise"
    if is_shared and len(set(trial.projected_lengths)) > 1:
        raise ValueError(
            f"`projected_length` is {projected_length}, but layers that share one matrix read its first rows, so that "
            "a smaller k would lose slots instead of averaging them: give one number."
        )

    for attention in (module for module in model.modules() if isinstance(module, LinformerAttention)):
        attention.projected_length = trial.projected_lengths[attention.layer_idx]
        attention.window = trial.max_position_embeddings // attention.projected_length
        for module in attention.modules():
            if isinstance(module, LinformerProjection):
                resize_projection(module, attention.projected_length, trial)
    if model.base_model.projection is not None:
        resize_projection(model.base_model.projection, max(trial.projected_lengths), trial)
    model.config.__dict__["projected_length"] = projected_length


def resize_projection(module: LinformerProjection, slots: int, config: LinformerConfig) -> None:
    """Give one projection another number of slots."""
    weight = module.weight
    if module.is_matrix:
        matrices = weight.reshape(-1, *weight.shape[-2:])
        resize = fewer_rows if slots < weight.shape[-2] else more_rows
        resized = torch.stack([resize(matrix, slots) for matrix in matrices])
        resized = resized.reshape(*weight.shape[:-2], slots, weight.shape[-1])
    else:
        window = config.max_position_embeddings // slots
        stretched = F.interpolate(weight[None], size=window, mode="linear")[0]
        resized = stretched * (weight.shape[-1] / window)  # a wider window weighs each token less
    module.weight = nn.Parameter(resized, requires_grad=weight.requires_grad)


def fewer_rows(matrix: torch.Tensor, slots: int) -> torch.Tensor:
    """Keep the first and the last row, and average neighbours between, `(k, n)` to `(slots, n)`.

    A trained model stays nearer to its outputs than with rows cut off; a truncated singular value decomposition, which
    mixes signs, loses them.
    """
    return start_matrix("window", slots, len(matrix)).to(matrix) @ matrix


def more_rows(matrix: torch.Tensor, slots: int) -> torch.Tensor:
    """Make twins of the rows that blend most tokens until there are enough; the second of a pair joins at the end.

    Each row is doubled before any is doubled again, so that all weigh alike in the softmax when k doubles.
    """
    rows = list(matrix)
    while len(rows) < slots:
        widest = sorted(range(len(rows)), key=lambda index: effective_tokens(rows[index]), reverse=True)
        for index in widest[: slots - len(rows)]:
            rows[index], twin = twins(rows[index])
            rows.append(twin)
    return torch.stack(rows)


def effective_tokens(row: torch.Tensor) -> float:
    """Count the tokens that a slot blends: n for equal weights, 1 for a single token (the participation ratio)."""
    weight = row.abs()
    return float(weight.sum() ** 2 / weight.square().sum().clamp(min=torch.finfo(row.dtype).tiny))


def twins(row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Make two of a row that average to it: one leans to its earlier tokens, the other to its later ones.

    Equal twins would get equal gradients, and never part.
    """
    weight = row.abs()
    is_early = weight.cumsum(0) - weight < weight.sum() / 2
    lean = torch.where(is_early, LEAN, -LEAN) * row
    return row + lean, row - lean
