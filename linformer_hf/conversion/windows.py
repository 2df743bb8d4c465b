"""What encoders make of a batch, in windows where it is longer than they read, and how far two of them are apart.

Letters: B batch, N tokens, M model width, W windows, E examples, P pairs, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel


@dataclass
class Reading:
    """What a model makes of a batch.

    Args:
        hidden_states: Output of each layer, `(B, N, M)`.
        attention_outputs: Output of each layer's attention before the residual sum, `(B, N, M)`, where recorded.
        logits: A row for each token or each sequence; None of a model without a head.
        window_sizes: Tokens of each window that was read on its own; they sum to N.
    """

    hidden_states: Sequence[torch.Tensor]
    attention_outputs: Sequence[torch.Tensor]
    logits: torch.Tensor | None
    window_sizes: list[int]


def read(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    longest: int,
    attention_mask: torch.Tensor | None = None,
    recorded_modules: Sequence[nn.Module] = (),
) -> Reading:
    """Read a batch, in windows where it is longer than the model reads.

    Each window is framed by the first and the last token of its own row, as the model is used to; what the model
    makes of an added frame is left out, so that rows stay aligned with tokens.

    Args:
        model: Any encoder.
        input_ids: Framed texts, padded on the right, `(B, N)`.
        longest: What the model reads at once, in tokens.
        attention_mask: 1 for a token and 0 for padding, `(B, N)`. None means that nothing is padding.
        recorded_modules: As from `attention_modules`, to record what they return.

    Returns:
        States of all tokens. Logits of sequences are the mean over windows.
    """
    sizes = window_sizes(input_ids.shape[1], longest)
    if len(sizes) == 1:
        return read_window(model, input_ids, attention_mask, recorded_modules)
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    start, end = input_ids[:, :1], input_ids.gather(1, mask.sum(1, keepdim=True) - 1)
    windows = []
    for number, (ids, real) in enumerate(zip(input_ids.split(sizes, 1), mask.split(sizes, 1))):
        opens, closes = number > 0, number < len(sizes) - 1
        ids = torch.cat([start] * opens + [ids] + [end] * closes, 1)
        framed = torch.cat([mask[:, :1]] * opens + [real] + [real[:, -1:]] * closes, 1)
        window = read_window(model, ids, None if attention_mask is None else framed, recorded_modules)
        windows.append(cut_reading(window, slice(int(opens), -1 if closes else None)))
    logits = None
    if windows[0].logits is not None:
        rows = [window.logits for window in windows]
        logits = torch.cat(rows, 1) if rows[0].dim() == 3 else torch.stack(rows).mean(0)
    return Reading(
        [torch.cat(layer, 1) for layer in zip(*(window.hidden_states for window in windows))],
        [torch.cat(layer, 1) for layer in zip(*(window.attention_outputs for window in windows))],
        logits,
        sizes,
    )


def window_sizes(num_tokens: int, longest: int) -> list[int]:
    """Divide tokens evenly into as few windows as a model needs that frames each of them by two of its tokens."""
    if num_tokens <= longest:
        return [num_tokens]
    room = num_tokens - 2  # the outer windows hold a part of the frame already
    count = -(-room // (longest - 2))
    sizes = [room // count + (number < room % count) for number in range(count)]
    sizes[0] += 1
    sizes[-1] += 1
    return sizes


def read_window(
    model: nn.Module,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    recorded_modules: Sequence[nn.Module] = (),
    **kwargs: Any,
) -> Reading:
    """Read a batch that is no longer than the model reads; further keywords are its own."""
    with recorded(recorded_modules) as attention_outputs:
        outputs = model(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True, **kwargs)
    return Reading(outputs.hidden_states[1:], attention_outputs, outputs.get("logits"), [input_ids.shape[1]])


def cut_reading(reading: Reading, rows: slice) -> Reading:
    """Keep the rows of some tokens."""
    logits = reading.logits
    return Reading(
        [states[:, rows] for states in reading.hidden_states],
        [states[:, rows] for states in reading.attention_outputs],
        logits[:, rows] if logits is not None and logits.dim() == 3 else logits,
        reading.window_sizes,
    )


@contextmanager
def recorded(modules: Sequence[nn.Module]) -> Iterator[list[torch.Tensor]]:
    """Collect what modules return, in the order of their calls."""
    outputs = []

    def keep(module: nn.Module, arguments: tuple, output: torch.Tensor | tuple) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)

    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def mean_embeddings(
    states: torch.Tensor, window_sizes: list[int], attention_mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the mean over windows of the mean state of their tokens, `(B, M)`."""
    means, weights = window_means(states, window_sizes, attention_mask)
    return (means * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)


def attention_modules(model: PreTrainedModel) -> list[nn.Module]:
    """List the modules, one a layer, whose output is an attention's before the residual sum.

    Raises:
        ValueError: If they are not where BERT and its kin have them.
    """
    body = model.base_model
    if model.config.model_type == "linformer":
        return [layer.attention for layer in body.layers]
    try:
        return [layer.attention.output.dense for layer in body.encoder.layer]
    except AttributeError as error:
        raise ValueError(
            f"--attention_weight needs a teacher built like BERT; a {model.config.model_type} is not. Leave it at 0."
        ) from error


def at_least_single(states: torch.Tensor) -> torch.Tensor:
    """Return numbers of half precision in single precision, and others as they are."""
    return states.to(torch.promote_types(states.dtype, torch.float32))


def state_distance(
    student: Sequence[torch.Tensor], teacher: Sequence[torch.Tensor], attention_mask: torch.Tensor | None
) -> torch.Tensor:
    """Return the mean over layers of the squared error of states, relative to the variance of the teacher's."""
    is_token = ... if attention_mask is None else attention_mask.bool()
    distances = []
    for ours, theirs in zip(student, teacher):
        ours, theirs = (at_least_single(states[is_token].flatten(0, -2)) for states in (ours, theirs))
        distances.append(F.mse_loss(ours, theirs) / theirs.var(0, correction=0).mean())
    return torch.stack(distances).mean()


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


def window_means(
    states: torch.Tensor, window_sizes: list[int], attention_mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean state of each window's tokens, `(B, W, M)`, and 1 for windows that hold any, `(B, W)`."""
    mask = states.new_ones(states.shape[:2]) if attention_mask is None else attention_mask.to(states.dtype)
    sums = [part.sum(1) for part in (states * mask[..., None]).split(window_sizes, 1)]
    counts = torch.stack([part.sum(1) for part in mask.split(window_sizes, 1)], 1)
    return torch.stack(sums, 1) / counts.clamp(min=1)[..., None], (counts > 0).to(states.dtype)


def similarity_correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the correlation of the cosine similarities between rows, each pair once, of two `(E, M)` tables."""
    rows, columns = torch.triu_indices(len(first), len(first), offset=1, device=first.device)
    similarities = [
        (F.normalize(table.float()) @ F.normalize(table.float()).T)[rows, columns] for table in (first, second)
    ]
    return torch.corrcoef(torch.stack(similarities))[0, 1].item()


def recall(queries: torch.Tensor, keys: torch.Tensor) -> float:
    """Return the share of queries whose nearest key by cosine is their own, of two `(P, M)` tables."""
    nearest = (F.normalize(queries) @ F.normalize(keys).T).argmax(1)
    return (nearest == torch.arange(len(queries), device=queries.device)).float().mean().item()
