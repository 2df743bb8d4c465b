"""The tab of the answers: what the checkpoint's head predicts, by the pipelines of Transformers."""

from functools import partial
from html import escape

import gradio as gr
from transformers import FillMaskPipeline, TextClassificationPipeline, TokenClassificationPipeline

from ..common.heads import MASKED_LM, NO_HEAD, SEQUENCE_CLASSIFICATION, TOKEN_CLASSIFICATION
from .checkpoints import Checkpoint, readable, tokenize
from .controls import LIMITS, build_text, connect, noting_errors, values
from .drawing import lay_out, list_numbers
from .store import CheckpointStore


MOST_ANSWERS = 8
MASKS = ("[MASK]", "<mask>")  # what visitors may write for a masked word, whatever the tokenizer calls it
MASKED_EXAMPLE = "This method returns the [MASK] of the object."
ABOUT = """The checkpoint's own head predicts: words for a `[MASK]`, classes for a text, or entities in it."""


def answer(checkpoint: Checkpoint, text: str) -> dict[str, float] | float:
    """Let a model predict what its head is for.

    Args:
        checkpoint: A model for masked words, classes, or classes of tokens.
        text: With one `[MASK]` or `<mask>` to fill, or any to classify.

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
    head = "no head" if checkpoint.head is NO_HEAD else f"the head {checkpoint.head.name}"
    raise ValueError(
        f"{checkpoint.name} has {head}, which this tab does not support; choose a checkpoint that fills masks, or "
        "classifies texts or tokens."
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


@noting_errors(num_outputs=2)
def show_answers(store: CheckpointStore, name: str, text: str) -> tuple[str, dict[str, float] | None]:
    """Return the likeliest answers.

    Args:
        store: Where the checkpoint is.
        name: Of the checkpoint.
        text: As in `answer`.

    Returns:
        Who answers, as HTML, with the number of a regression; and the answers with their scores.
    """
    checkpoint = store.get(name)
    found = answer(checkpoint, text)
    caption = f"<p>Checkpoint {escape(name)}, head {checkpoint.head.name}:</p>"
    if isinstance(found, dict):
        return lay_out(caption), found
    return lay_out(caption, list_numbers({checkpoint.model.config.id2label[0]: f"{found:.4g}"})), None


def build_answers(store: CheckpointStore, chosen: gr.State) -> None:
    """Lay out the tab."""
    gr.Markdown(ABOUT)
    with gr.Row():
        with gr.Column(min_width=280):
            info = f"With [MASK] for the word to guess, where the checkpoint fills masks. {LIMITS}"
            text = build_text(MASKED_EXAMPLE, info, "Predict")
        with gr.Column(scale=2, min_width=280):
            controls = [chosen, text]
            show = partial(show_answers, store)
            picture, scores = show(*values(controls))
            source = gr.HTML(picture, elem_id="answers_from")
            answers = gr.Label(
                scores, num_top_classes=MOST_ANSWERS, label="Answers and scores", show_heading=False, elem_id="answers"
            )
            connect(show, controls, [source, answers])
