"""Options that several commands have, and checks: those that have no effect, and numbers that are out of range."""

from collections.abc import Mapping
from typing import Any


SHARING_HELP = (
    "What shares a projection. none: nothing, each head has an E and an F; headwise: the heads of a layer; key_value: "
    "also its keys and values; layerwise: all layers, one matrix for the model."
)
TYPE_HELP = (
    "How tokens become slots. linear: by learned matrices; mean_pool, max_pool, conv: a slot for each window of n / k "
    "tokens, by its mean, its maximum or learned weights."
)


def refuse_unused(options: Mapping[str, Any], reason: str) -> None:
    """Refuse options that were given though they have no effect.

    Args:
        options: Their values by name; None, False and an empty list mean that an option was not given.
        reason: Why they have none; it names the other option, as in "without --do_train".

    Raises:
        ValueError: At the first one that was given.
    """
    for name, value in options.items():
        if value is None or value is False or value == []:
            continue
        shown = " ".join(map(str, value)) if isinstance(value, list) else value
        raise ValueError(f"--{name} is {shown}, which has no effect {reason}. Leave it out.")


def check_share(name: str, share: float | None) -> None:
    """Check an option that is a share of something.

    Raises:
        ValueError: If it does not lie between 0 and 1.
    """
    if share is not None and not 0 <= share <= 1:
        raise ValueError(f"--{name} is {share}; it must lie between 0 and 1.")


def check_seed(seed: int) -> None:
    """Check a seed of random numbers.

    Raises:
        ValueError: If some generator does not take it.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"--seed is {seed}; it must lie between 0 and {2**32 - 1}.")


def check_counts(counts: Mapping[str, int | None]) -> None:
    """Check options that count something.

    Args:
        counts: Their values by name; None where one is not given.

    Raises:
        ValueError: At the first that is less than 1.
    """
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"--{name} is {count}; it must be at least 1.")
