"""Where text comes from: local files, a data set on the Hub, or the manual that every Python carries."""

import ast
import glob
import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from transformers.utils import logging


try:
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, load_dataset
except ImportError as error:
    raise ImportError("Reading training text needs datasets: pip install linformer_hf[train]") from error


logger = logging.get_logger(__name__)

Texts = DatasetDict | IterableDatasetDict
Table = Dataset | IterableDataset

FILE_FORMATS = {
    ".txt": "text",
    ".text": "text",
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
SAMPLE_LEFT_OUT = {"test", "tests", "site-packages", "idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data"}
SAMPLE_HELD_OUT_EVERY = 12
STREAMED_EVAL_ROWS = 1000


@dataclass
class TextArguments:
    """Where text comes from, and how it is read."""

    train_file: list[str] | None = field(
        default=None,
        metadata={"help": "Training text: files, folders or patterns of txt, json, jsonl, csv, tsv or parquet."},
    )
    validation_file: list[str] | None = field(
        default=None,
        metadata={"help": "Held-out text, likewise. Without it a share of the training text is held out."},
    )
    dataset_name: str | None = field(
        default=None,
        metadata={"help": "A data set on the Hub, in place of files. With neither, the text of Python's own manual."},
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Which configuration of that data set."})
    dataset_revision: str | None = field(default=None, metadata={"help": "Which branch, tag or commit of it."})
    text_column: str | None = field(
        default=None, metadata={"help": "Column that holds the text. By default `text`, or the only one with strings."}
    )
    sample_by: str = field(
        default="line",
        metadata={"help": "What is one document of a txt file: a `line`, a `paragraph` or the whole `document`."},
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read while training, for text larger than the disk. Needs --max_steps."}
    )
    validation_share: float = field(
        default=0.05, metadata={"help": "Share of the documents that is held out where there is no held-out text."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Read at most this many documents."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Hold out at most this many documents."})


def load_texts(arguments: TextArguments, seed: int) -> Texts:
    """Load documents into one column, `text`, split into `train` and `validation`.

    Args:
        arguments: Where to read from.
        seed: Which documents are held out, where that is drawn.

    Returns:
        The documents, without empty ones.

    Raises:
        ValueError: If a file is missing or of an unknown format, a column cannot be found, or too little text is
            there to hold some out.
    """
    if arguments.dataset_name:
        texts = load_dataset(
            arguments.dataset_name,
            arguments.dataset_config_name,
            revision=arguments.dataset_revision,
            streaming=arguments.streaming,
        )
    elif arguments.train_file:
        files = {"train": expand_files(arguments.train_file)}
        if arguments.validation_file:
            files["validation"] = expand_files(arguments.validation_file)
        texts = load_files(files, arguments)
    else:
        logger.info("No training text is named; reading the documentation of Python's standard library.")
        texts = builtin_sample()
    texts = type(texts)({split: keep_text(table, arguments.text_column) for split, table in texts.items()})
    return limit_rows(hold_out(texts, arguments, seed), arguments)


def expand_files(patterns: Iterable[str]) -> list[str]:
    """List the files that names, folders and patterns stand for, in a fixed order.

    Raises:
        ValueError: If one of them stands for no file, or a file is empty.
    """
    files = []
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            found = sorted(str(file) for file in path.rglob("*") if file.suffix in FILE_FORMATS)
        else:
            found = [pattern] if path.is_file() else sorted(glob.glob(pattern, recursive=True))
        if not found:
            raise ValueError(f"{pattern}: there is no such file, nor a folder with files of a known format.")
        files += found
    for file in files:
        if os.path.getsize(file) == 0:
            raise ValueError(f"{file}: the file is empty.")
    return files


def load_files(files: dict[str, list[str]], arguments: TextArguments) -> Texts:
    """Read local files of one format.

    Raises:
        ValueError: If the format is unknown, or there are several.
    """
    suffixes = {Path(file).suffix.lower() for file in chain.from_iterable(files.values())}
    formats = {FILE_FORMATS.get(suffix) for suffix in suffixes}
    if None in formats or len(formats) > 1:
        raise ValueError(
            f"The files end in {', '.join(sorted(suffixes)) or 'nothing'}; all must be of one format among "
            f"{', '.join(FILE_FORMATS)}."
        )
    options = {}
    if formats == {"text"}:
        options["sample_by"] = arguments.sample_by
    elif suffixes == {".tsv"}:
        options["sep"] = "\t"
    return load_dataset(formats.pop(), data_files=files, streaming=arguments.streaming, **options)


def builtin_sample() -> DatasetDict:
    """Read the manual that every CPython carries: language reference topics, and docstrings of the standard library.

    The files are read as text, nothing of them is run. A document is a topic, or a module's docstrings together.

    Returns:
        About two megabytes of English and code. Every twelfth document is the held-out part.

    Raises:
        ValueError: If this Python was installed without its sources.
    """
    library = Path(sysconfig.get_path("stdlib"))
    documents = [*manual_topics(library / "pydoc_data" / "topics.py"), *module_docstrings(library)]
    if len(documents) < SAMPLE_HELD_OUT_EVERY:
        raise ValueError(f"This Python has no library sources in {library}; name a text with --train_file.")
    held_out = documents[::SAMPLE_HELD_OUT_EVERY]
    training = [text for index, text in enumerate(documents) if index % SAMPLE_HELD_OUT_EVERY]
    return DatasetDict(
        {"train": Dataset.from_dict({"text": training}), "validation": Dataset.from_dict({"text": held_out})}
    )


def manual_topics(file: Path) -> Iterator[str]:
    """Yield the topics of `help()`, which the file holds as one dictionary of strings."""
    if file.is_file():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Dict):
                yield from (ast.literal_eval(value) for value in node.values)


def module_docstrings(library: Path) -> Iterator[str]:
    """Yield the docstrings of each module, joined, each docstring once."""
    seen = set()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for file in sorted(library.rglob("*.py")):
        parts = file.relative_to(library).parts
        if SAMPLE_LEFT_OUT & set(parts) or parts[0].startswith("config-"):
            continue
        nodes = ast.walk(ast.parse(file.read_text("utf-8")))
        found = [ast.get_docstring(node) for node in nodes if isinstance(node, documented)]
        new = [text for text in dict.fromkeys(found) if text and text not in seen]
        seen.update(new)
        if new:
            yield "\n\n".join(new)


def keep_text(table: Table, column: str | None) -> Table:
    """Keep one column, named `text`, and of it the rows that hold something.

    Raises:
        ValueError: If the column is missing, or none is named and several hold strings.
    """
    features = table.features or table._resolve_features().features
    strings = [name for name, feature in features.items() if getattr(feature, "dtype", "").endswith("string")]
    column = column or ("text" if "text" in strings else strings[0] if len(strings) == 1 else None)
    if column not in strings:
        raise ValueError(
            f"No column {column or 'of text'!r} was found; name one with --text_column. Columns with strings: "
            f"{', '.join(strings) or 'none'}."
        )
    table = table.select_columns([column])
    if column != "text":
        table = table.rename_column(column, "text")
    kept = table.filter(lambda row: bool(row["text"] and row["text"].strip()))
    if isinstance(kept, Dataset) and len(kept) < len(table):
        logger.info(f"{len(table) - len(kept)} of {len(table)} rows hold no text and are left out.")
    return kept


def hold_out(texts: Texts, arguments: TextArguments, seed: int) -> Texts:
    """Name the splits `train` and `validation`, cutting the second from the first where it is missing.

    Raises:
        ValueError: If there is nothing to train on, or too little to hold some out.
    """
    if "train" not in texts:
        raise ValueError(f"The data set has no `train` split; it has {', '.join(texts)}.")
    train = texts["train"]
    for split in ("validation", "test"):
        if split in texts:
            return type(texts)({"train": train, "validation": texts[split]})
    if isinstance(train, IterableDataset):
        rows = arguments.max_eval_samples or STREAMED_EVAL_ROWS
        return IterableDatasetDict({"train": train.skip(rows), "validation": train.take(rows)})
    rows = max(1, round(arguments.validation_share * len(train)))
    if rows >= len(train):
        raise ValueError(
            f"The training text holds {len(train)} documents, too few to hold some out: give --validation_file, or "
            "split it finer with --sample_by."
        )
    parts = train.train_test_split(test_size=rows, seed=seed)
    return DatasetDict({"train": parts["train"], "validation": parts["test"]})


def limit_rows(texts: Texts, arguments: TextArguments) -> Texts:
    """Keep at most the asked number of documents of each split."""
    limits = {"train": arguments.max_train_samples, "validation": arguments.max_eval_samples}
    return type(texts)(
        {split: table if limits[split] is None else table.take(limits[split]) for split, table in texts.items()}
    )


def in_memory(table: Table) -> Dataset:
    """Read a stream of bounded length to its end; a table is there already."""
    return Dataset.from_list(list(table)) if isinstance(table, IterableDataset) else table
