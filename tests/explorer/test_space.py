"""A Space is written whole, with everything that it needs, and starts from its folder."""

import ast
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions, version
from pathlib import Path

import gradio as gr
import pytest
from explored import (
    linformer,  # noqa: F401 (a fixture)
    tokenizer,  # noqa: F401 (a fixture)
)

import linformer_hf
from linformer_hf.explorer.checkpoints import UNTRAINED
from linformer_hf.explorer.page import ExplorerArguments, explore
from linformer_hf.explorer.space import write_space


PACKAGE = Path(linformer_hf.__file__).parent
# what `app.py` does but for waiting: the page answers a request, and says where its package lies
START = """
import runpy, urllib.request
import gradio as gr

launch = gr.Blocks.launch
gr.Blocks.launch = lambda page, **options: launch(page, prevent_thread_lock=True, **options)
before = set(gr.Blocks.instances)
runpy.run_path("app.py")
(page,) = [block for block in gr.Blocks.instances if block not in before and block.local_url]
import linformer_hf
print("package:", linformer_hf.__file__)
print(urllib.request.urlopen(page.local_url).read().decode())
"""


def test_a_space_holds_the_package_its_data_files_and_the_checkpoints(linformer, tmp_path):  # noqa: F811
    folder = write_space(tmp_path / "space", [linformer, "you/words"])
    kept = {file.relative_to(PACKAGE) for file in PACKAGE.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    copied = {file.relative_to(folder / "linformer_hf") for file in (folder / "linformer_hf").rglob("*.*")}
    assert {Path("py.typed"), Path("sharing/card_template.md")} <= kept <= copied
    assert not list(folder.rglob("__pycache__"))
    model = folder / "models" / Path(linformer).name
    assert (model / "model.safetensors").read_bytes() == Path(linformer, "model.safetensors").read_bytes()
    assert f"serve_page(['models/{model.name}', 'you/words'])" in (folder / "app.py").read_text()


def test_a_space_pins_what_it_runs_on(tmp_path):
    folder = write_space(tmp_path / "space")
    card = (folder / "README.md").read_text("utf-8")
    assert f"sdk: gradio\nsdk_version: {gr.__version__}\n" in card and "app_file: app.py\n" in card
    assert f'python_version: "{sys.version_info.major}.{sys.version_info.minor}"\n' in card
    pinned = dict(line.split("==") for line in (folder / "requirements.txt").read_text().splitlines())
    assert all(version(name).split("+")[0] == number for name, number in pinned.items())
    assert imported_packages() <= {name.lower().replace("_", "-") for name in pinned}


def imported_packages():
    """Name the distributions that the explorer imports, by itself or through other files of this package."""
    waiting, seen, names = [PACKAGE / "explorer" / "page.py"], set(), set()
    while waiting:
        file = waiting.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                waiting.append(folder.with_suffix(".py"))
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
    assert PACKAGE / "data" / "tokenizers.py" in seen
    distributions = packages_distributions()
    return {distributions[name][0].lower().replace("_", "-") for name in names - sys.stdlib_module_names}


def test_a_space_starts_from_its_folder_for_strangers(linformer, tmp_path):  # noqa: F811
    folder = write_space(tmp_path / "space", [linformer])
    environment = os.environ | {"SPACE_ID": "you/linformer", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    space = subprocess.run(
        [sys.executable, "-c", START], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert space.returncode == 0, space.stderr
    announced, _, answered = space.stdout.partition("package: ")
    assert re.search(r"http://127\.0\.0\.1:\d+", announced)
    place, content = answered.split("\n", 1)
    assert Path(place).parent == folder / "linformer_hf"  # its own copy
    assert "Linformer explorer" in content and "k = 8" in content
    assert "without an access token" in content


def test_a_space_is_not_written_over_something(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; name a new folder"):
        explore(ExplorerArguments(model_name_or_path=UNTRAINED, space=str(tmp_path)))
    assert [file.name for file in tmp_path.iterdir()] == ["note.txt"]


def test_checkpoints_of_one_name_are_refused_before_anything_is_written(linformer, tmp_path):  # noqa: F811
    twin = tmp_path / Path(linformer).name
    shutil.copytree(linformer, twin)
    with pytest.raises(ValueError, match="have one name; rename one"):
        write_space(tmp_path / "space", [linformer, str(twin)])
    assert not (tmp_path / "space").exists()


def test_the_command_writes_every_listed_checkpoint(linformer, tmp_path):  # noqa: F811
    explore(ExplorerArguments(model_name_or_path=UNTRAINED, more_models=[linformer], space=str(tmp_path / "space")))
    started = re.search(r"serve_page\((.*)\)", (tmp_path / "space" / "app.py").read_text()).group(1)
    assert ast.literal_eval(started) == [UNTRAINED, f"models/{Path(linformer).name}"]
