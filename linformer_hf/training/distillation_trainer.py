"""A Trainer whose model learns from a teacher that reads the same text, and the metrics of how close they are."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import EvalPrediction, PreTrainedModel, Trainer

from ..common.loading import model_length
from ..common.measurement import STEADY_SECONDS, median_speedup, seconds_in_turns
from ..conversion.distances import layer_errors, similarity_correlation
from ..conversion.embeddings import MEAN_EMBEDDING, TextEmbedding
from ..conversion.windows import Reading, attention_modules, read, read_window
from .distillation_loss import LossWeights, distillation_loss, picks_one_label
from .optimizers import set_projection_learning_rate
from .sparse_head import labelled_tokens_only


SHORTEST_CUT = 16
MEASURED_LENGTHS = (16, 32, 64, 128, 256, 512)
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
        default=2.0, metadata={"help": "Weight of the cosine distance of the embeddings, pooled as the model pools."}
    )
    attention_weight: float = field(
        default=0.0, metadata={"help": "Weight of the error of every attention's output, relative to its variance."}
    )
    logits_weight: float = field(
        default=1.0,
        metadata={"help": "Weight of the divergence of what the heads predict, where both models have the same head."},
    )
    temperature: float = field(default=2.0, metadata={"help": "Softens what the heads predict."})

    def loss_weights(self) -> LossWeights:
        """Return the weights of the loss."""
        return LossWeights(
            hidden=self.hidden_weight,
            embedding=self.embedding_weight,
            attention=self.attention_weight,
            logits=self.logits_weight,
            temperature=self.temperature,
        )


class DistillationTrainer(Trainer):
    """A Trainer whose loss is the distance between its model and a teacher that reads the same batch.

    The length of a batch follows from the seed and the step, so that a resumed run goes on as it would have, and
    all processes take the same.

    Args:
        *args: As for `Trainer`.
        teacher: The dense encoder; it stays as it is.
        weights: Of the loss.
        projection_learning_rate: Of the projections E and F.
        vary_length: Cut each batch to a length drawn for its step. It must hold whole blocks then.
        embedding: How both models embed a text.
        measured_lengths: Held-out blocks are also measured when cut to these lengths, where they are longer. They
            must be whole blocks then.
        **kwargs: As for `Trainer`.
    """

    def __init__(
        self,
        *args: Any,
        teacher: PreTrainedModel,
        weights: LossWeights,
        projection_learning_rate: float,
        vary_length: bool,
        embedding: TextEmbedding = MEAN_EMBEDDING,
        measured_lengths: Sequence[int] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = False  # the loss is a mean, and not scaled by a count of labels
        self.teacher = teacher.to(self.args.device).eval().requires_grad_(False)
        self.longest = model_length(teacher)
        self.weights = weights
        self.projection_learning_rate = projection_learning_rate
        self.vary_length = vary_length
        self.embedding = embedding
        self.measured_lengths = tuple(measured_lengths)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Give the projections their own learning rate."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new:
            set_projection_learning_rate(
                optimizer, self.model if model is None else model, self.projection_learning_rate
            )
        return optimizer

    def training_step(
        self, model: nn.Module, inputs: dict[str, torch.Tensor], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Train on one batch, cut to the length of this step."""
        if self.vary_length:
            num_tokens = draw_length(inputs["input_ids"].shape[1], self.args.seed, self.state.global_step)
            inputs = cut_batch(inputs, num_tokens)
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, tuple[Reading, Reading]]:
        """Return the weighted distances between student and teacher."""
        student, teacher = self.read_batch(model, inputs, records_attention=bool(self.weights.attention))
        loss = distillation_loss(
            student,
            teacher,
            self.weights,
            self.embedding,
            inputs.get("attention_mask"),
            inputs.get("labels"),
            picks_one_label(self.teacher.config),
        )
        return (loss, (student, teacher)) if return_outputs else loss

    def read_batch(
        self, model: nn.Module, inputs: dict[str, torch.Tensor], records_attention: bool = False
    ) -> tuple[Reading, Reading]:
        """Let student and teacher read a batch, the teacher in windows where it is longer than the teacher reads."""
        input_ids, mask, labels = (inputs.get(name) for name in ("input_ids", "attention_mask", "labels"))
        with torch.no_grad(), self.accelerator.autocast():
            recorded = attention_modules(self.teacher) if records_attention else ()
            teacher = read(self.teacher, input_ids, self.longest, mask, recorded)
        with labelled_tokens_only(self.model.config):
            student = read_window(
                model,
                input_ids,
                mask,
                attention_modules(self.model) if records_attention else (),
                **({} if labels is None else {"labels": labels}),
            )
        return student, teacher

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...] | None, tuple[torch.Tensor, ...] | None]:
        """Return the loss, what `Measurement` needs of the student and its layers, and the teacher's embeddings.

        Embeddings are those of whole examples, then those of examples cut to each of `measured_lengths`,
        `(B, lengths, D)`.
        """
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, (student, teacher) = self.compute_loss(model, inputs, return_outputs=True)
            if prediction_loss_only:
                return loss, None, None
            readings = [(student, teacher)]
            for length in self.shorter_lengths(inputs["input_ids"].shape[1]):
                readings.append(self.read_batch(model, cut_batch(inputs, length)))
            ours, theirs = (
                torch.stack([self.embedding.of_reading(reading) for reading in side], 1) for side in zip(*readings)
            )
            errors, spreads = layer_errors(student.hidden_states, teacher.hidden_states, inputs.get("attention_mask"))
        return loss, (ours, errors, spreads), theirs

    def shorter_lengths(self, num_tokens: int) -> list[int]:
        """List the lengths below that of an example at which embeddings are measured as well."""
        return [length for length in self.measured_lengths if length < num_tokens]


