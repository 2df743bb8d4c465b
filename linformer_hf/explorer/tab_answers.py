"""The tab of the answers: what the checkpoint's head predicts or, without one, how near texts are."""

from functools import partial
from html import escape

import gradio as gr
import torch
from torch.nn import functional as F
from transformers import FillMaskPipeline, TextClassificationPipeline, TokenClassificationPipeline

from ..common.heads import MASKED_LM, NO_HEAD, SEQUENCE_CLASSIFICATION, TOKEN_CLASSIFICATION
from ..conversion.windows import read_window
from .checkpoints import Checkpoint, readable, tokenize
from .controls import EXAMPLE, LIMITS, build_text, connect, noting_errors, values
from .drawing import lay_out, list_numbers
from .store import CheckpointStore


MOST_ANSWERS = 8
MOST_LINES = 64
MASKS = ("[MASK]", "<mask>")  # what visitors may write for a masked word, whatever the tokenizer calls it
MASKED_EXAMPLE = "This method returns the [MASK] of the object."
COMPARED_EXAMPLE = f"""How many bytes have been written?
{EXAMPLE}
The dog sleeps under the table."""
ABOUT = """The checkpoint's own head predicts: words for a `[MASK]`, classes for a text, or entities in it.
A checkpoint without a head embeds texts: it says how near each line is to the first."""


def answer(checkpoint: Checkpoint, text: str) -> dict[str, float] | float:
    """Let a model predict what its head is for.

    Args:
        checkpoint: A model for masked words, classes, or classes of tokens, or one without a head.
        text: With one `[MASK]` or `<mask>` to fill, or any to classify; lines to compare where there is no head.

    Returns:
        The likeliest answers with their scores, likeliest first; of a regression, the number.

    Raises:
        ValueError: If the head is another, the text is refused, or it does not hold exactly one mask.
    """
    tokenize(checkpoint.tokenizer, text)  # refuses what is empty or too long
    if checkpoint.head == MASKED_LM:
        return fill_mask(checkpoint, text)
    if checkpoint.head == SEQUENCE_CLASSIFICATION:
        return classify(checkpoint, text)
    if checkpoint.head == TOKEN_CLASSIFICATION:
        return find_entities(checkpoint, text)
    if checkpoint.head == NO_HEAD:
        return compare_lines(checkpoint, text)
    raise ValueError(
        f"{checkpoint.name} has the head {checkpoint.head.name}, which this tab does not support; choose a checkpoint "
        "that fills masks, classifies texts or tokens, or embeds texts."
    )


def fill_mask(checkpoint: Checkpoint, text: str) -> dict[str, float]:
    """Return the likeliest words for the one mask in a text."""
    tokenizer = checkpoint.tokenizer
    if tokenizer.mask_token is None:
        raise ValueError(f"The tokenizer of {checkpoint.name} has no mask token, so that no word can be masked.")
    for mask in MASKS:
        text = text.replace(mask, tokenizer.mask_token)
    read = tokenize(tokenizer, text)
    num_masks = (read.input_ids == tokenizer.mask_token_id).sum().item()
    if num_masks != 1:
        where = f"The first {len(read.tokens)} tokens hold" if read.is_cut else "The text holds"
        raise ValueError(f"{where} {num_masks} masks; write [MASK] for exactly one word.")
    predict = FillMaskPipeline(model=checkpoint.model, tokenizer=tokenizer, device=checkpoint.model.device)
    scores: dict[str, float] = {}
    for found in predict(text, top_k=MOST_ANSWERS, tokenizer_kwargs={"truncation": True}):
        scores.setdefault(readable(found["token_str"]), found["score"])  # two tokens may differ by a space alone
    return scores


