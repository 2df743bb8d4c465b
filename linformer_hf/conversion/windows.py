"""Outputs of an encoder for a batch, in windows where the batch is longer than the encoder reads.

Letters: B batch, N tokens, M model width, W windows.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel


@dataclass
class Window:
    """The last layer of a part of a text that a model read on its own, with the tokens that frame it.

    Args:
        last_hidden_state: `(B, tokens, M)`.
        attention_mask: 1 for a token and 0 for padding, `(B, tokens)`. None means that nothing is padding.
        is_filled: Of each row whether the window holds any of its tokens, besides those that frame it, `(B,)`.
    """

    last_hidden_state: torch.Tensor
    attention_mask: torch.Tensor | None
    is_filled: torch.Tensor


@dataclass
class Reading:
    """Outputs of a model for a batch.

    Args:
        hidden_states: Output of each layer, `(B, N, M)`.
        attention_outputs: Output of each layer's attention before the residual sum, `(B, N, M)`, where recorded.
        logits: A row for each token or each sequence; None of a model without a head.
        window_sizes: Tokens of each window that was read on its own; they sum to N.
        windows: The windows as they were read, of which the embedding of a text is made.
    """

    hidden_states: Sequence[torch.Tensor]
    attention_outputs: Sequence[torch.Tensor]
    logits: torch.Tensor | None
    window_sizes: list[int]
    windows: Sequence[Window]


def read(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    longest: int,
    attention_mask: torch.Tensor | None = None,
    recorded_modules: Sequence[nn.Module] = (),
) -> Reading:
    """Read a batch, in windows where it is longer than the model reads.

    Each window is framed by the first and the last token of its own row, because the model was trained on texts that
    are framed so. States of an added frame are left out of the result, so that its rows stay aligned with tokens.

    Args:
        model: Any encoder.
        input_ids: Framed texts, padded on the right, `(B, N)`.
        longest: What the model reads at once, in tokens.
        attention_mask: 1 for a token and 0 for padding, `(B, N)`. None means that nothing is padding.
        recorded_modules: As from `attention_modules`, to record what they return.

    Returns:
        States of all tokens. Logits of sequences are the mean over the windows that hold tokens.
    """
    sizes = window_sizes(input_ids.shape[1], longest)
    if len(sizes) == 1:
        return read_window(model, input_ids, attention_mask, recorded_modules)
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    start, end = input_ids[:, :1], input_ids.gather(1, mask.sum(1, keepdim=True) - 1)
    readings = []
    for number, (ids, real) in enumerate(zip(input_ids.split(sizes, 1), mask.split(sizes, 1))):
        is_filled = real.any(1)
        is_first, is_last = number == 0, number == len(sizes) - 1
        if not is_first:
            ids, real = torch.cat([start, ids], 1), torch.cat([mask[:, :1], real], 1)
        if not is_last:
            ids, real = torch.cat([ids, end], 1), torch.cat([real, real[:, -1:]], 1)
        reading = read_window(model, ids, None if attention_mask is None else real, recorded_modules)
        reading.windows[0].is_filled = is_filled
        readings.append(cut_reading(reading, slice(0 if is_first else 1, None if is_last else -1)))
    logits = None
    if readings[0].logits is not None:
        parts = [reading.logits for reading in readings]
        logits = torch.cat(parts, 1) if parts[0].dim() == 3 else filled_mean(readings)
    return Reading(
        hidden_states=[torch.cat(layer, 1) for layer in zip(*(reading.hidden_states for reading in readings))],
        attention_outputs=[torch.cat(layer, 1) for layer in zip(*(part.attention_outputs for part in readings))],
        logits=logits,
        window_sizes=sizes,
        windows=[reading.windows[0] for reading in readings],
    )


def filled_mean(readings: Sequence[Reading]) -> torch.Tensor:
    """Return the logits of sequences, each the mean over the windows that hold its tokens, `(B, L)` for L labels."""
    logits = torch.stack([reading.logits for reading in readings])
    is_filled = torch.stack([reading.windows[0].is_filled for reading in readings])[..., None].to(logits.dtype)
    return (logits * is_filled).sum(0) / is_filled.sum(0).clamp(min=1)


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
    is_filled = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
    return Reading(
        hidden_states=outputs.hidden_states[1:],
        attention_outputs=attention_outputs,
        logits=outputs.get("logits"),
        window_sizes=[input_ids.shape[1]],
        windows=[Window(outputs.hidden_states[-1], attention_mask, is_filled)],
    )


def cut_reading(reading: Reading, rows: slice) -> Reading:
    """Keep the rows of some tokens; the window stays as it was read."""
    logits = reading.logits
    return Reading(
        hidden_states=[states[:, rows] for states in reading.hidden_states],
        attention_outputs=[states[:, rows] for states in reading.attention_outputs],
        logits=logits[:, rows] if logits is not None and logits.dim() == 3 else logits,
        window_sizes=reading.window_sizes,
        windows=reading.windows,
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


def attention_modules(model: PreTrainedModel) -> list[nn.Module]:
    """List the modules, one per layer, whose output is an attention's before the residual sum.

    Raises:
        ValueError: If the model's layers are not built like BERT's.
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


def window_means(
    states: torch.Tensor, window_sizes: list[int], attention_mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean state of each window's tokens, `(B, W, M)`, and 1 for windows that hold any, `(B, W)`."""
    mask = states.new_ones(states.shape[:2]) if attention_mask is None else attention_mask.to(states.dtype)
    sums = [part.sum(1) for part in (states * mask[..., None]).split(window_sizes, 1)]
    counts = torch.stack([part.sum(1) for part in mask.split(window_sizes, 1)], 1)
    return torch.stack(sums, 1) / counts.clamp(min=1)[..., None], (counts > 0).to(states.dtype)
