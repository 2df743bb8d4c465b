"""The house rules, read off the source without importing it."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import takewhile
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_imports, get_relative_imports


ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "linformer_hf"
ROOMS = sorted(PACKAGE.rglob("*.py"))
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))

# The floors of the house, from the ground up. A folder may import the floors below its own, and nothing beside it.
FLOORS = (
    ("configuration_linformer",),
    ("modeling_linformer",),
    ("common",),
    ("data",),
    ("analysis", "benchmark", "sharing"),
    ("conversion",),
    ("explorer", "training"),
    ("__init__", "__main__"),
)
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}

HUB_FILES = ("configuration_linformer", "modeling_linformer")
HOST = {"torch", "transformers", "huggingface_hub"}
EXTRAS = {
    "train": {"accelerate", "datasets", "evaluate", "sklearn", "scipy"},
    "plots": {"matplotlib"},
    "explore": {"gradio", "matplotlib"},
    "onnx": {"onnx", "onnxscript", "onnxruntime"},
    "track": {"tensorboard", "trackio"},
}
SCRIPTS_MAY_TAKE = {"HfArgumentParser", "TrainingArguments"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Import = ast.Import | ast.ImportFrom
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPORTS = (ast.Import, ast.ImportFrom)


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE if file.is_relative_to(PACKAGE) else ROOT).with_suffix("").as_posix()


each_room = pytest.mark.parametrize("room", ROOMS, ids=name_of)
each_hub_file = pytest.mark.parametrize("room", [PACKAGE / f"{name}.py" for name in HUB_FILES], ids=HUB_FILES)
each_script = pytest.mark.parametrize("script", SCRIPTS, ids=name_of)


def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def imports(tree: ast.AST) -> list[Import]:
    """List the imports, wherever they stand."""
    return [node for node in ast.walk(tree) if isinstance(node, IMPORTS)]


def hidden_imports(tree: ast.AST) -> list[Import]:
    """List the imports that stand in a function."""
    return [found for node in ast.walk(tree) if isinstance(node, FUNCTIONS) for found in imports(node)]


def libraries(node: Import) -> set[str]:
    """Name the top modules that are imported from elsewhere; none for a relative import."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    return set() if node.level else {node.module.partition(".")[0]}


def is_relative(node: Import) -> bool:
    return isinstance(node, ast.ImportFrom) and node.level > 0


def sentence(node: Import) -> str:
    return f"line {node.lineno}: {ast.unparse(node)}"


