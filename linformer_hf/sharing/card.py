"""The card of a model, README.md on the Hub: rendered from the record of its folder."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HTTPError
from huggingface_hub.repocard_data import EvalResult
from jinja2 import Environment
from transformers.utils import logging
from yaml import YAMLError

from ..common.files import read_json, write_json, write_text
from ..common.heads import head_of_pipeline
from ..common.records import FILE_NAME, earlier_calls, read_results
from ..common.secrets import hide, hide_everywhere


logger = logging.get_logger(__name__)

CARD = "README.md"
TEMPLATE = Path(__file__).with_name("card_template.md")
REPO_ID = "OWNER/NAME"  # stands in a card until the push knows the name
ORIGIN = ("license", "license_name", "license_link", "language")  # what holds for a model made from another, too


def write_card(folder: str | Path) -> Path:
    """Write the card of a folder from its record, or write it again if the record has changed.

    The record keeps a checksum of the card under `card`. A card with another checksum was edited by a person, and
    stays as it is.

    Returns:
        The card, `README.md`.
    """
    folder = Path(folder)
    card, file = folder / CARD, folder / FILE_NAME
    record = read_results(folder) if file.is_file() else {}
    if card.exists() and checksum(card.read_text(encoding="utf-8")) != record.get("card"):
        logger.info(f"{card} was not written by this package or was edited since, and stays as it is.")
        return card
    text = render_card(record, folder.resolve().name)
    write_text(card, text)
    if record:
        write_json(file, {**read_json(file), "card": checksum(text)}, indent=2)
    return card


def checksum(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def render_card(record: Mapping[str, Any], title: str) -> str:
    """Render a card. It can hold no number that is not in the record.

    Args:
        record: As `read_results` returns it. In `about`, it names `pipeline_tag`, `dataset`, `dataset_type`,
            `dataset_ids`, `measured_on` (where that is another data set), `metrics` (which numbers are results),
            `model`, `base_model`, `license` (with `license_name` and `license_link` where it is `other`) and
            `language`; each may be missing.
        title: Heading of the card.

    Returns:
        The card's text, metadata first. `OWNER/NAME` stands for the repository until it is pushed.
    """
    record = hide_everywhere(dict(record))
    about, numbers = record.get("about", {}), record.get("numbers", {})
    task = about.get("pipeline_tag", "fill-mask")
    is_linformer = about.get("model", {}).get("model_type", "linformer") == "linformer"
    results = [
        EvalResult(
            task_type=task,
            dataset_type=about["dataset_type"],
            dataset_name=about.get("measured_on") or about["dataset"],
            metric_type=metric,
            metric_value=numbers[metric],
        )
        for metric in about.get("metrics", [])
        if isinstance(numbers.get(metric), int | float) and math.isfinite(numbers[metric])  # as the Hub's JSON asks
    ]
    embeds = task == "sentence-similarity"
    data = ModelCardData(
        library_name="sentence-transformers" if embeds else "transformers",
        pipeline_tag=task,
        tags=["linformer", "linear-attention"] if is_linformer else None,
        datasets=about.get("dataset_ids"),
        base_model=about.get("base_model"),
        model_name=title if results else None,
        eval_results=results or None,
        **{name: about.get(name) for name in ORIGIN},
    )
    # blocks of the template leave no blank lines behind
    template = Environment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        card_data=data,
        is_linformer=is_linformer,
        embeds=embeds,
        title=hide(title),
        repo_id=REPO_ID,
        auto_class=head_of_pipeline(task).auto_class.__name__,
        model=about.get("model"),
        dataset=about.get("dataset"),
        measured_on=about.get("measured_on"),
        base_model=about.get("base_model"),
        record=record or None,
        commands=[call["command"] for call in earlier_calls(record)],
        numbers={name.replace("_", " "): written(value) for name, value in numbers.items()},
    )


def written(value: Any) -> str:
    """Write a number with five digits; infinity, NaN and None in words."""
    if value is None:
        return "unavailable"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    return f"{value:.5g}"


def read_card_data(card: str | Path) -> dict[str, Any]:
    """Read the metadata of a card.

    Raises:
        ValueError: If it is no valid YAML.
    """
    try:
        # not `ModelCard.load`, which takes a file name that does not exist for a name on the Hub
        return ModelCard(Path(card).read_text(encoding="utf-8"), ignore_metadata_errors=True).data.to_dict()
    except (ValueError, TypeError, YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{card}: its metadata, between the lines of ---, cannot be read: {reason}.") from error


def origin_facts(name: str | None, revision: str | None = None, token: str | None = None) -> dict[str, Any]:
    """Return what the card of a model says that starts from another: `base_model`, and its license and language.

    Args:
        name: The other model: a folder, or a name on the Hub; None for none.
        revision: Branch, tag or commit on the Hub.
        token: Access token of the Hub.

    Returns:
        Only what is known. A local folder is no `base_model`; the model on the Hub that its own card or record names
        as the one it came from is.
    """
    if name is None:
        return {}
    folder = Path(name)
    try:
        if folder.is_dir():
            facts = read_card_data(folder / CARD) if (folder / CARD).is_file() else {}
            about = read_results(folder).get("about", {}) if (folder / FILE_NAME).is_file() else {}
            facts = {**{key: value for key, value in about.items() if value is not None}, **facts}
        else:
            facts = {**card_data_on_the_hub(name, revision, token), "base_model": name}
    except ValueError as error:
        logger.warning(f"What the card of {name} says of license and origin is left out: {error}")
        return {} if folder.is_dir() else {"base_model": name}
    return {key: facts[key] for key in (*ORIGIN, "base_model") if facts.get(key) is not None}


def card_data_on_the_hub(name: str, revision: str | None, token: str | None) -> dict[str, Any]:
    """Read the metadata of a card on the Hub; nothing where there is none, or no connection and no stored copy."""
    try:
        return read_card_data(hf_hub_download(name, CARD, revision=revision, token=token))
    except (EntryNotFoundError, HTTPError, OSError):
        return {}
