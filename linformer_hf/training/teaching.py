"""How a student learns from a teacher that reads the same text: the loss, and a Trainer with two learning rates."""

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedModel, Trainer

from ..common.loading import model_length
from ..conversion.windows import (
    Reading,
    at_least_single,
    attention_modules,
    divergence,
    layer_errors,
    mean_embeddings,
    read,
    read_window,
    similarity_correlation,
    state_distance,
    window_means,
)


SHORTEST_CUT = 16
MEASURES = ("embedding_cosine", "similarity_correlation", "hidden_error")


@dataclass
class TeachingArguments:
    """What counts in the loss, and how fast the projections learn."""

    projection_learning_rate: float = field(
        default=3e-4, metadata={"help": "Learning rate of the projections E and F; --learning_rate is the layers'."}
    )
    hidden_weight: float = field(
        default=1.0, metadata={"help": "Weight of the error of every layer's output, relative to its variance."}
    )
    embedding_weight: float = field(
        default=2.0, metadata={"help": "Weight of the cosine distance of the mean-pooled embeddings."}
    )
    attention_weight: float = field(
        default=0.0, metadata={"help": "Weight of the error of every attention's output, relative to its variance."}
    )
    logits_weight: float = field(
        default=1.0,
        metadata={"help": "Weight of the divergence of what the heads predict, where both models have the same."},
    )
    temperature: float = field(default=2.0, metadata={"help": "Softens what the heads predict."})


