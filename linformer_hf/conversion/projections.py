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
from .distances import at_least_single


PROJECTION_STARTS = ("leading", "graded", "window", "folded")
# of the tokens after the first k in "leading", all of a slot together; with less they are lost, with more the first
# token of the slot is lost among them
LATER_TOKENS_WEIGHT = 0.08
SPLIT_DIFFERENCE = 0.1  # relative, between a slot and each of the two slots that it is split into


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
    for module in projections_in(model):
        if module.is_matrix:
            slots, tokens = module.weight.shape[-2:]
            module.weight.copy_(start_matrix(start, slots, tokens).expand_as(module.weight))
        else:
            module.weight.fill_(1 / module.weight.shape[-1])


@torch.no_grad()
def change_projected_length(model: LinformerPreTrainedModel, projected_length: int | list[int]) -> None:
    """Change k, the slots of a trained model, in the projections and the configuration together.

    Fewer slots average neighboring ones, after those without any weight are left out. More slots average the tokens
    that no slot reads, as there are after `resize_position_embeddings`: texts without those tokens then give the same
    output as before. If there are no such tokens, slots are split into two, those that mix the most tokens first: with
    k doubled the output stays nearly the same. A convolution's kernel is interpolated to its new window.

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

    for attention in attentions_in(model):
        attention.projected_length = trial.projected_lengths[attention.layer_idx]
        attention.window = trial.max_position_embeddings // attention.projected_length
        resize_projections(projections_in(attention), attention.projected_length, trial)
    if model.base_model.projection is not None:
        resize_projections([model.base_model.projection], max(trial.projected_lengths), trial)
    model.config.__dict__["projected_length"] = projected_length


def attentions_in(model: LinformerPreTrainedModel) -> list[LinformerAttention]:
    """List the attention of each layer."""
    return [module for module in model.modules() if isinstance(module, LinformerAttention)]


def projections_in(module: nn.Module) -> list[LinformerProjection]:
    """List the projections of a model or of one of its layers."""
    return [part for part in module.modules() if isinstance(part, LinformerProjection)]


def resize_projections(modules: list[LinformerProjection], slots: int, config: LinformerConfig) -> None:
    """Give the projections that fill the same slots, E and F of a layer, another number of slots."""
    for module in modules:
        if not module.is_matrix:
            window = config.max_position_embeddings // slots
            stretched = F.interpolate(module.weight[None], size=window, mode="linear")[0]
            # a wider window weighs each token less
            replace_weight(module, stretched * (module.weight.shape[-1] / window))
    modules = [module for module in modules if module.is_matrix and module.weight.shape[-2] != slots]
    if modules:
        matrices = at_least_single(matrices_of(modules))
        resized = fewer_slots(matrices, slots) if slots < matrices.shape[1] else more_slots(matrices, slots)
        for module, part in zip(modules, resized.chunk(len(modules)), strict=True):
            replace_weight(module, part.reshape(*module.weight.shape[:-2], slots, -1))


def matrices_of(modules: list[LinformerProjection]) -> torch.Tensor:
    """Return the matrices that fill the same slots, of keys and values and of each head, `(M, k, n)`."""
    return torch.cat([module.weight.detach().reshape(-1, *module.weight.shape[-2:]) for module in modules])


def replace_weight(module: LinformerProjection, weight: torch.Tensor) -> None:
    """Give a projection a copy of another weight, of the old one's type, which is trained if the old one was."""
    weight = weight.to(module.weight.dtype, copy=True)
    module.weight = nn.Parameter(weight, requires_grad=module.weight.requires_grad)


def empty_slots(matrices: torch.Tensor) -> torch.Tensor:
    """Tell which slots read no token, `(k,)`, of matrices `(M, k, n)`."""
    return (matrices == 0).all(-1).all(0)


def fewer_slots(matrices: torch.Tensor, slots: int) -> torch.Tensor:
    """Leave out slots without any weight, keep the first and the last of the others, and average neighbors between.

    The outputs of a trained model change less than if rows were cut off, and far less than with a truncated singular
    value decomposition, whose rows have mixed signs.

    Args:
        matrices: Those that fill the same slots, of keys and values and of each head, `(M, k, n)`.
        slots: The new k.

    Returns:
        `(M, slots, n)`.
    """
    is_empty = empty_slots(matrices)
    surplus = matrices.shape[1] - slots
    is_kept = ~is_empty | (is_empty.cumsum(0) > surplus)
    kept = matrices[:, is_kept]
    return start_matrix("window", slots, kept.shape[1]).to(kept) @ kept


def more_slots(matrices: torch.Tensor, slots: int) -> torch.Tensor:
    """Fill empty slots and add others until there are enough: for tokens that no slot reads, or by splitting slots.

    Each slot is split before any is split again, so that all have the same weight in the softmax when k doubles. Those
    that mix the most tokens are split first. A slot is split in all matrices, so that its keys and its values go on
    coming from the same tokens. Slots then stand in the order of the first token that they read: a text that ends
    before it does not need the slots at the end.

    Args:
        matrices: Those that fill the same slots, of keys and values and of each head, `(M, k, n)`.
        slots: The new k.

    Returns:
        `(M, slots, n)`.
    """
    matrices = matrices[:, ~empty_slots(matrices)]
    matrices = torch.cat([matrices, slots_for_unread(matrices, slots - matrices.shape[1])], 1)
    while matrices.shape[1] < slots:
        widest = effective_tokens(matrices).mean(0).argsort(descending=True, stable=True)
        widest = widest[: slots - matrices.shape[1]]
        matrices[:, widest], others = split(matrices[:, widest])
        matrices = torch.cat([matrices, others], 1)
    return matrices[:, first_tokens(matrices).argsort(stable=True)]


def slots_for_unread(matrices: torch.Tensor, most: int) -> torch.Tensor:
    """Return slots that average windows of the tokens that no slot reads, at most one slot for each token."""
    unread = unread_tokens(matrices)
    count = min(most, int(unread.sum()))
    rows = matrices.new_zeros(len(matrices), count, matrices.shape[-1])
    if count:
        rows[:, :, unread] = window_averages(count, int(unread.sum())).to(matrices)
    return rows


def unread_tokens(matrices: torch.Tensor) -> torch.Tensor:
    """Tell which tokens no slot reads, `(n,)`, of matrices `(…, k, n)`."""
    return (matrices == 0).flatten(0, -2).all(0)


def first_tokens(matrices: torch.Tensor) -> torch.Tensor:
    """Return the first token that each slot reads, `(k,)`, of matrices `(M, k, n)`; n where it reads none."""
    is_read = (matrices != 0).any(0)
    return torch.where(is_read.any(-1), is_read.int().argmax(-1), is_read.shape[-1])


def effective_tokens(rows: torch.Tensor) -> torch.Tensor:
    """Count the tokens that each row mixes: n for equal weights, 1 for a single token (the participation ratio)."""
    weight = rows.abs()
    return weight.sum(-1) ** 2 / weight.square().sum(-1).clamp(min=torch.finfo(rows.dtype).tiny)


def split(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split each row into two that average to it: one weighs its earlier tokens more, the other its later ones.

    Two equal rows would get equal gradients, and stay equal for ever.
    """
    weight = rows.abs()
    is_early = weight.cumsum(-1) - weight < weight.sum(-1, keepdim=True) / 2
    difference = torch.where(is_early, SPLIT_DIFFERENCE, -SPLIT_DIFFERENCE) * rows
    return rows + difference, rows - difference
