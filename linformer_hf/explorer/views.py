"""What the explorer shows by formula: a map of attention, its best copy of rank k, and what n and k cost.

Letters: N tokens, K columns of a map (N of a dense model, slots of a Linformer), R ranks.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from ..analysis.singular_values import effective_rank, kept_energy, rank_k_error
from ..benchmark.counting import (
    activation_bytes,
    count_multiplies,
    crossing_length,
    dense_activation_bytes,
    dense_multiplies,
    predicted_speedup,
)
from ..configuration_linformer import LinformerConfig


LENGTHS = tuple(2**power for power in range(7, 15))  # the n of the curves of cost


@dataclass(frozen=True)
class RankView:
    """A map beside its best copy of rank k.

    Args:
        original: `(N, K)`.
        copy: `(N, K)`.
        rank: k, at most R.
        values: Singular values, `(R,)`.
        energy: Share of the energy in the first 1, 2, ... R of them, `(R,)`.
        distance: Frobenius norm of the difference.
        error: The same over the norm of the map.
        effective_rank: As in `low_rank`.
    """

    original: torch.Tensor
    copy: torch.Tensor
    rank: int
    values: torch.Tensor
    energy: torch.Tensor
    distance: float
    error: float
    effective_rank: float


@dataclass(frozen=True)
class CostView:
    """What a Linformer of RoBERTa-base's size costs at n and k, and its dense twin.

    Args:
        multiplies: Of a forward pass on one text, for Linformer and twin.
        kept_bytes: Kept for the backward pass, in float32, for both.
        speedup: Multiplies of the twin over those of the Linformer.
        crossing: Fewest tokens at which the Linformer takes no more multiplies; None if n is too few.
        curves: Multiplies against n at this k, for both, where n is at least k.
    """

    multiplies: tuple[int, int]
    kept_bytes: tuple[int, int]
    speedup: float
    crossing: int | None
    curves: tuple[list[tuple[int, int]], list[tuple[int, int]]]


def synthetic_map(decay: float, num_tokens: int) -> torch.Tensor:
    """Make an attention map whose singular values are exactly 1, exp(-decay), exp(-2 decay), ...

    Cosines are its singular vectors, so that each token attends around itself, and rows sum to one. The slower the
    decay, the narrower the attention.

    Args:
        decay: Fall of the logarithm from one singular value to the next.
        num_tokens: N.

    Returns:
        `(N, N)`, in float64.
    """
    numbers = torch.arange(num_tokens, dtype=torch.float64)
    cosines = torch.cos(torch.pi / num_tokens * numbers[:, None] * (numbers + 0.5))  # a row for each frequency
    cosines = cosines / torch.linalg.vector_norm(cosines, dim=1, keepdim=True)
    return cosines.T @ (torch.exp(-decay * numbers)[:, None] * cosines)


def view_rank(original: torch.Tensor, rank: int) -> RankView:
    """Copy a map, `(N, K)`, from its first k singular values (Eckart and Young 1936); k is cut to what it has."""
    original = original.double()
    left, values, right = torch.linalg.svd(original, full_matrices=False)
    rank = min(rank, len(values))
    copy = (left[:, :rank] * values[:rank]) @ right[:rank]
    error = rank_k_error(values)[rank - 1].item()
    return RankView(
        original,
        copy,
        rank,
        values,
        kept_energy(values),
        error * torch.linalg.vector_norm(values).item(),
        error,
        effective_rank(values).item(),
    )


@lru_cache(maxsize=256)
def base_config(num_tokens: int, num_slots: int) -> LinformerConfig:
    """Describe a Linformer of RoBERTa-base's size."""
    return LinformerConfig(max_position_embeddings=num_tokens, projected_length=num_slots)


def view_cost(num_tokens: int, num_slots: int, implementation: str) -> CostView:
    """Count what n tokens cost with k slots.

    Args:
        num_tokens: n.
        num_slots: k, at most n.
        implementation: `"sdpa"` or `"eager"`, as in `counting.activation_bytes`.
    """
    config = base_config(num_tokens, num_slots)
    lengths = sorted({length for length in LENGTHS if length >= num_slots} | {num_tokens})
    return CostView(
        (count_multiplies(config), dense_multiplies(config)),
        (
            activation_bytes(config, implementation=implementation),
            dense_activation_bytes(config, implementation=implementation),
        ),
        predicted_speedup(config),
        crossing_length(config),
        tuple(
            [(length, count(base_config(length, num_slots))) for length in lengths]
            for count in (count_multiplies, dense_multiplies)
        ),
    )
