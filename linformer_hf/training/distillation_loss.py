"""The loss of distillation: weighted distances between the outputs of student and teacher for the same batch.

Letters: B batch, N tokens, L labelled tokens, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers import PreTrainedConfig

from ..conversion.distances import at_least_single, divergence, state_distance
from ..conversion.embeddings import MEAN_EMBEDDING, TextEmbedding
from ..conversion.windows import Reading, window_means


@dataclass(frozen=True)
class LossWeights:
    """How much each distance counts; 0 leaves it out.

    Args:
        hidden: Error of every layer's output, relative to its variance.
        embedding: Cosine distance of the embeddings.
        attention: Error of every attention's output, relative to its variance.
        logits: Divergence of what the heads predict, where both models have the same head.
        temperature: Softens what the heads predict.
    """

    hidden: float = 1.0
    embedding: float = 2.0
    attention: float = 0.0
    logits: float = 1.0
    temperature: float = 2.0


def distillation_loss(
    student: Reading,
    teacher: Reading,
    weights: LossWeights,
    embedding: TextEmbedding = MEAN_EMBEDDING,
    attention_mask: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    picks_one: bool = True,
) -> torch.Tensor:
    """Return the weighted sum of the distances between two readings of a batch.

    Args:
        student: Its reading; logits may be those of the labelled tokens alone, `(L, V)`.
        teacher: Its reading.
        weights: Of each distance.
        embedding: How both models embed a text.
        attention_mask: 1 for a token and 0 for padding, `(B, N)`. None means that nothing is padding.
        labels: Anything but -100 where logits count, `(B, N)`. None means at all tokens, or that there are no words.
        picks_one: Logits stand for one choice among several; otherwise for numbers, which are compared as they are.
    """
    loss = weights.hidden * state_distance(student.hidden_states, teacher.hidden_states, attention_mask)
    loss = loss + weights.embedding * embedding_distance(student, teacher, embedding, attention_mask)
    if weights.attention:
        distance = state_distance(student.attention_outputs, teacher.attention_outputs, attention_mask)
        loss = loss + weights.attention * distance
    if teacher.logits is not None:
        counted = attention_mask if labels is None else labels != -100
        distance = logits_distance(student.logits, teacher.logits, counted, picks_one, weights.temperature)
        loss = loss + weights.logits * distance
    return loss


def embedding_distance(
    student: Reading, teacher: Reading, embedding: TextEmbedding, attention_mask: torch.Tensor | None
) -> torch.Tensor:
    """Return the mean cosine distance of embeddings, of each window where the teacher reads in several."""
    if embedding.is_mean and len(teacher.window_sizes) > 1:
        # a mean over some of the student's tokens can be compared with each window: more to learn from than their mean
        (ours, _), (theirs, is_filled) = (
            window_means(at_least_single(reading.hidden_states[-1]), teacher.window_sizes, attention_mask)
            for reading in (student, teacher)
        )
        return ((1 - F.cosine_similarity(ours, theirs, dim=-1)) * is_filled).sum() / is_filled.sum()
    ours, theirs = (embedding.of_reading(reading) for reading in (student, teacher))
    return (1 - F.cosine_similarity(ours, theirs)).mean()


def logits_distance(
    student: torch.Tensor,
    teacher: torch.Tensor,
    is_counted: torch.Tensor | None,
    picks_one: bool,
    temperature: float,
) -> torch.Tensor:
    """Return how far predictions are apart: their divergence, or the squared error of numbers.

    Args:
        student: `(B, N, V)`, `(B, V)`, or those of the counted tokens alone, `(L, V)`.
        teacher: `(B, N, V)` or `(B, V)`.
        is_counted: Which tokens count, `(B, N)`. None means all; of whole sequences all count.
        picks_one: As for `distillation_loss`.
        temperature: Softens the predictions.
    """
    ours, theirs = (
        at_least_single(logits[is_counted.bool()] if is_counted is not None and logits.dim() == 3 else logits)
        for logits in (student, teacher)
    )
    return divergence(ours, theirs, temperature) if picks_one else F.mse_loss(ours, theirs)


def picks_one_label(config: PreTrainedConfig) -> bool:
    """Tell whether logits stand for one choice among several, and not for numbers or for several labels."""
    return config.num_labels > 1 and config.problem_type != "multi_label_classification"
