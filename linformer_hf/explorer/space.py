"""A folder that is ready to be a Space on the Hub: the explorer, this package, and a checkpoint."""

import shutil
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path

from transformers.utils import logging

from ..common.records import check_new_folder, whole_or_nothing
from ..sharing.hub import files_to_push


logger = logging.get_logger(__name__)

PACKAGES = ("gradio", "torch", "transformers", "safetensors", "datasets", "matplotlib", "jinja2")
APP = """from linformer_hf.explorer.page import build_page, open_page


open_page(build_page({name!r}))
"""
CARD = """---
title: Linformer explorer
colorFrom: gray
colorTo: green
sdk: gradio
sdk_version: {version}
app_file: app.py
license: apache-2.0
---

# Linformer explorer

See when attention is low in rank, what a Linformer saves, which tokens its slots read, and what it answers.

It starts with {start}. Here or anywhere: `pip install -r requirements.txt`, then `python app.py`.
"""


def write_space(folder: str | Path, model_name: str | None = None) -> Path:
    """Write a Space that starts anywhere: what it needs of this package lies in it.

    Args:
        folder: Where to write; it must be new, or empty.
        model_name: The checkpoint that the page starts with: a folder, which is copied, or a repository of the Hub.
            None is the small untrained model.

    Returns:
        The folder.

    Raises:
        ValueError: If the folder holds something, or the checkpoint's is not whole.
    """
    folder = check_new_folder(folder)
    is_local = model_name is not None and Path(model_name).is_dir()
    files = files_to_push(model_name) if is_local else {}
    with whole_or_nothing(folder):
        write_files(folder, model_name, files)
    logger.info(f"The Space lies in {folder}; try it there with `python app.py`.")
    return folder


def write_files(folder: Path, model_name: str | None, files: Collection[str]) -> None:
    """Write the package, the files of a checkpoint, and what starts the page with it."""
    package = Path(__file__).parents[1]
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for file in files:
        (folder / "model").mkdir(exist_ok=True)
        shutil.copyfile(Path(model_name, file), folder / "model" / file)
    versions = {name: version(name).partition("+")[0] for name in PACKAGES}  # without where a wheel came from
    is_local = bool(files)
    named = Path(model_name).name if is_local else model_name
    start = "a small untrained model" if named is None else f"the checkpoint `{named}`"
    texts = {
        "requirements.txt": "".join(f"{name}=={number}\n" for name, number in versions.items()),
        "app.py": APP.format(name="model" if is_local else model_name),
        "README.md": CARD.format(version=versions["gradio"], start=start),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