def definitions(
    tree: ast.AST, owner: ast.ClassDef | None = None
) -> Iterator[tuple[Function | ast.ClassDef, ast.ClassDef | None]]:
    """Yield the classes, functions and methods that others can reach, special methods too, each with its class."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield from definitions(node, owner)
        elif not node.name.startswith("_") or node.name.endswith("__"):
            yield node, owner
            if isinstance(node, ast.ClassDef):
                yield from definitions(node, node)


def title(node: Function | ast.ClassDef, owner: ast.ClassDef | None) -> str:
    return node.name if owner is None else f"{owner.name}.{node.name}"


def exported(tree: ast.Module) -> set[str]:
    """Read `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else []
            return {name.value for name in names if isinstance(name, ast.Constant)}
    return set()


def has_decorator(node: Function, name: str) -> bool:
    return any(ast.unparse(decorator).endswith(name) for decorator in node.decorator_list)


def place(room: Path) -> str:
    """Name the folder that a file lies in, or the file where it lies at the top."""
    return room.relative_to(PACKAGE).parts[0].removesuffix(".py")


def targets(room: Path) -> Iterator[tuple[Import, tuple[str, ...]]]:
    """Yield each relative import of a file with the path below the package that it reads."""
    parents = room.relative_to(PACKAGE).parent.parts
    for node in imports(parse(room)):
        if is_relative(node):
            above = parents[: len(parents) - node.level + 1]
            yield node, (*above, *filter(None, (node.module or "").split(".")))


def lazy_exports(room: Path) -> dict[str, list[str]]:
    """Read the modules and names that an `__init__` exports lazily."""
    for node in ast.walk(parse(room)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "export_lazily":
            return ast.literal_eval(node.args[1])
    return {}


def test_every_place_has_a_floor():
    assert {place(room) for room in ROOMS} == set(FLOOR)


@each_room
def test_imports_only_go_down(room):
    """Within a folder they go from file to file, and `test_files_of_a_folder_import_in_one_direction` orders these."""
    here = place(room)
    wrong = [
        sentence(node)
        for node, target in targets(room)
        if not target or (target[0] != here and FLOOR[target[0]] >= FLOOR[here])
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", sorted({room.parent for room in ROOMS} - {PACKAGE}), ids=lambda folder: folder.name)
def test_files_of_a_folder_import_in_one_direction(folder):
    siblings = {
        room.stem: {target[1] for _, target in targets(room) if len(target) > 1 and target[0] == folder.name}
        for room in folder.glob("*.py")
    }
    TopologicalSorter(siblings).prepare()  # raises where files import each other in a circle


@each_room
def test_siblings_are_imported_by_their_own_name(room):
    """Neither through the `__init__` of a folder, nor by the package's absolute name."""
    wrong = [sentence(node) for node in imports(parse(room)) if "linformer_hf" in libraries(node)]
    wrong += [
        sentence(node) for node, target in targets(room) if not PACKAGE.joinpath(*target).with_suffix(".py").is_file()
    ]
    assert wrong == []


@pytest.mark.parametrize("room", [room for room in ROOMS if room.name == "__init__.py"], ids=name_of)
def test_what_a_folder_exports_is_defined_there(room):
    for module, names in lazy_exports(room).items():
        source = parse(room.parent.joinpath(*module.split(".")).with_suffix(".py"))
        defined = {node.name for node in source.body if isinstance(node, (*FUNCTIONS, ast.ClassDef))}
        defined |= {ast.unparse(node.targets[0]) for node in source.body if isinstance(node, ast.Assign)}
        defined |= {ast.unparse(node.target) for node in source.body if isinstance(node, ast.AnnAssign)}
        assert set(names) <= defined, f"{module} does not define {sorted(set(names) - defined)}"


@each_script
def test_scripts_only_turn_the_handle(script):
    functions, classes = set(), set()
    for node in imports(parse(script)):
        origins = libraries(node)
        if origins <= sys.stdlib_module_names and not is_relative(node):
            continue
        assert isinstance(node, ast.ImportFrom), f"{sentence(node)}: name what you take from it"
        names = {alias.name for alias in node.names}
        if node.module == "linformer_hf.common.command_line":
            continue  # the handle itself
        if origins == {"linformer_hf"}:
            arguments = {name for name in names if name.endswith("Arguments")}
            classes |= arguments
            functions |= names - arguments
        else:
            assert origins == {"transformers"}, sentence(node)
            assert names <= SCRIPTS_MAY_TAKE, sentence(node)
    assert len(functions) <= 1, f"more than one function: {sorted(functions)}"
    assert all(name.islower() for name in functions), f"not a function: {functions}"
    assert len(classes) <= 1, f"more than one arguments class: {sorted(classes)}"


@each_hub_file
def test_hub_files_need_only_what_comes_with_transformers(room):
    found = set().union(*(libraries(node) for node in imports(parse(room))))
    assert found - HOST - sys.stdlib_module_names == set()
    assert set(get_imports(room)) == found  # nothing hides from the host's own check, as in a `try`


@each_hub_file
def test_hub_files_are_flat_and_the_host_sees_their_true_imports(room):
    """The host reads relative imports off the text by pattern, docstrings and comments included."""
    relative = [node for node in imports(parse(room)) if is_relative(node)]
    for node in relative:
        assert node.level == 1 and node.module in HUB_FILES, sentence(node)
        assert node.col_offset == 0 and "*" not in {alias.name for alias in node.names}, sentence(node)
    assert sorted(get_relative_imports(room)) == sorted({node.module for node in relative})


@each_room
def test_only_doors_print(room):
    if room.stem == "__main__":
        pytest.skip("the command itself is a door")
    called = [node for node in ast.walk(parse(room)) if isinstance(node, ast.Call)]
    printers = {"print", "pprint", "pprint.pprint", "sys.stdout.write", "sys.stderr.write"}
    assert [f"line {node.lineno}" for node in called if ast.unparse(node.func) in printers] == []


@each_room
def test_the_package_raises_and_never_asserts(room):
    assert [f"line {node.lineno}" for node in ast.walk(parse(room)) if isinstance(node, ast.Assert)] == []


@each_room
def test_everything_public_is_explained(room):
    """But for special methods, and the `forward` of a network's inner module, which its class explains."""
    tree = parse(room)
    public = exported(tree)
    unexplained = [
        title(node, owner)
        for node, owner in definitions(tree)
        if ast.get_docstring(node) is None
        and not node.name.startswith("__")
        and not (node.name == "forward" and owner is not None and owner.name not in public)
    ]
    assert unexplained == []
    assert ast.get_docstring(tree)


@each_room
def test_everything_public_is_typed(room):
    untyped = []
    for node, owner in definitions(parse(room)):
        if isinstance(node, ast.ClassDef):
            continue
        parts = node.args
        arguments = [*parts.posonlyargs, *parts.args]
        if owner is not None and not has_decorator(node, "staticmethod"):
            arguments = arguments[1:]  # self or cls
        arguments += [*parts.kwonlyargs, *filter(None, (parts.vararg, parts.kwarg))]
        untyped += [f"{title(node, owner)}({argument.arg})" for argument in arguments if argument.annotation is None]
        if node.returns is None:
            untyped.append(f"{title(node, owner)} -> ?")
    assert untyped == []


MARK = "<the package is imported now>"
PROBE = """
import importlib
import json
import sys
import traceback
import warnings

{host_imports}

for stream in (sys.stdout, sys.stderr):
    print({mark!r}, file=stream, flush=True)
before = set(sys.modules)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import linformer_hf
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
try:
    importlib.reload(linformer_hf)
    for name in [name for name in sys.modules if name.partition(".")[0] == "linformer_hf"]:
        del sys.modules[name]
    import linformer_hf as second

    config = second.LinformerConfig(
        vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4
    )
    model = type(transformers.AutoModelForMaskedLM.from_config(config))
    again = "" if model is second.LinformerForMaskedLM else f"AutoModelForMaskedLM still builds the first {{model}}"
except Exception:
    again = traceback.format_exc()
with open(sys.argv[1], "w") as file:
    json.dump({{"loaded": sorted(loaded), "warnings": [str(item.message) for item in caught], "again": again}}, file)
"""


@pytest.fixture(scope="module")
def first_import(tmp_path_factory):
    """What importing the package does to a fresh process, beyond importing what it takes from its host."""
    rooms = [PACKAGE / f"{name}.py" for name in ("__init__", *HUB_FILES)]
    found = [node for room in rooms for node in parse(room).body if isinstance(node, IMPORTS)]
    host_imports = [ast.unparse(node) for node in found if libraries(node) and libraries(node) <= HOST]
    probe = PROBE.format(mark=MARK, host_imports="\n".join(["import torch, transformers", *host_imports]))
    record = tmp_path_factory.mktemp("house") / "record.json"
    run = subprocess.run(
        [sys.executable, "-c", probe, str(record)],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    said = "".join(text.partition(MARK)[2].strip() for text in (run.stdout, run.stderr))
    return {"said": said, **json.loads(record.read_text())}


def test_importing_the_package_says_nothing(first_import):
    assert first_import["said"] == ""
    assert first_import["warnings"] == []


def test_importing_the_package_loads_no_extra(first_import):
    assert set(first_import["loaded"]) & set().union(*EXTRAS.values()) == set()


def test_importing_the_package_twice_is_harmless(first_import):
    assert first_import["again"] == ""


def test_checkpoints_name_the_same_classes_that_the_package_registers():
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    from linformer_hf.configuration_linformer import AUTO_MAP, LinformerConfig

    registered = {"AutoConfig": CONFIG_MAPPING["linformer"]}
    for name, auto_class in vars(modeling_auto).items():
        mapping = getattr(auto_class, "_model_mapping", None)
        if name.startswith("Auto") and mapping is not None and LinformerConfig in mapping:
            registered[name] = mapping[LinformerConfig]
    where = {name: f"{found.__module__.rpartition('.')[2]}.{found.__name__}" for name, found in registered.items()}
    assert where == AUTO_MAP


def readme_map(readme: str) -> dict[str, str]:
    """Read the map of the house off the README: the path of every file that it names, and what it says of it.

    A line of the map starts with a folder or with the files that it is about, mostly one; what is said of them comes
    after. Indentation puts files into folders, with or without drawn branches.
    """
    blocks = re.findall(r"^```\w*\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    blocks = [block for block in blocks if re.search(r"^\W*linformer_hf/", block, flags=re.MULTILINE)]
    assert len(blocks) == 1, f"the README has {len(blocks)} fenced blocks with a map of the house"
    is_file = re.compile(r"[\w./-]*\w\.[A-Za-z]\w*").fullmatch
    open_folders, files = [(-1, "")], {}
    for line in blocks[0].splitlines():
        line = re.sub(r"[│├└─|`]", " ", line)
        words, indent = line.split(), len(line) - len(line.lstrip())
        while words and open_folders[-1][0] >= indent:
            open_folders.pop()
        folder = open_folders[-1][1] if words else ""
        if words and words[0].endswith("/"):
            folder += words.pop(0)
            open_folders.append((indent, folder))
        names = list(takewhile(is_file, [word.strip(",") for word in words]))
        files |= dict.fromkeys([folder + name.removeprefix(folder) for name in names], " ".join(words[len(names) :]))
    return files


