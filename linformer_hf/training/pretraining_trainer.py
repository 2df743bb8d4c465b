"""The Trainer of masked words: new masks in each epoch, short blocks first, and a held-out loss that counts tokens."""

from typing import Any

import torch
from torch.nn import functional as F
from transformers import (
    EvalPrediction,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import EvalLoopOutput

from ..data.masking import MaskingCollator
from .progress import ProgressLines
from .sparse_head import labelled_tokens_only


TOKEN_LOSS = "token_loss"


class NewMasks(TrainerCallback):
    """Tell the collator which epoch begins."""

    def __init__(self, collator: MaskingCollator) -> None:
        self.collator = collator

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the epoch, counted in whole passes over the text."""
        self.collator.epoch.fill_(int(state.epoch or 0))


class PretrainingTrainer(Trainer):
    """A Trainer that masks anew in each epoch, and may cut the first part of its batches into shorter blocks.

    A step sees the same tokens either way, in more and shorter rows: a Linformer reads only the first columns of its
    projections then. Step and epoch are kept in the Trainer's state, so a resumed run goes on as it would have.

    The loss of an evaluation, `eval_loss`, is the mean over all tokens to predict, without label smoothing: it does
    not depend on how examples meet in batches, and its exponential is a perplexity.

    Args:
        *args: As for `Trainer`.
        data_collator: Masks the examples.
        short_seq_length: Length of a short block, in tokens. None trains on full blocks throughout.
        short_share: Share of the steps that train on short blocks.
        **kwargs: As for `Trainer`.
    """

    def __init__(
        self,
        *args: Any,
        data_collator: MaskingCollator,
        short_seq_length: int | None = None,
        short_share: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, data_collator=data_collator, compute_metrics=mean_token_loss, **kwargs)
        self.short_seq_length = short_seq_length
        self.short_share = short_share
        self.progress = ProgressLines()
        self.add_callback(self.progress)
        self.add_callback(NewMasks(data_collator))

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], num_items_in_batch: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Train on one batch, cut into short blocks while it is early."""
        if self.short_seq_length and self.state.global_step < self.short_share * self.state.max_steps:
            inputs = {name: tensor.view(-1, self.short_seq_length) for name, tensor in inputs.items()}
        with labelled_tokens_only(self.model.config):
            loss = super().training_step(model, inputs, num_items_in_batch)
        self.progress.add_loss(loss)
        return loss

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the mean loss of a batch, and for each example the sum of its tokens' losses and their number."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager(), labelled_tokens_only(self.model.config):
            logits = model(**inputs).logits
        sums, counts = example_losses(logits, inputs["labels"])
        return sums.sum() / counts.sum(), sums, counts

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate, and let the loss of a token take the place of the mean over batches."""
        output = super().evaluation_loop(*args, **kwargs)
        for name in [name for name in output.metrics if name.endswith(TOKEN_LOSS)]:
            output.metrics[f"{name.removesuffix(TOKEN_LOSS)}loss"] = output.metrics.pop(name)
        return output


def example_losses(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the losses of the tokens to predict in each example.

    Args:
        logits: Of all tokens, `(B, N, V)`, or of those to predict, `(L, V)`, in their order.
        labels: The id of a token to predict, -100 elsewhere, `(B, N)`.

    Returns:
        The sums in nats, and the numbers of tokens, `(B,)` each.
    """
    labels = labels.to(logits.device)
    is_labelled = labels != -100
    logits = logits[is_labelled] if logits.dim() == 3 else logits
    losses = F.cross_entropy(logits.float(), labels[is_labelled], reduction="none")
    rows = is_labelled.nonzero()[:, 0]
    sums = torch.zeros(len(labels), device=losses.device).index_add(0, rows, losses)
    return sums, is_labelled.sum(1)


def mean_token_loss(outcome: EvalPrediction) -> dict[str, float]:
    """Return the mean loss of a token in nats, from sums and numbers of tokens of all examples."""
    tokens = outcome.label_ids.sum()
    return {TOKEN_LOSS: float(outcome.predictions.astype("float64").sum() / tokens) if tokens else float("nan")}