def classify(checkpoint: Checkpoint, text: str) -> dict[str, float] | float:
    """Return the likeliest classes of a text; of a regression, the number."""
    config = checkpoint.model.config
    predict = TextClassificationPipeline(
        model=checkpoint.model, tokenizer=checkpoint.tokenizer, device=checkpoint.model.device
    )
    is_regression = config.num_labels == 1
    options = {"function_to_apply": "none"} if is_regression else {}
    found = predict([text], top_k=MOST_ANSWERS, truncation=True, **options)[0]
    return found[0]["score"] if is_regression else {each["label"]: each["score"] for each in found}


def find_entities(checkpoint: Checkpoint, text: str) -> dict[str, float]:
    """Return the likeliest groups of tokens that a model gives one class, with text and class."""
    predict = TokenClassificationPipeline(
        model=checkpoint.model,
        tokenizer=checkpoint.tokenizer,
        device=checkpoint.model.device,
        aggregation_strategy="simple",
    )
    scores: dict[str, float] = {}
    for found in sorted(predict(text), key=lambda found: found["score"], reverse=True):
        scores.setdefault(f"{found['word'].strip()}: {found['entity_group']}", float(found["score"]))
    if not scores:
        raise ValueError("The model finds no entity in this text.")
    return dict(list(scores.items())[:MOST_ANSWERS])


@torch.no_grad()
def compare_lines(checkpoint: Checkpoint, text: str) -> dict[str, float]:
    """Return how near lines are to the first one: the cosines of their embeddings, 0 where negative, nearest first."""
    if checkpoint.embedding is None:
        raise ValueError(f"{checkpoint.name} has no head, and its files do not say how it embeds a text.")
    lines = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not 1 < len(lines) <= MOST_LINES:
        raise ValueError(
            f"{checkpoint.name} embeds texts: write a line, and below it 1 to {MOST_LINES - 1} others, which are "
            f"compared with it. The text has {len(lines)}."
        )
    batch = checkpoint.tokenizer(lines, truncation=True, padding=True, return_tensors="pt")
    reading = read_window(checkpoint.model, batch["input_ids"], batch["attention_mask"])
    first, *others = F.normalize(checkpoint.embedding.of_reading(reading), dim=-1)
    cosines = {line: max(0.0, (first @ other).item()) for line, other in zip(lines[1:], others, strict=True)}
    return dict(sorted(cosines.items(), key=lambda found: found[1], reverse=True)[:MOST_ANSWERS])


@noting_errors(num_outputs=2)
def show_answers(store: CheckpointStore, name: str, text: str) -> tuple[str, dict[str, float] | None]:
    """Return the likeliest answers.

    Args:
        store: Where the checkpoint is.
        name: Of the checkpoint.
        text: As in `answer`.

    Returns:
        Who answers and how, as HTML, with the number of a regression; and the answers with their scores.
    """
    checkpoint = store.get(name)
    found = answer(checkpoint, text)
    by_head = f"head {checkpoint.head.name}"
    how = "cosine of each line with the first" if checkpoint.head == NO_HEAD else by_head
    caption = f"<p>Checkpoint {escape(name)}, {how}:</p>"
    if isinstance(found, dict):
        return lay_out(caption), found
    return lay_out(caption, list_numbers({checkpoint.model.config.id2label[0]: f"{found:.4g}"})), None


def build_answers(store: CheckpointStore, chosen: gr.State) -> None:
    """Lay out the tab."""
    gr.Markdown(ABOUT)
    with gr.Row():
        with gr.Column(min_width=280):
            info = f"With [MASK] for a word to guess; without a head, a line and below it others to compare. {LIMITS}"
            has_head = store.get(chosen.value).head != NO_HEAD
            text = build_text(MASKED_EXAMPLE if has_head else COMPARED_EXAMPLE, info, "Predict")
        with gr.Column(scale=2, min_width=280):
            controls = [chosen, text]
            show = partial(show_answers, store)
            picture, scores = show(*values(controls))
            source = gr.HTML(picture, elem_id="answers_from")
            answers = gr.Label(
                scores, num_top_classes=MOST_ANSWERS, label="Answers and scores", show_heading=False, elem_id="answers"
            )
            connect(show, controls, [source, answers])
