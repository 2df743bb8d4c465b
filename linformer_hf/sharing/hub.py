"""A folder that loads anywhere: what belongs in it, and the push to the Hub."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..common.files import read_json
from ..common.secrets import find_secret, hide
from ..configuration_linformer import AUTO_MAP
from .card import CARD, REPO_ID, read_card_data, write_card


logger = logging.get_logger(__name__)

CODE = ("configuration_linformer.py", "modeling_linformer.py")
PUSHED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.md", "*.py", "*.png", "*.svg", "*.onnx", "*.data")
BINARY = ("*.safetensors", "*.model", "*.png", "*.onnx", "*.data")
STATE = (
    *("trainer_state.json", "training_options.json"),
    *("train_results.json", "eval_results.json", "all_results.json"),
)
INDEX = "model.safetensors.index.json"
MODULES = "modules.json"  # where Sentence Transformers lists pooling and normalization, each in a folder
NEVER_PUSHED_FOLDERS = ("checkpoint-*", "runs", ".*", "__pycache__")  # left out without a warning


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
    license: str | None = field(
        default=None, metadata={"help": "License in the metadata of the pushed card, as in `apache-2.0`."}
    )
    language: list[str] | None = field(
        default=None, metadata={"help": "Languages in the metadata of the pushed card, as in `en`."}
    )
    token: str | None = field(
        default=None, metadata={"help": "Access token of the Hub. By default that of `hf auth login` or HF_TOKEN."}
    )
    dry_run: bool = field(default=False, metadata={"help": "Only list what would be uploaded, and its size."})


def save_for_hub(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> Path:
    """Save a model so that every head's Auto class loads it, with this package or without.

    Weights go into safetensors, beside them configuration, tokenizer, the two files of code, and a card.

    Args:
        model: A Linformer with any head, or none.
        tokenizer: Its tokenizer.
        folder: Where to save. A record `results.json` in it fills the card; a card that a person wrote stays.

    Returns:
        The folder.
    """
    folder = Path(folder)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_card(folder)
    return folder


def files_to_push(folder: str | Path) -> dict[str, int]:
    """List what a push uploads, in order, with sizes in bytes: no pickles, no optimizer, no state of a Trainer.

    Of the folders in it, those that `modules.json` of Sentence Transformers lists are uploaded, and `onnx`.

    Raises:
        ValueError: If the folder would not load elsewhere, or a file holds a secret; the message names the file.
    """
    folder = Path(folder)
    check_folder(folder)
    found = sorted(folder / name for name in pushed_names(folder))
    for file in found:
        check_no_secret(file)
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in found}


def pushed_names(folder: Path) -> Iterator[str]:
    """Yield the files to push, as paths below the folder."""
    subfolders = pushed_subfolders(folder)
    named = {name.split("/")[0] for name in subfolders}
    for path in folder.iterdir():
        if path.is_file() and is_pushed(path):
            yield path.name
        is_known = path.name in named or any(fnmatch(path.name, pattern) for pattern in NEVER_PUSHED_FOLDERS)
        if path.is_dir() and not is_known:
            logger.warning(f"The folder {path} is not pushed.")
    for name in subfolders:
        for path in (folder / name).rglob("*"):
            if path.is_file() and is_pushed(path):
                yield path.relative_to(folder).as_posix()


def is_pushed(file: Path) -> bool:
    """Tell whether a file belongs on the Hub, by its name."""
    return any(file.match(pattern) for pattern in PUSHED) and file.name not in STATE


def pushed_subfolders(folder: Path) -> list[str]:
    """List the folders below a saved model that belong to it.

    Raises:
        ValueError: If `modules.json` is damaged, or lists a folder that is missing or lies elsewhere.
    """
    found = ["onnx"] if (folder / "onnx").is_dir() else []
    if (folder / MODULES).is_file():
        modules = read_json_list(folder / MODULES)
        for path in filter(None, (module.get("path") for module in modules)):
            inside = (folder / path).resolve()
            if folder.resolve() not in inside.parents or not inside.is_dir():
                raise ValueError(f"{folder / MODULES} lists the folder {path}, which {folder} does not hold.")
            found.append(path.rstrip("/"))
    return found


def read_json_list(file: Path) -> list[dict[str, Any]]:
    """Read a JSON list of objects.

    Raises:
        ValueError: If the file holds something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}.") from error
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise ValueError(f"{file} does not hold a list of objects.")
    return content


