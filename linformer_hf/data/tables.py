"""Labelled rows from local files or a data set on the Hub, and the columns of them that are read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from transformers.utils import logging

from ..common.options import check_counts
from .file_formats import TABLE_FORMATS, Number, common_format, expand_files, read_csv, read_json_rows, read_parquet


try:
    import pyarrow as pa
    from datasets import Dataset, Features, List, Value, concatenate_datasets, load_dataset
    from datasets.table import InMemoryTable
except ImportError as error:
    raise ImportError("Reading labelled rows needs datasets: pip install linformer_hf[train]") from error


logger = logging.get_logger(__name__)

FLAGS = {"train": "--do_train", "validation": "--do_eval", "test": "--do_predict"}
DEFAULT_SHARE = 0.1


@dataclass
class TableArguments:
    """Where labelled rows come from, and how many of them are used."""

    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Rows to learn from: csv, tsv, json, jsonl or parquet files in UTF-8, compressed by gzip or not. "
            "Labels are read as they are written."
        },
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
            "each text several labels; numbers, one of them with a fraction, are numbers to predict."
        },
    )
    problem_type: str | None = field(
        default=None,
        metadata={
            "help": "single_label_classification, multi_label_classification or regression, where the labels do not "
            "tell: whole numbers are names of classes unless this says regression."
        },
    )
    validation_share: float | None = field(
        default=None,
        metadata={
            "help": "Share of the training rows that is held out where no validation rows are given. By default "
            f"{DEFAULT_SHARE}."
        },
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on this many rows, drawn at random."})
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Measure on this many rows, drawn at random."}
    )
    max_predict_samples: int | None = field(
        default=None, metadata={"help": "Predict only this many rows, the first ones."}
    )


@dataclass(frozen=True)
class Layout:
    """What a labelled data set looks like.

    Args:
        texts: The column of the text, and of a second one. A column that is called `labels` gets another name when it
            is loaded, because the encoded labels take this one; `texts` then holds the new name, `sources` the old.
        labels: The column of the label, or several of 0 and 1.
        splits: By purpose, `"train"`, `"validation"` and `"test"`, the splits that serve it.
        aliases: Other names of columns.
        header: Column names of tsv files without a header.
        quoted: Whether a tsv file may quote its fields.
        test_labels: Whether the label column of test rows holds real labels.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    splits: Mapping[str, tuple[str, ...]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    header: tuple[str, ...] = ()
    quoted: bool = True
    test_labels: bool = True
    sources: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", self.texts)
        object.__setattr__(self, "texts", tuple("labels (text)" if name == "labels" else name for name in self.texts))


def load_tables(
    arguments: TableArguments,
    layout: Layout,
    purposes: Sequence[str],
    default_dataset: tuple[str, str] | None = None,
) -> dict[str, Dataset]:
    """Load the splits that are needed, with their texts and labels under the layout's names and nothing else.

    Args:
        arguments: They name files, or a data set on the Hub.
        layout: Splits and columns.
        purposes: Which of `"train"`, `"validation"` and `"test"` are needed. Rows for validation may be missing where
            there are some to train on, from which they can be held out.
        default_dataset: Name and configuration of the data set on the Hub that is read where nothing is named.

    Returns:
        A table a split.

    Raises:
        ValueError: If rows or columns are missing, options contradict each other or would have no effect, or a file
            cannot be read.
    """
    check_options(arguments, purposes, has_default=default_dataset is not None)
    named = named_files(arguments)
    files = {purpose: expand_files(names, TABLE_FORMATS) for purpose, names in named.items() if purpose in purposes}
    if named:
        tables = read_files(files, layout)
    else:
        default_name, default_configuration = default_dataset or (None, None)
        tables = load_dataset(
            arguments.dataset_name or default_name,
            arguments.dataset_config_name or default_configuration,
            revision=arguments.dataset_revision,
        )
    chosen = {}
    for purpose in purposes:
        found = [split for split in layout.splits[purpose] if split in tables]
        if not found and not (purpose == "validation" and "train" in purposes):
            remedy = f"give --{purpose}_file" if named else f"the data set has the splits {', '.join(tables)}"
            raise ValueError(f"There are no rows for {FLAGS[purpose]}: {remedy}.")
        if arguments.validation_share is not None and purpose == "validation" and found:
            raise ValueError(
                f"--validation_share is {arguments.validation_share}, which has no effect, because there are rows to "
                f"measure on: {', '.join(found)}."
            )
        chosen |= {split: keep_columns(tables[split], layout, split, purpose) for split in found}
    return chosen


def named_files(arguments: TableArguments) -> dict[str, list[str]]:
    """Return the files that are named, by what their rows are for."""
    named = {"train": arguments.train_file, "validation": arguments.validation_file, "test": arguments.test_file}
    return {purpose: names for purpose, names in named.items() if names}


def check_options(arguments: TableArguments, purposes: Sequence[str], has_default: bool) -> None:
    """Check that each option can have an effect.

    Raises:
        ValueError: At the first that contradicts another, or has no effect beside it; both are named.
    """
    named = named_files(arguments)
    if named and arguments.dataset_name:
        raise ValueError(
            f"Rows come from --{next(iter(named))}_file or from --dataset_name, not from both: leave one out."
        )
    if not named and not arguments.dataset_name and not has_default:
        raise ValueError("No rows are named: give --task_name, --dataset_name or --train_file.")
    for name in ("dataset_config_name", "dataset_revision"):
        value = getattr(arguments, name)
        if value is not None and not arguments.dataset_name and (named or not has_default):
            raise ValueError(f"--{name} is {value}, which has no effect without --dataset_name.")
    if arguments.validation_share is not None and arguments.validation_file:
        raise ValueError(
            f"--validation_share is {arguments.validation_share}, which has no effect beside --validation_file."
        )
    counts = ("max_train_samples", "max_eval_samples", "max_predict_samples")
    check_counts({name: getattr(arguments, name) for name in counts})
    needs = {
        "validation_share": ("train", "validation"),
        "max_train_samples": ("train",),
        "max_eval_samples": ("validation",),
        "test_file": ("test",),
        "max_predict_samples": ("test",),
    }
    for name, needed in needs.items():
        missing = [purpose for purpose in needed if purpose not in purposes]
        if getattr(arguments, name) is not None and missing:
            raise ValueError(f"--{name} has no effect without {FLAGS[missing[0]]}.")


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
    """Read files of one format: all fields of csv, tsv and json as they are written.

    Raises:
        ValueError: If the format is unknown or they have several, a file is damaged, or they hold no rows.
    """
    try:
        file_format = common_format(files, TABLE_FORMATS)
    except ValueError as error:
        raise ValueError(
            f"{', '.join(files)}: labelled rows come in one format among {', '.join(TABLE_FORMATS)}."
        ) from error
    if file_format == "parquet":
        parts = [Dataset(InMemoryTable(read_parquet(file))) for file in files]
    elif file_format == "json":
        parts = [read_json_table(file, layout) for file in files]
    else:
        parts = [read_csv_table(file, layout, file_format == "tsv") for file in files]
    for file, part in zip(files, parts):
        if set(part.column_names) != set(parts[0].column_names):
            raise ValueError(
                f"{file} has the columns {', '.join(part.column_names)}; {files[0]} has "
                f"{', '.join(parts[0].column_names)}."
            )
    if not sum(map(len, parts)):
        raise ValueError(f"{', '.join(files)}: there are no rows in it.")
    return concatenate_datasets(parts) if len(parts) > 1 else parts[0]


def read_csv_table(file: str, layout: Layout, is_tab_separated: bool) -> Dataset:
    """Read one csv or tsv file into columns of strings.

    Raises:
        ValueError: If it is damaged, or two columns of one name are needed.
    """
    rows = read_csv(file, is_tab_separated, is_quoted=layout.quoted or not is_tab_separated)
    first = next(rows, [])
    has_header = not (is_tab_separated and layout.header) or set(layout.sources) <= set(first)
    names = first if has_header else list(layout.header)
    needed = {*layout.sources, *layout.labels, *layout.aliases}
    twice = [name for name in names if name in needed and names.count(name) > 1]
    if twice:
        raise ValueError(f"{file} has two columns with the name {twice[0]!r}.")
    if len(names) != len(first):
        raise ValueError(f"{file}: the first row has {len(first)} fields, not {', '.join(names)}.")
    columns = {position: [] for position, name in enumerate(names) if name in needed}
    length = 0
    for fields in rows if has_header else chain([first], rows):
        length += 1
        for position, column in columns.items():
            column.append(fields[position])
    # the others are kept by name alone, for messages that list the columns
    table = {
        name: pa.array(columns[position], pa.large_string()) if name in needed else pa.nulls(length)
        for position, name in enumerate(names)
        if name
    }
    return Dataset(InMemoryTable(pa.table(table)))


def read_json_table(file: str, layout: Layout) -> Dataset:
    """Read one json or jsonl file: texts, and labels as strings or lists of strings, spelled as in the file.

    Raises:
        ValueError: If it is damaged, or a text or a label is something else.
    """
    rows = list(read_json_rows(file))
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    labels = {*layout.labels, *(alias for alias, name in layout.aliases.items() if name in layout.labels)}
    texts = {*layout.sources, *(alias for alias, name in layout.aliases.items() if name in layout.sources)}
    table, features = {}, {}
    for name in names:
        values = [row.get(name) for _, row in rows]
        if name in labels:
            has_lists = any(isinstance(value, list) for value in values)
            for (place, _), value in zip(rows, values):
                if isinstance(value, dict) or (has_lists and value is not None and not isinstance(value, list)):
                    raise ValueError(f"{place}: the label {str(value)[:40]!r} is no name, number or list of names.")
            table[name] = [spell(value) for value in values]
            features[name] = List(Value("string")) if has_lists else Value("string")
        elif name in texts:
            for (place, _), value in zip(rows, values):
                if value is not None and (not isinstance(value, str) or isinstance(value, Number)):
                    raise ValueError(f"{place}: the column {name!r} holds no text: {str(value)[:40]}.")
            table[name], features[name] = values, Value("large_string")
        else:
            # kept by name alone, for messages that list the columns
            table[name], features[name] = [None] * len(rows), Value("null")
    return Dataset.from_dict(table, Features(features))


def spell(value: Any) -> str | list[str] | None:
    """Write a value of a JSON file as a label, or a list of them."""
    if isinstance(value, list):
        return [spell(item) for item in value]
    return None if value is None else str(value)


def keep_columns(table: Dataset, layout: Layout, split: str, purpose: str) -> Dataset:
    """Keep the columns of texts and labels, under the names of the layout; test rows may be without labels.

    Raises:
        ValueError: If one is missing, or a text is none.
    """
    names = table.column_names
    aliases = {old: new for old, new in layout.aliases.items() if old in names and new not in names}
    table = table.rename_columns(aliases)
    names = table.column_names
    wanted = [*layout.sources]
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
    for name in layout.sources:
        if not getattr(table.features[name], "dtype", "").endswith("string"):
            raise ValueError(f"The column {name!r} of the rows for {split} holds no text: {table.features[name]}.")
    renamed = {old: new for old, new in zip(layout.sources, layout.texts) if old != new}
    return table.select_columns(wanted).rename_columns(renamed)


def report_empty_texts(table: Dataset, texts: Iterable[str], split: str) -> None:
    """Log how many rows have an empty text; they are kept, so that leaving them out improves no metric."""
    for name in texts:
        empty = sum(not (text and text.strip()) for text in table[name])
        if empty:
            logger.warning(f"{empty} of {len(table)} rows for {split} have no text in the column {name!r}; they stay.")


def hold_out(table: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Split rows for evaluation off the training rows.

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
    tables: Mapping[str, Dataset],
    layout: Layout,
    purposes: Sequence[str],
    seed: int,
    validation_share: float | None = None,
    most: Mapping[str, int | None] | None = None,
) -> dict[str, Dataset]:
    """Hold rows out where there are none to measure on, and keep as many of each split as is asked for.

    Args:
        tables: A table a split.
        layout: Which splits serve which purpose.
        purposes: Which of `"train"`, `"validation"` and `"test"` are needed.
        seed: Which rows are held out and drawn.
        validation_share: Share of the training rows to hold out; None is a tenth.
        most: By purpose, the most rows of a split; None keeps all rows.

    Raises:
        ValueError: If no row is left to train or to measure on.
    """
    tables = dict(tables)
    held_out = layout.splits["validation"]
    if "validation" in purposes and not any(split in tables for split in held_out):
        share = DEFAULT_SHARE if validation_share is None else validation_share
        tables["train"], tables[held_out[0]] = hold_out(tables["train"], share, seed)
    shared = {}
    for purpose in purposes:
        for split in (split for split in layout.splits[purpose] if split in tables):
            table, rows = tables[split], (most or {}).get(purpose)
            if rows is not None and rows < len(table):
                # drawn, for the first rows might all have one label; but answers are numbered as the test rows are
                table = (table if purpose == "test" else table.shuffle(seed=seed)).take(rows)
            shared[split] = table
    return shared
