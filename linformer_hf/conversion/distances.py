"""How far apart two encoders are: distances of states, predictions and embeddings.

Tensors in, tensors or numbers out. Letters: B batch, N tokens, M model width, E examples, P keys, Q queries,
V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional as F


FEWEST_EMBEDDINGS = 3  # two have a single similarity, of which there is no correlation
ROWS_AT_ONCE = 256  # of a table of similarities, which is too large for memory where there are many examples


def at_least_single(states: torch.Tensor) -> torch.Tensor:
    """Return numbers of half precision in single precision, and others as they are."""
    return states.to(torch.promote_types(states.dtype, torch.float32))


def state_distance(
    student: Sequence[torch.Tensor], teacher: Sequence[torch.Tensor], attention_mask: torch.Tensor | None
) -> torch.Tensor:
    """Return the mean over layers of the squared error of states, relative to the variance of the teacher's.

    Args:
        student: States of each layer, `(B, N, M)`.
        teacher: Likewise.
        attention_mask: 1 for a token and 0 for padding, `(B, N)`. None means that nothing is padding.
    """
    distances = []
    for ours, theirs in zip(student, teacher):
        ours, theirs = (at_least_single(real_tokens(states, attention_mask)) for states in (ours, theirs))
        # relative to the variance, or the layers with large states would be all that is learned
        distances.append(F.mse_loss(ours, theirs) / theirs.var(0, correction=0).mean())
    return torch.stack(distances).mean()


def real_tokens(states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Return the states of the tokens that are no padding, in one table, `(tokens, M)`."""
    return states.flatten(0, 1) if attention_mask is None else states[attention_mask.bool()]


def divergence(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the mean Kullback-Leibler divergence of predictions, in nats, softened (Hinton et al. 2015).

    The square of the temperature keeps the size of the gradients.
    """
    ours, theirs = ((logits / temperature).log_softmax(-1).flatten(0, -2) for logits in (student, teacher))
    total = F.kl_div(ours, theirs, reduction="sum", log_target=True)
    return temperature**2 * total / max(1, len(ours))


def layer_errors(
    student: Sequence[torch.Tensor], teacher: Sequence[torch.Tensor], attention_mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the squared error and the spread around the example's mean, of each example and layer, `(B, layers)`."""
    errors, spreads = [], []
    for ours, theirs in zip(student, teacher):
        mask = theirs.new_ones(theirs.shape[:2]) if attention_mask is None else attention_mask.to(theirs.dtype)
        mask = mask[..., None]
        center = (theirs * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        errors.append(((ours - theirs) * mask).square().sum((1, 2)))
        spreads.append(((theirs - center) * mask).square().sum((1, 2)))
    return torch.stack(errors, 1), torch.stack(spreads, 1)


def similarity_correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the correlation of the cosine similarities between rows, each pair once, of two `(E, M)` tables.

    Similarities are computed block by block, once for their means and once for their spread, so that the memory needed
    does not grow with the square of E. It is NaN where there are fewer rows than `FEWEST_EMBEDDINGS`, or where all are
    equally similar.
    """
    tables = [F.normalize(table.float()) for table in (first, second)]
    num_pairs = max(1, len(first) * (len(first) - 1) // 2)
    means = [sum(block.sum().item() for block in similarities(table)) / num_pairs for table in tables]
    # centered before they are multiplied: the similarities of an encoder lie close together
    product, first_square, second_square = 0.0, 0.0, 0.0
    for ours, theirs in zip(*map(similarities, tables)):
        ours, theirs = ours - means[0], theirs - means[1]
        product += (ours * theirs).sum().item()
        first_square += ours.square().sum().item()
        second_square += theirs.square().sum().item()
    spread = math.sqrt(first_square * second_square)
    return product / spread if spread else math.nan


def similarities(table: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the similarities of all pairs of rows of a normalized table, some at a time, in float64."""
    parts = table.split(ROWS_AT_ONCE)
    for number, rows in enumerate(parts):
        row, column = torch.triu_indices(len(rows), len(rows), offset=1, device=table.device)
        yield (rows @ rows.T)[row, column].double()
        for later_rows in parts[number + 1 :]:
            yield (rows @ later_rows.T).double()


def recall(queries: torch.Tensor, keys: torch.Tensor, sources: torch.Tensor | None = None) -> float:
    """Return the share of queries whose nearest key by cosine is their own.

    Args:
        queries: `(Q, M)`.
        keys: `(P, M)`.
        sources: The key that belongs to each query, `(Q,)`. None means that both come in the same order.
    """
    nearest = (F.normalize(queries) @ F.normalize(keys).T).argmax(1)
    sources = torch.arange(len(queries)) if sources is None else sources
    return (nearest == sources.to(nearest.device)).float().mean().item()
