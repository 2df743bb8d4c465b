"""How the projections of a converted model are initialized, and how a trained model gets fewer or more slots."""

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
    window_averages,
)


PROJECTION_STARTS = ("leading", "graded", "window", "folded")
# of the tokens after the first k in "leading", all of a slot together; with less they are lost, with more the first
# token of the slot is lost among them
LATER_TOKENS_WEIGHT = 0.08
SPLIT_DIFFERENCE = 0.1  # relative, between a row and each of the two rows that it is split into


def start_matrix(start: str, slots: int, tokens: int) -> torch.Tensor:
    """Return the initial matrix of a projection; with as many slots as tokens each of them is the identity.

    Args:
        start: `"leading"`: each of the first k tokens has a slot of its own, to which later tokens are added with a
            small weight, so that a text of k tokens is read exactly. `"graded"`: each of the first k/2 tokens has a
            slot of its own, and every other slot averages its share of the tokens behind them; for texts of all
            lengths. `"window"`: the first and the last token have a slot each, and every other slot averages its
            share of the tokens between; for texts that fill all n.
            `"folded"`: token j goes to slot j mod k, as in `folded_identity`.
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
    if start == "graded":
        alone = slots // 2
        return torch.block_diag(torch.eye(alone), window_averages(slots - alone, tokens - alone))
    folded = folded_identity(slots, tokens)
    if start == "leading":
        # of equal norm in each slot: texts that end before them then reach equal shares of all slots that they reach
        folded[:, slots:] = LATER_TOKENS_WEIGHT * F.normalize(folded[:, slots:])
    return folded


@torch.no_grad()
def start_projections(model: LinformerPreTrainedModel, start: str) -> None:
    """Initialize every projection of a model as `start_matrix` says; convolutions become means of their windows.

    Raises:
        ValueError: If there is no such start, or some layers would read only the first windows of a text.
    """
    config = model.config
    uneven = config.projection_sharing == "layerwise" and len(set(config.projected_lengths)) > 1
    if start in ("graded", "window") and uneven:
        raise ValueError(
            f"`projected_length` is {config.projected_length}, but layers that share one matrix read its first rows, "
            "which would be the windows of a text's beginning: start from 'leading', or give `projection_sharing` "
            "'key_value'."
        )
    for module in model.modules():
        if not isinstance(module, LinformerProjection):
            continue
        if module.is_matrix:
            slots, tokens = module.weight.shape[-2:]
            module.weight.copy_(start_matrix(start, slots, tokens).expand_as(module.weight))
        else:
            module.weight.fill_(1 / module.weight.shape[-1])


@torch.no_grad()
def change_projected_length(model: LinformerPreTrainedModel, projected_length: int | list[int]) -> None:
    """Change k, the slots of a trained model, in the projections and the configuration together.

    Fewer slots average neighboring ones. More slots average the tokens that no slot reads, as there are after
    `resize_position_embeddings`: texts without those tokens then give the same output as before. If there are no such
    tokens, rows are split into two, those that mix the most tokens first: with k doubled the output stays nearly the
    same. A convolution's kernel is interpolated to its new window.

    Args:
        model: A Linformer with any head, or none; changed in place.
        projected_length: The new k, for all layers or one per layer.

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

    The outputs of a trained model change less than if rows were cut off, and far less than with a truncated singular
    value decomposition, whose rows have mixed signs.
    """
    return start_matrix("window", slots, len(matrix)).to(matrix) @ matrix


def more_rows(matrix: torch.Tensor, slots: int) -> torch.Tensor:
    """Add rows until there are enough: for the tokens that no row reads, or else by splitting rows.

    Each row is split before any is split again, so that all have the same weight in the softmax when k doubles. Those
    that mix the most tokens are split first, and the second of the two rows is put at the end.
    """
    rows = [*matrix, *rows_for_unread(matrix, slots - len(matrix))]
    while len(rows) < slots:
        widest = sorted(range(len(rows)), key=lambda index: effective_tokens(rows[index]), reverse=True)
        for index in widest[: slots - len(rows)]:
            rows[index], other = split_row(rows[index])
            rows.append(other)
    return torch.stack(rows)


def rows_for_unread(matrix: torch.Tensor, most: int) -> torch.Tensor:
    """Return rows that average windows of the tokens that no row of a matrix reads, at most one row for each token."""
    unread = (matrix == 0).all(0)
    count = min(most, int(unread.sum()))
    rows = matrix.new_zeros(count, matrix.shape[1])
    if count:
        rows[:, unread] = window_averages(count, int(unread.sum())).to(matrix)
    return rows


def effective_tokens(row: torch.Tensor) -> float:
    """Count the tokens that a slot mixes: n for equal weights, 1 for a single token (the participation ratio)."""
    weight = row.abs()
    return float(weight.sum() ** 2 / weight.square().sum().clamp(min=torch.finfo(row.dtype).tiny))


def split_row(row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split a row into two that average to it: one weighs its earlier tokens more, the other its later ones.

    Two equal rows would get equal gradients, and stay equal for ever.
    """
    weight = row.abs()
    is_early = weight.cumsum(0) - weight < weight.sum() / 2
    difference = torch.where(is_early, SPLIT_DIFFERENCE, -SPLIT_DIFFERENCE) * row
    return row + difference, row - difference