class DistillationTrainer(Trainer):
    """A Trainer whose loss is the distance between its model and a teacher that reads the same batch.

    The length of a batch follows from the seed and the step, so that a resumed run goes on as it would have, and
    all processes take the same.

    Args:
        *args: As for `Trainer`.
        teacher: The dense encoder; it stays as it is.
        arguments: Weights of the loss, and the projections' learning rate.
        vary_length: Cut each batch to a length drawn for its step. It must hold whole blocks then.
        **kwargs: As for `Trainer`.
    """

    def __init__(
        self, *args: Any, teacher: PreTrainedModel, arguments: TeachingArguments, vary_length: bool, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = False  # the loss is a mean, and not scaled by a count of labels
        self.teacher = teacher.to(self.args.device).eval().requires_grad_(False)
        self.longest = model_length(teacher)
        self.arguments = arguments
        self.vary_length = vary_length

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Give the projections their own learning rate."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new:
            named = (self.model if model is None else model).named_parameters()
            projections = {id(weight) for name, weight in named if name.endswith("projection.weight")}
            for group in list(optimizer.param_groups):
                own = [weight for weight in group["params"] if id(weight) in projections]
                group["params"] = [weight for weight in group["params"] if id(weight) not in projections]
                if own:
                    optimizer.add_param_group({**group, "params": own, "lr": self.arguments.projection_learning_rate})
        return optimizer

    def training_step(
        self, model: nn.Module, inputs: dict[str, torch.Tensor], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Train on one batch, cut to the length of this step."""
        if self.vary_length:
            num_tokens = draw_length(inputs["input_ids"].shape[1], self.args.seed, self.state.global_step)
            inputs = {name: cut_blocks(tensor, num_tokens) for name, tensor in inputs.items()}
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, tuple[Reading, Reading]]:
        """Return the weighted distances between student and teacher."""
        input_ids, mask, labels = (inputs.get(name) for name in ("input_ids", "attention_mask", "labels"))
        records = bool(self.arguments.attention_weight)
        with torch.no_grad(), self.accelerator.autocast():
            teacher = read(
                self.teacher, input_ids, self.longest, mask, attention_modules(self.teacher) if records else ()
            )
        student = read_window(
            model,
            input_ids,
            mask,
            attention_modules(self.model) if records else (),
            **({} if labels is None else {"labels": labels}),  # a sparse head predicts the labelled tokens alone
        )
        loss = distillation_loss(student, teacher, self.arguments, mask, labels, picks_one_label(self.teacher.config))
        return (loss, (student, teacher)) if return_outputs else loss

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...] | None, torch.Tensor | None]:
        """Return the loss, what `measure` needs of the student and its layers, and the teacher's embeddings."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, (student, teacher) = self.compute_loss(model, inputs, return_outputs=True)
        if prediction_loss_only:
            return loss, None, None
        mask = inputs.get("attention_mask")
        errors, spreads = layer_errors(student.hidden_states, teacher.hidden_states, mask)
        ours, theirs = (
            mean_embeddings(reading.hidden_states[-1], teacher.window_sizes, mask) for reading in (student, teacher)
        )
        return loss, (ours, errors, spreads), theirs


def draw_length(longest: int, seed: int, step: int) -> int:
    """Draw the length of a step's batch: the longest for every second step, else its half, its quarter and so on."""
    halvings = range(1, longest.bit_length())
    shorter = [longest >> times for times in halvings if longest >> times >= SHORTEST_CUT]
    draw = random.Random(f"{seed}-{step}")
    return draw.choice([longest, draw.choice(shorter)]) if shorter else longest


def cut_blocks(tensor: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Cut framed blocks, `(B, N)`, to their first tokens and the end token."""
    if num_tokens == tensor.shape[1]:
        return tensor
    return torch.cat([tensor[:, : num_tokens - 1], tensor[:, -1:]], 1)


def picks_one_label(config: PreTrainedConfig) -> bool:
    """Tell whether logits stand for one choice among several, and not for numbers or for several labels."""
    return config.num_labels > 1 and config.problem_type != "multi_label_classification"


def distillation_loss(
    student: Reading,
    teacher: Reading,
    arguments: TeachingArguments,
    attention_mask: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    picks_one: bool = True,
) -> torch.Tensor:
    """Weigh the distances between what student and teacher make of a batch.

    Args:
        student: Its reading; logits may be those of the labelled tokens alone, `(L, V)`.
        teacher: Its reading.
        arguments: The weights.
        attention_mask: 1 for a token and 0 for padding, `(B, N)`. None means that nothing is padding.
        labels: Anything but -100 where logits count, `(B, N)`. None means at all tokens, or that there are no words.
        picks_one: Logits stand for one choice among several; otherwise for numbers, which are compared as they are.
    """
    loss = arguments.hidden_weight * state_distance(student.hidden_states, teacher.hidden_states, attention_mask)
    ours, theirs = (
        window_means(reading.hidden_states[-1], teacher.window_sizes, attention_mask) for reading in (student, teacher)
    )
    cosines, is_filled = F.cosine_similarity(ours[0], theirs[0], dim=-1), theirs[1]
    loss = loss + arguments.embedding_weight * ((1 - cosines) * is_filled).sum() / is_filled.sum()
    if arguments.attention_weight:
        distance = state_distance(student.attention_outputs, teacher.attention_outputs, attention_mask)
        loss = loss + arguments.attention_weight * distance
    if teacher.logits is not None:
        counted = attention_mask if labels is None else labels != -100
        ours, theirs = (
            logits[counted.bool()] if counted is not None and logits.dim() == 3 else logits
            for logits in (student.logits, teacher.logits)
        )
        ours, theirs = at_least_single(ours), at_least_single(theirs)
        distance = divergence(ours, theirs, arguments.temperature) if picks_one else F.mse_loss(ours, theirs)
        loss = loss + arguments.logits_weight * distance
    return loss


def measure(outcome: EvalPrediction) -> dict[str, float]:
    """Return how near the student's embeddings and layers are to the teacher's, over a held-out set."""
    ours, errors, spreads = (torch.from_numpy(array) for array in outcome.predictions)
    theirs = torch.from_numpy(outcome.label_ids)
    relative = (errors.sum(0) / spreads.sum(0)).tolist()
    return {
        "embedding_cosine": F.cosine_similarity(ours, theirs).mean().item(),
        "similarity_correlation": similarity_correlation(ours, theirs),
        "hidden_error": sum(relative) / len(relative),
        **{f"hidden_error_{number}": error for number, error in enumerate(relative, start=1)},
    }
