"""The heads of an encoder: what each is called in class names, on command lines and on the Hub."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from ..modeling_linformer import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
    LinformerPreTrainedModel,
)


@dataclass(frozen=True)
class Head:
    """One kind of head, or none.

    Args:
        name: On a command line.
        suffix: End of the names of its classes, as in `BertForMaskedLM`.
        auto_class: The host's class that loads any model with it.
        linformer_class: The Linformer that has it.
        pipeline_tag: The task that the Hub files its models under.
        any_text: Whether it predicts something for every text, so that two models can be compared on it.
    """

    name: str
    suffix: str
    auto_class: type
    linformer_class: type[LinformerPreTrainedModel]
    pipeline_tag: str
    any_text: bool = False


NO_HEAD = Head("none", "Model", AutoModel, LinformerModel, "feature-extraction")
MASKED_LM = Head("masked_lm", "ForMaskedLM", AutoModelForMaskedLM, LinformerForMaskedLM, "fill-mask", any_text=True)
SEQUENCE_CLASSIFICATION = Head(
    "sequence_classification",
    "ForSequenceClassification",
    AutoModelForSequenceClassification,
    LinformerForSequenceClassification,
    "text-classification",
    any_text=True,
)
TOKEN_CLASSIFICATION = Head(
    "token_classification",
    "ForTokenClassification",
    AutoModelForTokenClassification,
    LinformerForTokenClassification,
    "token-classification",
    any_text=True,
)
QUESTION_ANSWERING = Head(
    "question_answering",
    "ForQuestionAnswering",
    AutoModelForQuestionAnswering,
    LinformerForQuestionAnswering,
    "question-answering",
)
MULTIPLE_CHOICE = Head(
    "multiple_choice",
    "ForMultipleChoice",
    AutoModelForMultipleChoice,
    LinformerForMultipleChoice,
    "multiple-choice",
)
HEADS = (NO_HEAD, MASKED_LM, SEQUENCE_CLASSIFICATION, TOKEN_CLASSIFICATION, QUESTION_ANSWERING, MULTIPLE_CHOICE)


def head_of_class(class_name: str) -> Head:
    """Return the head of a class by its name; `NO_HEAD` where it is none of `HEADS`."""
    return next((head for head in HEADS if class_name.endswith(head.suffix)), NO_HEAD)


def head_of_checkpoint(architectures: Sequence[str] | None) -> Head:
    """Return the head that a configuration's `architectures` name; `NO_HEAD` where they name none."""
    return head_of_class(architectures[0]) if architectures else NO_HEAD


def shared_head(first: Head, second: Head) -> Head:
    """Return the head of two models whose predictions can be compared on any text; `NO_HEAD` where there is none."""
    return first if first == second and first.any_text else NO_HEAD


def head_named(name: str) -> Head:
    """Look a head up by its name on a command line.

    Raises:
        ValueError: If there is none of that name.
    """
    for head in HEADS:
        if head.name == name:
            return head
    raise ValueError(f"--head is {name!r}; it must be one of {', '.join(head.name for head in HEADS)}.")


def head_of_pipeline(pipeline_tag: str) -> Head:
    """Return the head that serves a task of the Hub; `NO_HEAD` where there is none."""
    return next((head for head in HEADS if head.pipeline_tag == pipeline_tag), NO_HEAD)
