"""Models that strangers may have the page load: public ones of the Hub, small, without a token and without their code.

What a stranger writes is never taken as a path: the files are fetched by the name of a repository into a folder of
their own, which is removed after loading, so that neither the server's folders nor its token are reached.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, StrictDataclassError
from huggingface_hub.hf_api import ModelInfo
from transformers import AutoConfig, PreTrainedConfig

from ..common.files import read_json
from ..common.heads import head_of_checkpoint
from .checkpoints import Checkpoint, first_line, load_checkpoint


MOST_BYTES = 600_000_000  # of all files that are fetched
MOST_PARAMETERS = 150_000_000
MOST_LAYERS = 48
# encoders whose classes load nothing else; others may name further models, which would be fetched with the token
MODEL_TYPES = (
    "albert",
    "bert",
    "camembert",
    "distilbert",
    "electra",
    "linformer",
    "mpnet",
    "roberta",
    "xlm-roberta",
)
CONFIG, WEIGHTS = "config.json", ".safetensors"
REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
# neither code nor pickles, and no adapter, whose configuration names another model to load; of folders only those of a
# sentence encoder's steps, as in `1_Pooling`
WANTED = re.compile(r"(?:\d_[A-Z]\w*/)?(?!adapter_)[\w-][\w.-]*\.(?:json|safetensors|txt|model)", re.ASCII)
ALLOWED = (
    f"public models on the Hub with at most {MOST_BYTES // 1_000_000} MB of files and "
    f"{MOST_PARAMETERS // 1_000_000} million parameters"
)


def load_public_model(name: str) -> Checkpoint:
    """Load a public model of the Hub as it is for everybody: without a token, and with none of its code run.

    Args:
        name: A repository, as in `owner/model`.

    Raises:
        ValueError: If the name is none of a repository, or the model is private, too large, of another kind, or
            does not load.
    """
    if not REPOSITORY.fullmatch(name) or ".." in name:
        raise ValueError(f"{name[:100]!r} is not the name of a repository on the Hub, as in `owner/model`.")
    api = HfApi(token=False)
    try:
        info = api.model_info(name, files_metadata=True, timeout=10, token=False)
        files = wanted_files(info)
        check_files(name, files)
        with TemporaryDirectory(prefix="linformer-") as folder:
            weights = [file for file in files if file.endswith(WEIGHTS)]
            fetch(api, info, folder, files.keys() - weights)
            check_config(name, read_config(name, Path(folder)))
            fetch(api, info, folder, weights)
            return load_checkpoint(name, folder, token=False, local_files_only=True)
    except RepositoryNotFoundError as error:
        raise ValueError(f"{name} does not load: the Hub has no public model of that name.") from error
    except (HfHubHTTPError, StrictDataclassError, OSError, RuntimeError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{name} does not load: {first_line(error)}") from error


def wanted_files(info: ModelInfo) -> dict[str, int]:
    """Return the sizes in bytes of the files that loading needs, by name: no code, no pickles.

    Raises:
        ValueError: If the Hub does not tell the size of one.
    """
    files = {file.rfilename: file.size for file in info.siblings or () if WANTED.fullmatch(file.rfilename)}
    for file, size in files.items():
        if size is None:
            raise ValueError(f"The Hub does not tell the size of {file} in {info.id}; choose another model.")
    return files


def check_files(name: str, files: Mapping[str, int]) -> None:
    """Check before anything is fetched that the files are there, and small enough.

    Args:
        name: Of the repository.
        files: Sizes in bytes.

    Raises:
        ValueError: With what is allowed.
    """
    if CONFIG not in files or not any(file.endswith(WEIGHTS) and "/" not in file for file in files):
        raise ValueError(f"{name} has no {CONFIG}, or no weights in safetensors at its top; choose another model.")
    total = sum(files.values())
    if total > MOST_BYTES:
        raise ValueError(f"{name} has {total / 1e6:,.0f} MB of files; this page loads {ALLOWED}.")


def read_config(name: str, folder: Path) -> PreTrainedConfig:
    """Read the configuration of a model of a known kind.

    Raises:
        ValueError: If it is of another kind.
    """
    model_type = read_json(folder / CONFIG).get("model_type")
    if model_type not in MODEL_TYPES:
        raise ValueError(f"{name} is of type {model_type!r}; this page loads the types {', '.join(MODEL_TYPES)}.")
    return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def check_config(name: str, config: PreTrainedConfig) -> None:
    """Check before weights are fetched that a model is not larger than its files suggest.

    Raises:
        ValueError: With what is allowed.
    """
    if config.num_hidden_layers > MOST_LAYERS:
        raise ValueError(f"{name} has {config.num_hidden_layers} layers; this page loads up to {MOST_LAYERS}.")
    with torch.device("meta"):
        model = head_of_checkpoint(config.architectures).auto_class.from_config(config)
    if model.num_parameters() > MOST_PARAMETERS:
        millions = model.num_parameters() / 1e6
        raise ValueError(f"{name} has {millions:,.0f} million parameters; this page loads {ALLOWED}.")


def fetch(api: HfApi, info: ModelInfo, folder: str | Path, files: Iterable[str]) -> None:
    """Fetch files of the commit whose sizes were checked."""
    api.snapshot_download(info.id, revision=info.sha, local_dir=folder, allow_patterns=sorted(files), token=False)
