"""Training that keeps what a projection does not read, so that short texts stay cheap.

A row of E has zeros before the first token that its slot reads. A text that ends before that token needs no such slot
(`modeling_linformer.used_slots`), but an optimizer fills zeros with small numbers, and then every text needs all k.
"""

from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel, TrainerCallback


class KeepLeadingZeros(TrainerCallback):
    """Keeps the zeros before the first weight in each row of a Linformer's projections.

    Args:
        model: What is trained, as it is at the start. Rows of zeros alone, and projections of other models, are left
            to the training.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.masks = {}
        if getattr(model.config, "projection_type", None) != "linear":
            return
        for name, weight in model.named_parameters():
            if name.endswith("projection.weight"):
                is_kept = (weight == 0).cumprod(-1).bool()  # the zeros before the first other number
                is_kept &= ~is_kept[..., -1:]
                self.masks[name] = ~is_kept.detach().cpu()

    def on_pre_optimizer_step(self, *arguments: Any, model: PreTrainedModel, **options: Any) -> None:
        """Remove the gradients of the zeros; with those, weight decay and the optimizer's state leave them zero."""
        for name, weight in model.named_parameters():
            if name in self.masks and weight.grad is not None:
                weight.grad.mul_(laid_out_as(self.masks[name], weight.grad))


def laid_out_as(mask: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return a mask on the device of a gradient, in shards if the gradient is."""
    mask = mask.to(gradient.device)
    if isinstance(gradient, DTensor):
        return distribute_tensor(mask, gradient.device_mesh, gradient.placements)
    return mask
