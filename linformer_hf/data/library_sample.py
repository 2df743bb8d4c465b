"""Text that comes with CPython: its documentation, and the source code of its standard library."""

import ast
import sysconfig
from collections import deque
from collections.abc import Iterator
from pathlib import Path


try:
    from datasets import Dataset
except ImportError as error:
    raise ImportError("The built-in sample needs datasets: pip install linformer_hf[train]") from error


CONTENTS = ("documentation", "source", "both")
DEFAULT_SAMPLE = "documentation"
LEFT_OUT = {"test", "tests", "site-packages", "idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data"}
HELD_OUT_EVERY = 12


def describe_sample(contents: str) -> str:
    """Return what cards and reports call the sample."""
    names = {
        "documentation": "the documentation",
        "source": "the source code",
        "both": "documentation and source code",
    }
    return f"{names[contents]} of Python's standard library"


def builtin_sample(contents: str = DEFAULT_SAMPLE) -> dict[str, Dataset]:
    """Read documentation, source code, or both, of this Python; the files are read as text, nothing of them is run.

    A document is a topic of `help()`, the docstrings of a module together, or a source file. Tests are left out. With
    `"both"`, docstrings are held out with the file that holds them, so that none is seen in training.

    Args:
        contents: `"documentation"`, about two megabytes; `"source"`, about eight; or `"both"`.

    Returns:
        The splits `train` and `validation`; every twelfth document is held out.

    Raises:
        ValueError: If there are no such contents, or this Python was installed without its sources.
    """
    if contents not in CONTENTS:
        raise ValueError(f"--builtin_sample is {contents!r}; it must be one of {', '.join(CONTENTS)}.")
    library = Path(sysconfig.get_path("stdlib"))
    files = library_files(library)
    if len(files) < HELD_OUT_EVERY:
        raise ValueError(f"This Python has no library sources in {library}; name a text with --train_file.")
    topics = [] if contents == "source" else list(manual_topics(library / "pydoc_data" / "topics.py"))
    if contents == "documentation":
        documents = [*topics, *(text for _, text in module_docstrings(files))]
        return as_splits(documents, [number % HELD_OUT_EVERY == 0 for number in range(len(documents))])
    held_out_files = set(files[::HELD_OUT_EVERY])
    documents = [file.read_text("utf-8") for file in files]
    is_held_out = [file in held_out_files for file in files]
    if contents == "both":
        docstrings = list(module_docstrings(files))
        documents += [*topics, *(text for _, text in docstrings)]
        is_held_out += [number % HELD_OUT_EVERY == 0 for number in range(len(topics))]
        is_held_out += [file in held_out_files for file, _ in docstrings]
    return as_splits(documents, is_held_out)


def as_splits(documents: list[str], is_held_out: list[bool]) -> dict[str, Dataset]:
    """Share documents out between the two splits."""
    return {
        split: Dataset.from_dict(
            {"text": [text for text, held_out in zip(documents, is_held_out) if held_out == wanted]}
        )
        for split, wanted in (("train", False), ("validation", True))
    }


def library_files(library: Path) -> list[Path]:
    """List the source files of the standard library without its tests, in a fixed order."""
    files = []
    for file in sorted(library.rglob("*.py")):
        folders = file.relative_to(library).parts
        if not LEFT_OUT & set(folders) and not folders[0].startswith("config-") and file.stat().st_size:
            files.append(file)
    return files


def manual_topics(file: Path) -> Iterator[str]:
    """Yield the topics of `help()`, which the file holds as one dictionary of strings."""
    if file.is_file():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Dict):
                yield from (ast.literal_eval(value) for value in node.values)


def walk_statements(module: ast.Module) -> Iterator[ast.AST]:
    """Yield a module and its statements in the order of `ast.walk`, without their expressions, which take longest."""
    waiting = deque([module])
    while waiting:
        node = waiting.popleft()
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            waiting.extend(getattr(node, name, ()))
        yield node


def module_docstrings(files: list[Path]) -> Iterator[tuple[Path, str]]:
    """Yield each module that has docstrings, and these joined; one that stands in two modules only the first time."""
    seen = set()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for file in files:
        statements = walk_statements(ast.parse(file.read_text("utf-8")))
        found = [ast.get_docstring(node) for node in statements if isinstance(node, documented)]
        new = [text for text in dict.fromkeys(found) if text and text not in seen]
        seen.update(new)
        if new:
            yield file, "\n\n".join(new)
