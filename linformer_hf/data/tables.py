"""Where labelled rows come from: local files or a data set on the Hub, and which columns of it are read."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.utils import logging


try:
    from datasets import Dataset, load_dataset
    from datasets.exceptions import DatasetGenerationError
except ImportError as error:
    raise ImportError("Reading labelled rows needs datasets: pip install linformer_hf[train]") from error


logger = logging.get_logger(__name__)

FLAGS = {"train": "--do_train", "validation": "--do_eval", "test": "--do_predict"}
FILE_FORMATS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
# In a label these mean that there is none. In a text they are words, as in "NA means not available".
NO_LABEL = ["", "nan", "NaN", "NA", "N/A", "null", "NULL"]


@dataclass
class TableArguments:
    """Where labelled rows come from, and how many of them are used."""

    train_file: list[str] | None = field(
        default=None, metadata={"help": "Rows to learn from: csv, tsv, json, jsonl or parquet files."}
    )
    validation_file: list[str] | None = field(
        default=None,
        metadata={"help": "Rows to measure on; of MNLI, the matched and the mismatched file. See --validation_share."},
    )
    test_file: list[str] | None = field(
        default=None, metadata={"help": "Rows to predict, with or without labels; of MNLI, two files likewise."}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "A data set on the Hub, in place of files."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Which configuration of that data set."})
    dataset_revision: str | None = field(default=None, metadata={"help": "Which branch, tag or commit of it."})
    text_column: str | None = field(
        default=None, metadata={"help": "Column of the text. By default the GLUE task's, or `text`."}
    )
    text_pair_column: str | None = field(
        default=None, metadata={"help": "Column of a second text, where rows are pairs."}
    )
    label_column: list[str] | None = field(
        default=None,
        metadata={
            "help": "Column of the label, by default `label`. A list in each row, or several columns of 0 and 1, give "
            "each text several labels; fractions are numbers to predict."
        },
    )
    problem_type: str | None = field(
        default=None,
        metadata={
            "help": "single_label_classification, multi_label_classification or regression, where the labels do not "
            "tell: whole numbers are names of classes unless this says regression."
        },
    )
    validation_share: float = field(
        default=0.1, metadata={"help": "Share of the training rows that is held out where no other rows measure."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Draw so many rows to learn from."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Draw so many rows to measure on."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict the first so many rows."})


@dataclass(frozen=True)
class Layout:
    """What a labelled data set looks like.

    Args:
        texts: The column of the text, and of a second one.
        labels: The column of the label, or several of 0 and 1.
        splits: By purpose, `"train"`, `"validation"` and `"test"`, the splits that serve it.
        aliases: Other names of columns.
        header: Column names of tsv files without a header.
        quoted: Whether a tsv file may quote its fields.
        test_labels: Whether what stands in the label column of test rows is true.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    splits: Mapping[str, tuple[str, ...]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    header: tuple[str, ...] = ()
    quoted: bool = True
    test_labels: bool = True


def load_tables(
    arguments: TableArguments, layout: Layout, files: Mapping[str, list[str]], purposes: Sequence[str]
) -> dict[str, Dataset]:
    """Load the splits that are needed, with their texts and labels under the layout's names and nothing else.

    Args:
        arguments: They name the data set on the Hub, where there are no files.
        layout: Splits and columns.
        files: By purpose; empty where the rows come from the Hub.
        purposes: Which of `"train"`, `"validation"` and `"test"` are needed. Rows for validation may be missing where
            there are some to train on, from which they can be held out.

    Returns:
        A table a split.

    Raises:
        ValueError: If rows or columns are missing, or a file cannot be read.
    """
    if files:
        tables = read_files({purpose: files[purpose] for purpose in purposes if purpose in files}, layout)
    else:
        tables = load_dataset(
            arguments.dataset_name, arguments.dataset_config_name, revision=arguments.dataset_revision
        )
    chosen = {}
    for purpose in purposes:
        found = [split for split in layout.splits[purpose] if split in tables]
        if not found and not (purpose == "validation" and "train" in purposes):
            remedy = f"give --{purpose}_file" if files else f"the data set has the splits {', '.join(tables)}"
            raise ValueError(f"There are no rows for {FLAGS[purpose]}: {remedy}.")
        chosen |= {split: keep_columns(tables[split], layout, split, purpose) for split in found}
    return chosen


def read_files(files: Mapping[str, list[str]], layout: Layout) -> dict[str, Dataset]:
    """Read the files of each purpose, as one split, or a split each where the layout has several.

    Raises:
        ValueError: If there are more files than such splits, or a file cannot be read.
    """
    tables = {}
    for purpose, names in files.items():
        splits = layout.splits[purpose]
        if len(splits) == 1:
            tables[splits[0]] = read_table(names, layout)
        elif len(names) > len(splits):
            raise ValueError(f"--{purpose}_file names {len(names)} files for the splits {', '.join(splits)}.")
        else:
            tables |= {split: read_table([name], layout) for split, name in zip(splits, names)}
    return tables


def read_table(files: list[str], layout: Layout) -> Dataset:
    """Read files of one format.

    Raises:
        ValueError: If the format is unknown or they have several, a file is damaged, or they hold no rows.
    """
    suffixes = {Path(file).suffix.lower() for file in files}
    if len(suffixes) > 1 or not suffixes <= set(FILE_FORMATS):
        raise ValueError(f"{', '.join(files)}: labelled rows come in one format among {', '.join(FILE_FORMATS)}.")
    suffix = suffixes.pop()
    options = csv_options(files[0], layout) if FILE_FORMATS[suffix] == "csv" else {}
    try:
        tables = load_dataset(FILE_FORMATS[suffix], data_files=files, **options)
    except (DatasetGenerationError, ValueError) as error:
        raise ValueError(f"{', '.join(files)}: not readable as {suffix[1:]}: {error.__cause__ or error}") from error
    if not tables or len(tables["train"]) == 0:
        raise ValueError(f"{', '.join(files)}: there are no rows in it.")
    return tables["train"]


def csv_options(file: str, layout: Layout) -> dict[str, Any]:
    """Say how to read a csv or tsv file."""
    labels = [*layout.labels, *(alias for alias, column in layout.aliases.items() if column in layout.labels)]
    options = {"encoding": "utf-8-sig", "keep_default_na": False, "na_values": dict.fromkeys(labels, NO_LABEL)}
    if file.lower().endswith(".tsv"):
        options["sep"] = "\t"
        if not layout.quoted:
            options["quoting"] = csv.QUOTE_NONE
        if layout.header and not has_header(file, layout):
            options["column_names"] = list(layout.header)
    return options


def has_header(file: str, layout: Layout) -> bool:
    """Tell whether the first line of a tsv file names the columns of the texts."""
    with open(file, encoding="utf-8-sig") as lines:
        return set(layout.texts) <= set(lines.readline().rstrip("\n").split("\t"))


def keep_columns(table: Dataset, layout: Layout, split: str, purpose: str) -> Dataset:
    """Keep the columns of texts and labels, under the names of the layout; test rows may be without labels.

    Raises:
        ValueError: If one is missing, or a text is none.
    """
    names = table.column_names
    aliases = {old: new for old, new in layout.aliases.items() if old in names and new not in names}
    table = table.rename_columns(aliases)
    names = table.column_names
    wanted = [*layout.texts]
    if purpose != "test":
        wanted += layout.labels
    elif layout.test_labels:
        wanted += [name for name in layout.labels if name in names]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ValueError(
            f"The rows for {split} have no column {missing[0]!r}, only {', '.join(names)}; name the right ones with "
            "--text_column, --text_pair_column and --label_column."
        )
    for name in layout.texts:
        if not getattr(table.features[name], "dtype", "").endswith("string"):
            raise ValueError(f"The column {name!r} of the rows for {split} holds no text: {table.features[name]}.")
    return table.select_columns(wanted)


def report_empty_texts(table: Dataset, layout: Layout, split: str) -> None:
    """Log how many rows have nothing to read; they stay, so that no measure gets better by leaving them out."""
    for name in layout.texts:
        empty = sum(not (text and text.strip()) for text in table[name])
        if empty:
            logger.warning(f"{empty} of {len(table)} rows for {split} have no text in the column {name!r}; they stay.")


def hold_out(table: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Cut rows to measure on from those to train on.

    Raises:
        ValueError: If no row is left on one side.
    """
    rows = round(share * len(table))
    if not 0 < rows < len(table):
        raise ValueError(
            f"--validation_share is {share}, which of {len(table)} rows holds out {rows}; give --validation_file or "
            "another share."
        )
    logger.info(f"No rows to measure on are named; {rows} of {len(table)} training rows are held out.")
    parts = table.train_test_split(test_size=rows, seed=seed)
    return parts["train"], parts["test"]


def share_rows(
    tables: Mapping[str, Dataset], arguments: TableArguments, layout: Layout, purposes: Sequence[str], seed: int
) -> dict[str, Dataset]:
    """Hold rows out where there are none to measure on, and keep as many of each split as is asked for.

    Raises:
        ValueError: If no row is left to train or to measure on.
    """
    tables = dict(tables)
    held_out = layout.splits["validation"]
    if "validation" in purposes and not any(split in tables for split in held_out):
        tables["train"], tables[held_out[0]] = hold_out(tables["train"], arguments.validation_share, seed)
    for split, table in tables.items():
        if split in layout.splits["test"]:
            most = arguments.max_predict_samples
        else:
            most = arguments.max_train_samples if split == "train" else arguments.max_eval_samples
        if most is not None and most < len(table):
            # drawn, for the first rows might all have one label; but answers are numbered as the test rows are
            table = table if split in layout.splits["test"] else table.shuffle(seed=seed)
            tables[split] = table.take(most)
    return {split: tables[split] for purpose in purposes for split in layout.splits[purpose] if split in tables}