def test_the_map_in_the_readme_is_the_house():
    readme = PACKAGE / "README.md"
    found = readme_map(readme.read_text("utf-8"))
    assert {path for path in found if not (ROOT / path).exists()} == set(), "the map names files that are not there"
    code = [
        *(file for file in ROOMS if file.name != "__init__.py" or file.parent == PACKAGE),
        *(ROOT / "scripts").glob("*.py"),
        *(ROOT / "scripts").glob("*.sh"),
    ]
    code = {file.relative_to(ROOT).as_posix(): file for file in code}
    assert code.keys() - found.keys() == set(), "the map lacks files that are there"
    docstrings = {path: ast.get_docstring(parse(file)) for path, file in code.items() if file.suffix == ".py"}
    says = {path: text.splitlines()[0].removesuffix(".").replace("`", " ") for path, text in docstrings.items()}
    wrong = [path for path, text in says.items() if found[path].split() != text.split()]
    assert wrong == [], "the map says something else of a file than its docstring"


@pytest.fixture(scope="module")
def own_texts():
    """Every text file that git knows or would take in, by its path."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the files of the repository are listed by git, which failed: {error}")
    files = [ROOT / name for name in listing.split("\0") if name]
    contents = {file: file.read_bytes() for file in files if file.is_file() and not file.is_symlink()}
    return {
        file.relative_to(ROOT).as_posix(): content.decode("utf-8", "replace")
        for file, content in contents.items()
        if b"\0" not in content
    }


def matching_lines(pattern: str, texts: dict[str, str]) -> list[str]:
    expression = re.compile(pattern)
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if expression.search(line)
    ]


def test_no_file_knows_the_machine_it_was_written_on(own_texts):
    assert matching_lines(r"(?<![\w.~}>-])/(?:work|tmp/w|root|home/\w+|Users/\w+)(?:/|\b(?![\w.-]))", own_texts) == []


def test_no_comment_is_a_banner(own_texts):
    code = {name: text for name, text in own_texts.items() if not name.endswith(".md")}
    assert matching_lines(r"^\s*#\s*(?:[-=*~_+\u2500-\u257f]{3,}|#{3,})", code) == []
