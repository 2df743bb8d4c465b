"""The files beside the weights of a model: copied to the folder of a converted model, or left behind by name.

Sentence Transformers keeps pooling, normalization, prompts and the longest text there, and the card says under which
license a model is and which model it was made from.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from transformers.utils import logging

from ..common.files import read_json
from ..common.records import FILE_NAME
from ..sharing.card import CARD, origin_facts
from ..sharing.hub import CODE
from .embeddings import MODULES_FILE, TRANSFORMER, EmbeddingModule, read_embedding, read_modules


logger = logging.get_logger(__name__)

PROMPTS_FILE = "config_sentence_transformers.json"
LENGTH_FILE = "sentence_bert_config.json"
FETCHED = ("*.json", CARD)
# written anew with model, tokenizer, code and record, or of no use to another model
REPLACED = ("config.json", "generation_config.json", CARD, FILE_NAME, *CODE, ".gitattributes", ".gitignore")
REPLACED_PATTERNS = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.h5", "*.msgpack", "*.ot"),
    *("tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "*.model", ".*"),
)


def local_folder(name: str, revision: str | None = None, token: str | None = None) -> Path | None:
    """Return a local folder with the files beside the weights of a model, which are downloaded from the Hub if needed.

    Args:
        name: A folder, or the name of a model on the Hub.
        revision: Branch, tag or commit on the Hub.
        token: Access token of the Hub.

    Returns:
        The folder; None if the Hub cannot be reached and nothing was fetched before.
    """
    if Path(name).is_dir():
        return Path(name)
    try:
        folder = Path(snapshot_download(name, revision=revision, token=token, allow_patterns=list(FETCHED)))
        paths = [f"{module.path}/*" for module in read_modules(folder)[1:] if module.path]
        if paths:
            snapshot_download(name, revision=revision, token=token, allow_patterns=paths)
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        logger.warning(f"The files beside the weights of {name} cannot be downloaded, and are not read: {error}")
        return None
    return folder


def transformer_folder(folder: Path) -> Path:
    """Return the folder of the encoder in that of a sentence encoder; they are the same in all but old ones."""
    modules = read_modules(folder)
    return folder / modules[0].path if modules else folder


def about_parent(name: str, folder: Path | None) -> dict[str, Any]:
    """Return what the card of a converted model says of its parent.

    Args:
        name: The parent, on the Hub or in a folder.
        folder: Its local folder, as from `local_folder`. A folder that is not on the Hub names its own origin.

    Returns:
        `base_model`, None where it is unknown, license and language where they are known, and, of a sentence encoder,
        the `pipeline_tag`.
    """
    facts = {"base_model": None} if folder is None else {"base_model": None, **origin_facts(str(folder))}
    if not Path(name).is_dir():
        facts["base_model"] = name
    if folder is not None and read_modules(folder):
        facts["pipeline_tag"] = "sentence-similarity"
    return facts


def carry_over(source: Path, target: Path, max_seq_length: int | None = None) -> list[str]:
    """Copy what makes a model a sentence encoder into the folder of another with the same states.

    Args:
        source: Folder of a model; one without `modules.json` has nothing to copy.
        target: Folder of the other, with its weights on top.
        max_seq_length: The longest text in tokens, where it is to be another than the source's.

    Returns:
        Names of what was copied, files and folders.

    Raises:
        ValueError: If the source lists a step that is not supported.
    """
    modules = read_modules(source)
    if not modules:
        return []
    read_embedding(source)  # what is not supported, or damaged, is found before anything is written
    lengths = transformer_folder(source) / LENGTH_FILE
    settings = read_json(lengths) if lengths.is_file() else None
    copied = [copy_module(module, source, target) for module in modules if module.kind != TRANSFORMER]
    listed = [{**modules[0].listed, "path": ""}, *(module.listed for module in modules[1:])]
    write_settings(target / MODULES_FILE, listed)
    if (source / PROMPTS_FILE).is_file():
        shutil.copy(source / PROMPTS_FILE, target / PROMPTS_FILE)
        copied.append(PROMPTS_FILE)
    if settings is not None:
        if max_seq_length is not None and settings.get("max_seq_length"):
            settings["max_seq_length"] = max_seq_length
        write_settings(target / LENGTH_FILE, settings)
        copied.append(LENGTH_FILE)
    return [MODULES_FILE, *copied]


def copy_module(module: EmbeddingModule, source: Path, target: Path) -> str:
    """Copy the folder of one step, and return its name."""
    folder = source / module.path
    if folder.is_dir():
        shutil.copytree(folder, target / module.path, dirs_exist_ok=True)
    else:
        (target / module.path).mkdir(parents=True)  # some steps have no settings, and old versions an empty folder
    return module.path


def write_settings(file: Path, settings: Any) -> None:
    """Write settings as Sentence Transformers does, in their own order."""
    file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def longest_text(folder: Path) -> int | None:
    """Return the longest text in tokens that a sentence encoder reads; None where its folder does not say."""
    file = transformer_folder(folder) / LENGTH_FILE
    return read_json(file).get("max_seq_length") if file.is_file() else None


def left_behind(folder: Path) -> list[str]:
    """List the files and folders of a model that a converted one neither gets nor has anew."""
    carried = {MODULES_FILE, PROMPTS_FILE, LENGTH_FILE, *REPLACED}
    carried |= {module.path.split("/")[0] for module in read_modules(folder)}
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.name not in carried and not any(path.match(pattern) for pattern in REPLACED_PATTERNS)
    )
