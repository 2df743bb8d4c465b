"""A folder that loads anywhere: what belongs in it, its card, and the push to the Hub."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi, ModelCardData
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.repocard_data import EvalResult
from jinja2 import Environment
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..common.heads import head_of_pipeline
from ..configuration_linformer import AUTO_MAP


logger = logging.get_logger(__name__)

TEMPLATE = Path(__file__).with_name("card_template.md")
REPO_ID = "OWNER/NAME"  # stands in a card until the push knows the name
CODE = ("configuration_linformer.py", "modeling_linformer.py")
PUSHED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.md", "*.py", "*.png", "*.svg", "*.onnx", "*.data")
STATE = ("trainer_state.json", "train_results.json", "eval_results.json", "all_results.json")


@dataclass
class PushArguments:
    """What is pushed, and where to."""

    folder: str = field(metadata={"help": "The saved model: weights, configuration, tokenizer, card."})
    repo_id: str = field(metadata={"help": "The repository on the Hub, as in `you/my-linformer`."})
    private: bool = field(default=False, metadata={"help": "Make a new repository private."})
    revision: str | None = field(default=None, metadata={"help": "Push to this branch, made where it is missing."})
    create_pr: bool = field(default=False, metadata={"help": "Open a pull request instead of changing the branch."})
    parent_commit: str | None = field(
        default=None, metadata={"help": "Refuse to push where the branch has moved on from this commit."}
    )
    commit_message: str = field(default="Upload a Linformer", metadata={"help": "The title of the commit."})
    dry_run: bool = field(default=False, metadata={"help": "Only list what would be uploaded, and its size."})


def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> Path:
    """Save a model so that every head's Auto class loads it, with this package or without.

    Weights go into safetensors, beside them configuration, tokenizer, the two files of code, and a card.

    Args:
        model: A Linformer with any head, or none.
        tokenizer: Its tokenizer.
        folder: Where to save. A record `results.json` in it fills the card; a card that is there stays.

    Returns:
        The folder.
    """
    folder = Path(folder)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_card(folder)
    return folder


def write_card(folder: str | Path) -> Path:
    """Write the card of a folder from its record; a card that is there stays, because a person may have edited it.

    Returns:
        The card, `README.md`.
    """
    folder = Path(folder)
    card = folder / "README.md"
    if not card.exists():
        record = read_json(folder / "results.json") if (folder / "results.json").is_file() else {}
        card.write_text(render_card(record, folder.name), encoding="utf-8")
    return card


def render_card(record: Mapping[str, Any], title: str) -> str:
    """Render a card. It can hold no number that is not in the record.

    Args:
        record: As `results.write_results` leaves it; `about` in it names task, data and base model.
        title: Heading of the card.

    Returns:
        The card's text, metadata first. `OWNER/NAME` stands for the repository until it is pushed.
    """
    about = record.get("about", {})
    task = about.get("pipeline_tag", "fill-mask")
    is_linformer = about.get("model", {}).get("model_type", "linformer") == "linformer"
    numbers = record.get("numbers", {})
    measured = [
        EvalResult(
            task_type=task,
            dataset_type=about["dataset_type"],
            dataset_name=about["dataset"],
            metric_type=metric,
            metric_value=numbers[metric],
        )
        for metric in about.get("metrics", [])
        if metric in numbers
    ]
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=task,
        tags=["linformer", "linear-attention"] if is_linformer else None,
        language=about.get("language"),
        license=about.get("license"),
        datasets=about.get("dataset_ids"),
        base_model=about.get("base_model"),
        model_name=title if measured else None,
        eval_results=measured or None,
    )
    # blocks of the template leave no blank lines behind
    template = Environment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        card_data=data,
        is_linformer=is_linformer,
        title=title,
        repo_id=REPO_ID,
        auto_class=head_of_pipeline(task).auto_class.__name__,
        model=about.get("model"),
        dataset=about.get("dataset"),
        base_model=about.get("base_model"),
        record=record or None,
    )


def files_to_push(folder: str | Path) -> dict[str, int]:
    """List what a push uploads, in order, with sizes in bytes: no pickles, no optimizer, no state of a Trainer.

    Raises:
        ValueError: If the folder would not load elsewhere; the message names the file and the reason.
    """
    folder = Path(folder)
    check_folder(folder)
    found = {file for pattern in PUSHED for file in folder.glob(pattern) if file.name not in STATE}
    return {file.name: file.stat().st_size for file in sorted(found)}


def check_folder(folder: Path) -> None:
    """Check that a saved model is whole.

    Raises:
        ValueError: At the first file that is missing or damaged.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder.")
    config = read_json(folder / "config.json")
    if not list(folder.glob("tokenizer*")):
        raise ValueError(f"{folder} has no tokenizer; save it there with `tokenizer.save_pretrained`.")
    if config.get("model_type") == "linformer":
        for name in CODE:
            if not (folder / name).is_file():
                raise ValueError(f"{folder} lacks {name}; save the model anew with linformer_hf imported.")
        lacking = sorted(set(AUTO_MAP) - set(config.get("auto_map") or {}))
        if lacking:
            raise ValueError(f"{folder / 'config.json'}: `auto_map` lacks {', '.join(lacking)}; save the model anew.")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ValueError(f"{folder} has no weights in safetensors; pickled weights are not pushed.")
    for file in weights:
        try:
            with safe_open(file, framework="pt") as tensors:
                tensors.keys()
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged: {error}.") from error


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ValueError: If the file is missing or holds something else.
    """
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file.")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is not JSON: {error}.") from error


def push_from_arguments(arguments: PushArguments) -> str | None:
    """Push what the command line names, as `push` does."""
    return push(**vars(arguments))


def push(
    folder: str | Path,
    repo_id: str,
    private: bool = False,
    revision: str | None = None,
    create_pr: bool = False,
    parent_commit: str | None = None,
    commit_message: str = "Upload a Linformer",
    dry_run: bool = False,
) -> str | None:
    """Upload a saved model in one commit, so that the Hub holds all of it or nothing.

    Args:
        folder: The saved model.
        repo_id: The repository, made where it is missing.
        private: Make a new repository private.
        revision: Branch to push to, made where it is missing. None is the main one.
        create_pr: Open a pull request instead of changing the branch.
        parent_commit: Refuse where the branch has moved on from this commit.
        commit_message: Title of the commit.
        dry_run: Only log what would be uploaded.

    Returns:
        The address of the commit or pull request; None of a dry run.

    Raises:
        ValueError: If the folder is not whole, or the Hub refuses; the message says what happened to the repository.
    """
    files = files_to_push(folder)
    for name, size in files.items():
        logger.info(f"{size / 1e6:12.3f} MB  {name}")
    logger.info(f"{sum(files.values()) / 1e6:12.3f} MB  in {len(files)} files for {repo_id}")
    if dry_run:
        return None
    operations = [CommitOperationAdd(name, contents(Path(folder, name), repo_id)) for name in files]
    api, stage = HfApi(), "making the repository"
    try:
        api.create_repo(repo_id, private=private, exist_ok=True)
        if revision:
            stage = f"making the branch {revision}"
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        stage = "uploading"
        commit = api.create_commit(
            repo_id,
            operations,
            commit_message=commit_message,
            revision=revision,
            create_pr=create_pr,
            parent_commit=parent_commit,
        )
    except HfHubHTTPError as error:
        raise ValueError(
            f"The Hub refused while {stage}: {str(error).strip()}\nThe files of {repo_id} are as they were; mend the "
            "cause and give the same command again."
        ) from error
    url = commit.pr_url or commit.commit_url
    logger.info(f"Pushed to {url}")
    return url


def contents(file: Path, repo_id: str) -> str | bytes:
    """Return what to upload of a file: a card with the repository's name in it, anything else as it lies there."""
    if file.name != "README.md":
        return str(file)
    return file.read_text(encoding="utf-8").replace(REPO_ID, repo_id).encode()
