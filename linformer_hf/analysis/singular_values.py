"""How low the rank of attention maps is: singular values, what the first k of them keep, and which k that asks for.

Tensors in, tensors out. Letters: B batch, H heads, N tokens, K columns of a map (N of a dense model, slots of a
Linformer), R ranks, L layers.
"""

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from ..modeling_linformer import LinformerModel, token_positions


ROUNDING = 0.05  # of a sum of many shares in half precision


@torch.no_grad()
def attention_maps(
    model: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Run an encoder and return what it attends to.

    Args:
        model: An encoder in evaluation mode, loaded with `attn_implementation="eager"`.
        input_ids: Token ids, `(B, N)`.
        attention_mask: 1 for a real token and 0 for padding, `(B, N)`.

    Returns:
        A map for each layer: `(B, H, N, N)`, or `(B, H, N, K)` of a Linformer. Rows sum to one.

    Raises:
        ValueError: If the model returns no maps, maps over something else than all tokens, or scores that are not yet
            shares.
    """
    maps = model(input_ids=input_ids, attention_mask=attention_mask, output_attentions=True).attentions
    name, num_tokens = model.config.model_type, input_ids.shape[1]
    if not maps or any(layer is None for layer in maps):
        raise ValueError(f"{name} returns no attention maps; take a model that `attn_implementation='eager'` suits.")
    for layer in maps:
        if layer.dim() != 4 or layer.shape[2] != num_tokens or (layer.shape[3] != num_tokens and name != "linformer"):
            raise ValueError(
                f"{name} returns attention maps of shape {tuple(layer.shape)} for {num_tokens} tokens, not tokens x "
                "tokens; take a model that attends from every token to every token."
            )
        sums = layer.sum(-1).transpose(1, 2)[attention_mask != 0]
        if not (sums - 1).abs().max() < ROUNDING:
            raise ValueError(
                f"The rows of {name}'s attention maps do not sum to one: it returns scores before the softmax, or "
                "is in training mode; call `model.eval()`, or take another model."
            )
    return maps


def erase_padding(maps: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Set the rows of padding to zero; zero rows add nothing but singular values of zero.

    The columns need no care: no token attends to padding.

    Args:
        maps: `(B, H, N, K)`.
        attention_mask: 1 for a real token and 0 for padding, `(B, N)`.
    """
    return maps.masked_fill((attention_mask == 0)[:, None, :, None], 0.0)


def singular_values(maps: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
    """Return the singular values of attention maps, largest first, in float32 or better.

    Args:
        maps: `(B, H, N, K)`.
        attention_mask: 1 for a real token and 0 for padding, `(B, N)`, which is cut away. None means that there is
            none.

    Returns:
        `(B, H, min(N, K))`; a text of fewer tokens has zeros at its end.
    """
    maps = maps if maps.dtype == torch.float64 else maps.float()
    return torch.linalg.svdvals(maps if attention_mask is None else erase_padding(maps, attention_mask))


def pad_ranks(values: torch.Tensor, num_ranks: int) -> torch.Tensor:
    """Append singular values of zero, `(..., R)` to `(..., num_ranks)`."""
    return F.pad(values, (0, num_ranks - values.shape[-1]))


def cumulative_values(values: torch.Tensor) -> torch.Tensor:
    """Return the share of their sum in the first 1, 2, ... R singular values (paper, Figure 1), `(..., R)`."""
    return values.cumsum(-1) / values.sum(-1, keepdim=True)


def kept_energy(values: torch.Tensor) -> torch.Tensor:
    """Return the share of the sum of squares in the first 1, 2, ... R singular values, `(..., R)`."""
    return cumulative_values(values.square())


def rank_k_error(values: torch.Tensor) -> torch.Tensor:
    """Return how far the best map of rank 1, 2, ... R is from a map.

    That is the Frobenius norm of the difference over that of the map (Eckart and Young 1936), the root of the energy
    that is not kept.

    Args:
        values: Singular values, `(..., R)`.

    Returns:
        `(..., R)`.
    """
    squares = values.square()
    tails = squares.flip(-1).cumsum(-1).flip(-1)  # summed from the smallest, for the digits of small errors
    return (F.pad(tails[..., 1:], (0, 1)) / tails[..., :1]).sqrt()


def effective_rank(values: torch.Tensor) -> torch.Tensor:
    """Return the exponential of the entropy of singular values, `(..., R)` to `(...)` (Roy and Vetterli 2007).

    R equal values give R, a single one gives 1.
    """
    return torch.special.entr(values / values.sum(-1, keepdim=True)).sum(-1).exp()


def ranks_keeping(shares: torch.Tensor, share: float) -> torch.Tensor:
    """Return the smallest k at which a curve reaches a share, `(..., R)` to `(...)`; R where it never does."""
    return ((shares < share).sum(-1) + 1).clamp(max=shares.shape[-1])


def recommend(energy: torch.Tensor, share: float = 0.95, multiple_of: int = 8) -> list[int]:
    """Recommend a k for each layer: the smallest that keeps a share of the energy, in the mean over heads.

    Args:
        energy: As from `kept_energy`, averaged over texts, `(L, H, R)`.
        share: What is to be kept, above 0 and at most 1.
        multiple_of: Each k is rounded up to such a multiple, which GPUs like, but not beyond R.

    Returns:
        L numbers, ready for `projected_length`; the largest of them suits all layers.

    Raises:
        ValueError: If the share is none.
    """
    if not 0 < share <= 1:
        raise ValueError(f"The share to keep is {share}; it must be above 0 and at most 1.")
    ranks = ranks_keeping(energy.mean(1), share)
    return [min(-(-rank // multiple_of) * multiple_of, energy.shape[-1]) for rank in ranks.tolist()]


@torch.no_grad()
def token_maps(
    model: LinformerModel, maps: tuple[torch.Tensor, ...], attention_mask: torch.Tensor
) -> list[torch.Tensor]:
    """Return what a Linformer's attention amounts to between tokens: its maps times F, which compressed the values.

    Args:
        model: A Linformer without a head, of type `"linear"` or `"mean_pool"`.
        maps: As from `attention_maps`, `(B, H, N, K)` a layer.
        attention_mask: 1 for a real token and 0 for padding, `(B, N)`.

    Returns:
        `(B, H, N, N)` a layer, to compare with the maps of a dense model. Rows need not sum to one.

    Raises:
        ValueError: If no matrix compresses the values.
    """
    config = model.config
    if config.projection_type not in ("linear", "mean_pool"):
        raise ValueError(
            f"`projection_type` is {config.projection_type!r}, which compresses by no single matrix, so that there is "
            "no map between tokens to compare; 'linear' and 'mean_pool' have one."
        )
    batch_size, num_tokens = attention_mask.shape
    positions = token_positions(attention_mask, config.max_position_embeddings)
    tokens = torch.eye(num_tokens, device=maps[0].device, dtype=maps[0].dtype).expand(batch_size, -1, -1)
    if config.projection_type == "linear" and config.projection_sharing == "none":
        tokens = tokens[:, None].expand(-1, config.num_attention_heads, -1, -1)
    shared_weight = None if model.projection is None else model.projection()
    found = []
    for layer, slots_read in zip(model.layers, maps):
        _, weight = layer.attention.projection_weights(shared_weight)
        compressed = layer.attention.compress(tokens, weight, positions)
        found.append(slots_read @ (compressed if compressed.dim() == 4 else compressed[:, None]))
    return found


def relative_distance(
    maps: torch.Tensor, reference: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the Frobenius norm of the difference of two maps, over that of the second.

    Args:
        maps: `(B, H, N, N)`.
        reference: `(B, H, N, N)`.
        attention_mask: 1 for a real token and 0 for padding, `(B, N)`, which is cut away. None means that there is
            none.

    Returns:
        `(B, H)`; the best that a map of rank k can reach is `rank_k_error` of the reference.
    """
    if attention_mask is not None:
        maps, reference = erase_padding(maps, attention_mask), erase_padding(reference, attention_mask)
    return torch.linalg.matrix_norm(maps - reference) / torch.linalg.matrix_norm(reference)
