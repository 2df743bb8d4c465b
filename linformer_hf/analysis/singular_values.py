"""How low the rank of attention maps is: singular values, what the first k of them keep, and the k to recommend.

Letters: B batch, H heads, N tokens, K columns of a map (N of a dense model, slots of a Linformer), R ranks, L layers.
"""

import torch
from torch.nn import functional as F

from .maps import erase_padding


MULTIPLE = 8  # each recommended k is rounded up to a multiple of it, which the kernels of GPUs prefer


def map_singular_values(maps: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
    """Return the singular values of attention maps, largest first, in float32 or better.

    Args:
        maps: `(B, H, N, K)`.
        attention_mask: 1 for a real token and 0 for padding, `(B, N)`, which is left out. None means that there
            is none.

    Returns:
        `(B, H, min(N, K))`, with zeros at the end for a text of fewer tokens.
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
    """Return the relative error of the best map of rank 1, 2, ... R.

    It is the Frobenius norm of the difference over that of the map (Eckart and Young 1936), the square root of the
    energy that is not kept.

    Args:
        values: Singular values, `(..., R)`.

    Returns:
        `(..., R)`.
    """
    squares = values.square()
    tails = (
        squares.flip(-1).cumsum(-1).flip(-1)
    )  # summed from the smallest value, which keeps the precision of small errors
    return (F.pad(tails[..., 1:], (0, 1)) / tails[..., :1]).sqrt()


def effective_rank(values: torch.Tensor) -> torch.Tensor:
    """Return the exponential of the entropy of singular values, `(..., R)` to `(...)` (Roy and Vetterli 2007).

    R equal values give R, a single one gives 1.
    """
    return torch.special.entr(values / values.sum(-1, keepdim=True)).sum(-1).exp()


def ranks_keeping(shares: torch.Tensor, share: float) -> torch.Tensor:
    """Return the smallest k at which a curve reaches a share, `(..., R)` to `(...)`; R where it never does."""
    return ((shares < share).sum(-1) + 1).clamp(max=shares.shape[-1])


def recommend(energy: torch.Tensor, share: float = 0.95) -> list[int]:
    """Recommend a k for each layer: the smallest that keeps a share of the energy, in the mean over heads.

    Each k is rounded up to a multiple of 8, but not beyond R.

    Args:
        energy: As from `kept_energy`, averaged over texts, `(L, H, R)`.
        share: The share to keep, above 0 and at most 1.

    Returns:
        L numbers, as `projected_length` takes them; the largest of them is enough for all layers.

    Raises:
        ValueError: If the share is out of range.
    """
    if not 0 < share <= 1:
        raise ValueError(f"The share to keep is {share}; it must be above 0 and at most 1.")
    ranks = ranks_keeping(energy.mean(1), share)
    return [min(-(-rank // MULTIPLE) * MULTIPLE, energy.shape[-1]) for rank in ranks.tolist()]