def draw_length(longest: int, seed: int, step: int) -> int:
    """Draw the length of a step's batch: the longest with probability 1/2, else its half, its quarter and so on."""
    halvings = range(1, longest.bit_length())
    shorter = [longest >> times for times in halvings if longest >> times >= SHORTEST_CUT]
    draw = random.Random(f"{seed}-{step}")
    return draw.choice([longest, draw.choice(shorter)]) if shorter else longest


def cut_batch(inputs: dict[str, torch.Tensor], num_tokens: int) -> dict[str, torch.Tensor]:
    """Cut each tensor of a batch of framed blocks, `(B, N)`, as `cut_blocks` does."""
    return {name: cut_blocks(tensor, num_tokens) for name, tensor in inputs.items()}


def cut_blocks(tensor: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Cut framed blocks, `(B, N)`, to their first tokens and the end token."""
    if num_tokens == tensor.shape[1]:
        return tensor
    return torch.cat([tensor[:, : num_tokens - 1], tensor[:, -1:]], 1)


class Measurement:
    """The metrics of a held-out set, as a Trainer's `compute_metrics`.

    Args:
        lengths: The lengths of examples in the order in which their embeddings come: the whole length first. None
            where examples have several lengths.
    """

    def __init__(self, lengths: Sequence[int] | None = None) -> None:
        self.lengths = lengths

    def __call__(self, outcome: EvalPrediction) -> dict[str, float]:
        """Return how close the student's embeddings and layers are to the teacher's, over a held-out set."""
        ours, errors, spreads = (torch.from_numpy(array) for array in outcome.predictions)
        theirs = torch.from_numpy(outcome.label_ids)
        relative = (errors.sum(0) / spreads.sum(0)).tolist()
        found = {
            **compare_embeddings(ours[:, 0], theirs[:, 0]),
            "hidden_error": sum(relative) / len(relative),
            **{f"hidden_error_{number}": error for number, error in enumerate(relative, start=1)},
        }
        for place, length in enumerate(self.lengths or ()):
            at_length = compare_embeddings(ours[:, place], theirs[:, place])
            found |= {f"{name}_{length}": value for name, value in at_length.items()}
        return found


def compare_embeddings(ours: torch.Tensor, theirs: torch.Tensor) -> dict[str, float]:
    """Return the mean cosine of two tables of embeddings, `(E, D)`, and the correlation of their similarities."""
    return {
        "embedding_cosine": F.cosine_similarity(ours, theirs).mean().item(),
        "similarity_correlation": similarity_correlation(ours, theirs),
    }


@torch.no_grad()
def speedups(
    student: PreTrainedModel, teacher: PreTrainedModel, blocks: torch.Tensor, lengths: Sequence[int], rounds: int = 5
) -> dict[str, float]:
    """Measure how many times faster the student reads a batch than its teacher, at several lengths.

    Args:
        student: The Linformer.
        teacher: The dense encoder, on the same device.
        blocks: Framed blocks, `(B, N)`.
        lengths: To which they are cut, N at most.
        rounds: Timings of each model, in turns; short texts take up to ten times as many. The median of the ratios
            is returned.

    Returns:
        `speedup_16` and so on.
    """
    was_training = student.training
    student.eval()
    found = {}
    for length in lengths:
        input_ids = cut_blocks(blocks, length).to(teacher.device)
        calls = {
            "student": lambda ids=input_ids: read(student, ids, model_length(student)),
            "teacher": lambda ids=input_ids: read(teacher, ids, model_length(teacher)),
        }
        for call in calls.values():
            call()  # the first call is slower
        seconds = seconds_in_turns(calls, rounds, teacher.device, STEADY_SECONDS)
        found[f"speedup_{length}"] = median_speedup(seconds["teacher"], seconds["student"])
    student.train(was_training)
    return found


def length_table(metrics: Mapping[str, float]) -> list[str]:
    """Set the metrics that were measured at several lengths as a table, with a line for each length."""
    lengths = sorted(int(name.rpartition("_")[2]) for name in metrics if name.startswith("embedding_cosine_"))
    lines = [f"{'tokens':>8}{'cosine':>10}{'correlation':>14}{'speed':>10}"] if lengths else []
    for length in lengths:
        cosine, correlation = (metrics[f"{name}_{length}"] for name in MEASURES[:2])
        speed = f"{metrics[f'speedup_{length}']:>8.2f} x" if f"speedup_{length}" in metrics else f"{'-':>10}"
        lines.append(f"{length:>8}{cosine:>10.3f}{correlation:>14.3f}{speed}")
    return lines