def check_no_secret(file: Path) -> None:
    """Check that a text file holds no secret.

    Raises:
        ValueError: With the name of the file, and the first characters of what was found.
    """
    if any(file.match(pattern) for pattern in BINARY):
        return
    found = find_secret(file.read_text(encoding="utf-8", errors="replace"))
    if found is not None:
        raise ValueError(
            f"{file} holds an access token or password ({found}) and is not pushed. Remove it from the file, and "
            "revoke it if the file was public."
        )


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
                raise ValueError(f"{folder} lacks {name}; save the model again with linformer_hf imported.")
        missing = sorted(set(AUTO_MAP) - set(config.get("auto_map") or {}))
        if missing:
            raise ValueError(f"{folder / 'config.json'}: `auto_map` lacks {', '.join(missing)}; save the model again.")
    check_weights(folder)
    if (folder / CARD).is_file():
        read_card_data(folder / CARD)


def check_weights(folder: Path) -> None:
    """Check that all files of weights are there and can be read.

    Raises:
        ValueError: At the first that is missing or damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no weights in safetensors; pickled weights are not pushed.")
    held = {file.name: tensor_names(file) for file in files}
    if not (folder / INDEX).is_file():
        shards = [file.name for file in files if "-of-" in file.name]
        if shards and not (folder / "model.safetensors").is_file():
            raise ValueError(f"{folder} lacks {INDEX}, which says what {shards[0]} is a part of.")
        return
    places = read_json(folder / INDEX).get("weight_map", {})
    for shard in sorted(set(places.values())):
        if shard not in held:
            raise ValueError(f"{folder} lacks {shard}, one of {len(set(places.values()))} files of weights.")
        lacking = sorted(name for name, file in places.items() if file == shard and name not in held[shard])
        if lacking:
            raise ValueError(f"{folder / shard} lacks the tensor {lacking[0]}, which {INDEX} expects there.")


def tensor_names(file: Path) -> set[str]:
    """Return the names of the tensors in a file.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        with safe_open(file, framework="pt") as tensors:
            return set(tensors.keys())
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged: {error}.") from error


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
    license: str | None = None,
    language: str | list[str] | None = None,
    token: str | None = None,
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
        license: License in the metadata of the pushed card. None leaves what the card says.
        language: Language or languages in the metadata of the pushed card. None leaves what the card says.
        token: Access token of the Hub. None takes that of `hf auth login` or of `HF_TOKEN`.
        dry_run: Only log what would be uploaded.

    Returns:
        The address of the commit or pull request; None of a dry run.

    Raises:
        ValueError: If the folder is not whole or holds a secret, the Hub refuses, or it cannot be reached; the
            message says what happened to the repository.
    """
    files = files_to_push(folder)
    for name, size in files.items():
        logger.info(f"{size / 1e6:12.3f} MB  {name}")
    logger.info(f"{sum(files.values()) / 1e6:12.3f} MB  in {len(files)} files for {repo_id}")
    card = card_to_push(Path(folder, CARD), repo_id, license, language) if CARD in files else None
    if dry_run:
        return None
    contents: dict[str, str | bytes] = {name: str(Path(folder, name)) for name in files}
    if card is not None:
        contents[CARD] = card.encode()
    operations = [CommitOperationAdd(name, content) for name, content in contents.items()]
    api, stage = HfApi(token=token), "making the repository"
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
    except LocalTokenNotFoundError as error:
        raise ValueError("There is no access token: give `hf auth login`, HF_TOKEN or --token.") from error
    except (HTTPError, OfflineModeIsEnabled, RuntimeError) as error:
        # the client wraps what went wrong with a file of weights
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ is not None else error
        if isinstance(cause, HfHubHTTPError):
            happened, repair = "refused", "correct the cause and give the same command again"
        elif isinstance(cause, HTTPError | OfflineModeIsEnabled):
            happened, repair = "could not be reached", "check the network and HF_HUB_OFFLINE, and try again"
        else:
            raise
        raise ValueError(
            f"The Hub {happened} while {stage}: {one_line(cause)} The files of {repo_id} are as they were; {repair}."
        ) from error
    url = commit.pr_url or commit.commit_url
    logger.info(f"Pushed to {url}")
    return url


def one_line(error: BaseException) -> str:
    """Write the message of an error in one sentence on one line, without secrets."""
    text = hide(" ".join(str(error).split())) or type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."


def card_to_push(file: Path, repo_id: str, license: str | None, language: str | list[str] | None) -> str:
    """Return the card as it is pushed: with the name of the repository, and license and language where given."""
    card = ModelCard(file.read_text(encoding="utf-8").replace(REPO_ID, repo_id), ignore_metadata_errors=True)
    if license is None and language is None:
        if card.data.get("license") is None:
            logger.warning("The card names no license, so nobody may use the model; give --license.")
        return card.content
    if license is not None:
        card.data["license"] = license
    if language is not None:
        card.data["language"] = language
    return str(card)
