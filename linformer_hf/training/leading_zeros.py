"""Training that keeps what a projection does not read, so that short texts stay cheap.

A row of E has zeros before the first token that its slot reads. A text that ends before that token needs no such
slot, and on a CPU it is not computed (`modeling_linformer.used_slots`). An optimizer would fill the zeros with small
numbers, and then every text would need all k slots.
"""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging


logger = logging.get_logger(__name__)


def keep_leading_zeros(model: PreTrainedModel, is_sharded: bool = False) -> None:
    """Give the zeros before the first weight in each row of a Linformer's projections no gradient from now on.

    Without a gradient, weight decay and the state of an optimizer leave zeros as they are. Rows of zeros alone, and
    all weights of other models, learn as before.

    Args:
        model: What will be trained, as it is at the start.
        is_sharded: Whether FSDP will put other parameters in the place of the model's. Then nothing is kept, and a
            warning says so.
    """
    if getattr(model.config, "projection_type", None) != "linear":
        return
    learning = [
        weight
        for name, weight in model.named_parameters()
        if name.endswith("projection.weight") and weight.requires_grad and leading_zeros(weight.detach()).any()
    ]
    if is_sharded and learning:
        logger.warning(
            "--keep_leading_zeros has no effect on a model that FSDP shards: after the training, short texts need all "
            "slots. Without FSDP they need fewer."
        )
        return
    for weight in learning:
        mask_gradient(weight, ~leading_zeros(weight.detach()))


def leading_zeros(weight: torch.Tensor) -> torch.Tensor:
    """Tell which weights are zeros before the first other number of their row; none in a row of zeros alone."""
    is_leading = (weight == 0).cumprod(-1).bool()
    return is_leading & ~is_leading[..., -1:]


def mask_gradient(weight: nn.Parameter, mask: torch.Tensor) -> None:
    """Multiply every gradient of a weight by a mask, before the gradients of a step are clipped."""

    def multiply(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal mask
        mask = mask.to(gradient.device)  # the Trainer moves the model after this call
        return gradient * mask

    weight.register_hook(multiply)
