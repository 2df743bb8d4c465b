"""The embedding that a model computes for a text: pooling of token states and further steps, read from its folder.

Sentence Transformers keeps that beside the weights: `modules.json` lists the steps, and each has a folder with its
settings. A folder without it is read as Sentence Transformers reads it, by the mean over tokens.

Letters: B batch, N tokens, M model width, D width of an embedding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from ..common.files import read_json
from .distances import at_least_single
from .windows import Reading


MODULES_FILE = "modules.json"
POOLING_SETTINGS = "config.json"  # in the folder of the pooling
MEAN = "mean"
# as in the settings of Sentence Transformers before its version 5.3, in the order in which they are concatenated
OLD_POOLING_FIELDS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": MEAN,
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
EMBEDDING_NAME = "sentence_embedding"
TRANSFORMER, POOLING, NORMALIZE, DENSE, DROPOUT = "Transformer", "Pooling", "Normalize", "Dense", "Dropout"
SUPPORTED_MODULES = (TRANSFORMER, POOLING, NORMALIZE, DENSE, DROPOUT)


def pool_first(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the state of the first token that is no padding."""
    return states[torch.arange(len(states), device=states.device), mask.int().argmax(1)]


def pool_last(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the state of the last token that is no padding."""
    last = mask.shape[1] - 1 - mask.int().flip(1).argmax(1)
    return states[torch.arange(len(states), device=states.device), last]


def pool_max(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the largest value of each channel."""
    return states.masked_fill(mask[..., None] == 0, -torch.inf).amax(1)


def pool_mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean over tokens."""
    mask = mask[..., None].to(states.dtype)
    return (states * mask).sum(1) / mask.sum(1)


def pool_mean_by_root(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the sum over tokens divided by the square root of their number."""
    mask = mask[..., None].to(states.dtype)
    return (states * mask).sum(1) / mask.sum(1).sqrt()


def pool_weighted_mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean over tokens, in which the first weighs 1, the second 2 and so on (SGPT, Muennighoff 2022)."""
    return pool_mean(states, mask.cumsum(1) * mask)


POOLINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cls": pool_first,
    "max": pool_max,
    MEAN: pool_mean,
    "mean_sqrt_len_tokens": pool_mean_by_root,
    "weightedmean": pool_weighted_mean,
    "lasttoken": pool_last,
}


@dataclass(frozen=True)
class TextEmbedding:
    """How the states of a text's tokens become its embedding.

    Args:
        poolings: Names in `POOLINGS`; the vectors of several are concatenated.
        layers: Applied to the pooled vector in turn: normalization, a linear map with an activation.
    """

    poolings: tuple[str, ...] = (MEAN,)
    layers: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = ()

    def __call__(self, states: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Embed texts.

        Args:
            states: Output of the last layer, `(B, N, M)`.
            attention_mask: 1 for a token and 0 for padding, `(B, N)`. None means that nothing is padding.

        Returns:
            `(B, D)`, in single precision at least.
        """
        mask = torch.ones(states.shape[:2], device=states.device) if attention_mask is None else attention_mask
        states = at_least_single(states)
        vectors = torch.cat([POOLINGS[name](states, mask) for name in self.poolings], -1)
        for layer in self.layers:
            vectors = layer(vectors)
        return vectors

    def of_reading(self, reading: Reading) -> torch.Tensor:
        """Embed the texts of a reading, `(B, D)`: the mean over windows of the embedding of each."""
        vectors = torch.stack([self(part.last_hidden_state, part.attention_mask) for part in reading.windows], 1)
        is_filled = torch.stack([part.is_filled for part in reading.windows], 1).to(vectors.dtype)
        return (vectors * is_filled[..., None]).sum(1) / is_filled.sum(1, keepdim=True)

    @property
    def is_mean(self) -> bool:
        """Whether it points where the mean of the states does."""
        return self.poolings == (MEAN,) and all(layer is normalize for layer in self.layers)


def normalize(vectors: torch.Tensor) -> torch.Tensor:
    """Scale vectors to length 1."""
    return F.normalize(vectors, dim=-1)


MEAN_EMBEDDING = TextEmbedding()


@dataclass(frozen=True)
class EmbeddingModule:
    """One step of a sentence encoder.

    Args:
        kind: Its class's name, one of `SUPPORTED_MODULES`.
        path: Its folder, below that of the model; "" is the model's own.
        listed: Its entry in `modules.json`.
    """

    kind: str
    path: str
    listed: dict[str, Any]


def read_modules(folder: Path) -> list[EmbeddingModule]:
    """List the steps that a sentence encoder consists of; none where the folder holds no `modules.json`.

    Raises:
        ValueError: If one of them is not supported or lies elsewhere, or the first is no transformer; the message
            names it.
    """
    file = folder / MODULES_FILE
    if not file.is_file():
        return []
    modules = []
    for entry in read_json(file, list):
        if not (isinstance(entry, dict) and isinstance(entry.get("type"), str) and isinstance(entry.get("path"), str)):
            raise ValueError(f"{file} lists {entry}; a step has a `type` and a `path`.")
        owner, _, kind = entry["type"].rpartition(".")
        if entry["path"] and not Path(folder, entry["path"]).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{file} lists the folder {entry['path']}, which lies outside of the model's own.")
        if kind not in SUPPORTED_MODULES or not owner.startswith("sentence_transformers."):
            raise ValueError(
                f"{file} lists {entry['type']}, which is not supported; supported are the modules "
                f"{', '.join(SUPPORTED_MODULES)} of Sentence Transformers."
            )
        modules.append(EmbeddingModule(kind, entry["path"], entry))
    kinds = [module.kind for module in modules]
    if kinds[:2] != [TRANSFORMER, POOLING] or kinds.count(TRANSFORMER) + kinds.count(POOLING) != 2:
        raise ValueError(
            f"{file} lists {', '.join(kinds) or 'nothing'}; supported are a Transformer, then a Pooling, then others."
        )
    return modules


def read_embedding(folder: Path, device: torch.device | str = "cpu") -> TextEmbedding:
    """Read from a folder how its model embeds a text.

    Args:
        folder: A model's folder. Without `modules.json` the embedding is the mean over tokens.
        device: Where the weights of linear maps are put.

    Raises:
        ValueError: If the folder lists a step that is not supported.
    """
    modules = read_modules(folder)
    if not modules:
        return MEAN_EMBEDDING
    layers = []
    for module in modules[2:]:
        check_input(folder / module.path)
        if module.kind == NORMALIZE:
            layers.append(normalize)
        elif module.kind == DENSE:
            layers.append(read_dense(folder / module.path).to(device))
    return TextEmbedding(read_poolings(folder / modules[1].path / POOLING_SETTINGS), tuple(layers))


def check_input(folder: Path) -> None:
    """Check that a step reads the embedding of the text.

    Raises:
        ValueError: If it reads or writes something else.
    """
    file = folder / "config.json"
    settings = read_json(file) if file.is_file() else {}
    for field in ("module_input_name", "module_output_name"):
        name = settings.get(field) or EMBEDDING_NAME
        if name != EMBEDDING_NAME:
            raise ValueError(
                f"{folder} reads or writes {name}, which is not supported; supported is {EMBEDDING_NAME}."
            )


def read_poolings(file: Path) -> tuple[str, ...]:
    """Return the names of the poolings that a file of settings asks for, in the form of any version.

    Raises:
        ValueError: If one is unknown.
    """
    settings = read_json(file)
    names = settings.get("pooling_mode")
    if names is None:
        names = [name for field, name in OLD_POOLING_FIELDS.items() if settings.get(field)] or [MEAN]
    names = tuple(names) if isinstance(names, list) else (names,)
    for name in names:
        if name not in POOLINGS:
            raise ValueError(f"{file} asks for the pooling {name!r}; supported are {', '.join(POOLINGS)}.")
    return names


def read_dense(folder: Path) -> nn.Sequential:
    """Load a linear map with its activation.

    Raises:
        ValueError: If it has a residual connection or an activation that is not torch's.
    """
    file = folder / "config.json"
    settings = read_json(file)
    owner, _, name = settings["activation_function"].rpartition(".")
    if not owner.startswith("torch.nn") or settings.get("use_residual"):
        raise ValueError(
            f"{file} describes a linear map with "
            f"{'a residual connection' if settings.get('use_residual') else settings['activation_function']}, "
            "which is not supported; supported are linear maps with an activation of torch.nn."
        )
    linear = nn.Linear(settings["in_features"], settings["out_features"], bias=settings.get("bias", True))
    weights = folder / "model.safetensors"
    tensors = load_file(weights) if weights.is_file() else torch.load(folder / "pytorch_model.bin", weights_only=True)
    linear.load_state_dict({key.removeprefix("linear."): tensor for key, tensor in tensors.items()})
    return nn.Sequential(linear, getattr(nn, name)()).eval().requires_grad_(False)
