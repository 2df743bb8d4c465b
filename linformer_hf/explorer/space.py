"""A folder that is ready to be a Space on the Hub: the explorer, this package, and checkpoints."""

import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from transformers.utils import logging

from ..common.files import check_new_folder, whole_or_nothing
from ..sharing.hub import files_to_push
from .checkpoints import UNTRAINED


logger = logging.get_logger(__name__)

# what the page imports; Gradio itself is pinned by the card
PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "huggingface_hub",
    "safetensors",
    "datasets",
    "gradio",
    "matplotlib",
    "numpy",
    "pandas",
    "pillow",
    "jinja2",
    "pyyaml",
)
APP = """from linformer_hf.explorer.page import serve_page


serve_page({names!r})
"""
CARD = """---
title: Linformer explorer
colorFrom: gray
colorTo: green
sdk: gradio
sdk_version: {gradio}
python_version: "{python}"
app_file: app.py
license: apache-2.0
---

# Linformer explorer

When attention is of low rank, what a Linformer saves, which tokens its slots read, and what it predicts.

Checkpoints: {names}. Here or anywhere: `pip install -r requirements.txt`, then `python app.py`.
"""


def write_space(folder: str | Path, model_names: Sequence[str] = ()) -> Path:
    """Write a Space that starts anywhere: what it needs of this package lies in it.

    Args:
        folder: Where to write; it must be new, or empty.
        model_names: The checkpoints that the page lists, the first one shown at the start: folders, which are copied,
            or repositories of the Hub. An empty list takes the small untrained model.

    Returns:
        The folder.

    Raises:
        ValueError: If the folder holds something, a checkpoint's is not whole, or two have one name.
    """
    folder = check_new_folder(folder)
    names = list(model_names) or [UNTRAINED]
    copies = {name: f"models/{Path(name).resolve().name}" for name in names if Path(name).is_dir()}
    if len(set(copies.values())) < len(copies):
        raise ValueError(f"Two of the folders {', '.join(copies)} have one name; rename one.")
    files = {name: list(files_to_push(name)) for name in copies}
    with whole_or_nothing(folder):
        copy_package(folder)
        for name, copy in copies.items():
            copy_files(Path(name), folder / copy, files[name])
        write_texts(folder, [copies.get(name, name) for name in names])
    logger.info(f"The Space is in {folder}; try it there with `python app.py`.")
    return folder


def copy_package(folder: Path) -> None:
    """Copy this package, with its data files."""
    package = Path(__file__).parents[1]
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__", ".*"))


def copy_files(source: Path, target: Path, files: Sequence[str]) -> None:
    """Copy files of a folder, which may lie in folders of it."""
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)


def write_texts(folder: Path, names: Sequence[str]) -> None:
    """Write what starts the page with checkpoints of these names, what it needs, and its card."""
    versions = {name: version(name).partition("+")[0] for name in PACKAGES}  # without where a wheel came from
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    listed = ", ".join("a small untrained model" if name == UNTRAINED else f"`{name}`" for name in names)
    texts = {
        "requirements.txt": "".join(f"{name}=={number}\n" for name, number in versions.items()),
        "app.py": APP.format(names=list(names)),
        "README.md": CARD.format(gradio=versions["gradio"], python=python, names=listed),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
