"""What a spectrum says: means over texts, the numbers of the record, a table, and sentences that recommend a k."""

from collections.abc import Mapping
from typing import Any

from ..common.markdown import markdown_table
from .accumulation import Sums
from .singular_values import ranks_keeping, recommend


SHARES = (0.9, 0.95, 0.99)
DIGITS = 4
EQUAL = 0.1  # the relative difference below which two k count as about equal

MEANINGS = {
    "cumulative": "share of the sum of singular values in the first k of them, mean over texts; a text shorter than k "
    "has no more of them: (layers, heads, k)",
    "energy": "the same of their squares",
    "error": "Frobenius norm of the map minus the best map of rank `rank`, over that of the map: (layers, heads)",
    "effective_rank": "exponential of the entropy of normalized singular values: (layers, heads)",
    "ranks": "smallest k at which a layer's energy, in the mean over heads, reaches a share: (layers,) for each share",
    "distance": "Frobenius norm of the Linformer's map between tokens minus the dense one's, over the latter's, each "
    "model reading its own hidden states: (layers, heads)",
    "least_distance": "the smallest distance that a map of rank k can have, with the k of the layer",
}


def summarize(means: Sums, rank: int, share: float) -> dict[str, Any]:
    """Turn means over texts into what `spectrum.json` holds: lists, and the k that keeps a share of the energy.

    Args:
        means: Means over texts, `(L, H)` or `(L, H, R)`.
        rank: The k of figure and table.
        share: Share of the energy that the recommended k keeps.
    """
    energy = means["energy"]
    means = means | {"error": means["error"][..., rank - 1]}
    return {
        **{name: rounded(mean.tolist()) for name, mean in means.items()},
        "ranks": {f"{part:g}": ranks_keeping(energy.mean(1), part).tolist() for part in SHARES},
        "share": share,
        "projected_length": recommend(energy, share),
    }


def rounded(numbers: Any) -> Any:
    """Round nested lists of numbers to the digits that a figure can show."""
    return [rounded(number) for number in numbers] if isinstance(numbers, list) else round(numbers, DIGITS)


def at_rank(spectrum: Mapping[str, Any], name: str) -> list[float]:
    """Return the value of a curve at the k of the table for each layer, the mean over heads."""
    return [sum(head[spectrum["rank"] - 1] for head in layer) / len(layer) for layer in spectrum[name]]


def over_heads(spectrum: Mapping[str, Any], name: str) -> list[float]:
    """Return the mean over heads for each layer."""
    return [sum(layer) / len(layer) for layer in spectrum[name]]


def record_numbers(spectrum: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of the record, where lists hold a number for each layer."""
    by_head = [name for name in ("error", "effective_rank", "distance", "least_distance") if name in spectrum]
    return {
        "rank": spectrum["rank"],
        "num_texts": spectrum["num_texts"],
        **{f"{name}_at_rank": at_rank(spectrum, name) for name in ("cumulative", "energy")},
        **{name: over_heads(spectrum, name) for name in by_head},
        **{f"rank_for_{100 * float(share):g}_percent": ranks for share, ranks in spectrum["ranks"].items()},
        "share": spectrum["share"],
        "projected_length": spectrum["projected_length"],
    }


def table(spectrum: Mapping[str, Any]) -> str:
    """Lay out a row for each layer: shares and error at k, and the k of each share."""
    columns = {
        "layer": [str(layer) for layer in range(1, len(spectrum["energy"]) + 1)],
        "cumulative": [f"{value:.3f}" for value in at_rank(spectrum, "cumulative")],
        "energy": [f"{value:.3f}" for value in at_rank(spectrum, "energy")],
        "error": [f"{value:.3f}" for value in over_heads(spectrum, "error")],
        "effective rank": [f"{value:.1f}" for value in over_heads(spectrum, "effective_rank")],
    }
    for share, ranks in spectrum["ranks"].items():
        columns[f"k for {100 * float(share):g} %"] = [str(rank) for rank in ranks]
    if "distance" in spectrum:
        columns["distance"] = [f"{value:.3f}" for value in over_heads(spectrum, "distance")]
        columns["least distance"] = [f"{value:.3f}" for value in over_heads(spectrum, "least_distance")]
    title = f"Means over heads and {spectrum['num_texts']} texts; shares and error at k = {spectrum['rank']}:"
    return f"{title}\n\n{markdown_table(list(columns), zip(*columns.values()))}\n"


def recommendation(share: float, longest_text: int, projected_length: list[int]) -> str:
    """Recommend a k, as the configuration takes it.

    Args:
        share: Share of the energy that it keeps.
        longest_text: Tokens of the longest text.
        projected_length: k of each layer.
    """
    return (
        f"To keep {100 * share:g} % of the energy of each layer's maps on texts of up to {longest_text} tokens, take "
        f"projected_length={max(projected_length)}, or layer by layer projected_length={projected_length}."
    )


def compare_halves(share: str, ranks: list[int]) -> str:
    """Say whether the first half of the layers needs more slots than the last half.

    Args:
        share: The share of the energy that is kept, as in `"0.95"`.
        ranks: The smallest k that keeps it, for each layer.

    Returns:
        A sentence; of a single layer an empty text.
    """
    half = len(ranks) // 2
    if half == 0:
        return ""
    first, last = sum(ranks[:half]) / half, sum(ranks[-half:]) / half
    subject, verb = ("layer", "needs") if half == 1 else (f"{half} layers", "need")
    if abs(first - last) < EQUAL * max(first, last):
        comparison = "about as many slots as"
    else:
        comparison = "more slots than" if first > last else "fewer slots than"
    needs = f"the first {subject} {verb} {comparison} the last: k = {first:.0f} and {last:.0f} in the mean"
    return f"For {100 * float(share):g} % of the energy {needs}."
