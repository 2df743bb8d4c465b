"""Text from local files, a data set on the Hub, or the library of this Python."""

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice

from transformers.utils import logging

from ..common.options import check_counts, refuse_unused
from .file_formats import (
    TEXT_FORMATS,
    Number,
    common_format,
    expand_files,
    is_number,
    open_text,
    read_csv,
    read_json_rows,
    refuse_damaged_parquet,
    suffix_of,
)
from .library_sample import DEFAULT_SAMPLE, builtin_sample


try:
    import pyarrow as pa
    import pyarrow.parquet as parquet
    from datasets import Dataset, Features, IterableDataset, Value, load_dataset
    from datasets.exceptions import DatasetGenerationError
except ImportError as error:
    raise ImportError("Reading training text needs datasets: pip install linformer_hf[train]") from error


logger = logging.get_logger(__name__)

Table = Dataset | IterableDataset
Texts = dict[str, Table]

DEFAULT_SHARE = 0.05
STREAMED_EVAL_ROWS = 1000
SHUFFLE_BUFFER = 10_000
LOOKED_AT = 1000  # rows from which the columns that hold text are told
SAMPLE_BY = ("line", "paragraph", "document")
TEXT = Features({"text": Value("large_string")})


@dataclass
class TextArguments:
    """Sources of text, and how it is read."""

    train_file: list[str] | None = field(
        default=None,
        metadata={
            "help": "Training text in UTF-8: files, folders or patterns of txt, json, jsonl, csv, tsv or parquet, "
            "compressed by gzip or not."
        },
    )
    validation_file: list[str] | None = field(
        default=None,
        metadata={"help": "Held-out text, likewise. Without it a share of the training text is held out."},
    )
    dataset_name: str | None = field(
        default=None,
        metadata={"help": "A data set on the Hub, in place of files. With neither, see --builtin_sample."},
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Which configuration of that data set."})
    dataset_revision: str | None = field(default=None, metadata={"help": "Which branch, tag or commit of it."})
    builtin_sample: str | None = field(
        default=None,
        metadata={
            "help": "What is read where no text is named: the `documentation` of this Python's standard library "
            "(the default), its `source` code, or `both`."
        },
    )
    text_column: str | None = field(
        default=None, metadata={"help": "Column that holds the text. By default `text`, or the only one with strings."}
    )
    sample_by: str | None = field(
        default=None,
        metadata={
            "help": "What is one document of a txt file: a `line`, which is the default, a `paragraph` or the whole "
            "`document`."
        },
    )
    streaming: bool = field(
        default=False,
        metadata={"help": "Read while it is used, for text larger than the disk; training then needs --max_steps."},
    )
    shuffle_buffer_size: int | None = field(
        default=None,
        metadata={
            "help": "With --streaming, draw each document at random from this many; 1 keeps their order. By default "
            f"{SHUFFLE_BUFFER}."
        },
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Number of processes that read and tokenize. The examples are the same."}
    )
    validation_share: float | None = field(
        default=None,
        metadata={
            "help": "Share of the documents that is held out where there is no held-out text. By default "
            f"{DEFAULT_SHARE}."
        },
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Read at most this many documents."})
    max_eval_samples: int | None = field(
        default=None,
        metadata={
            "help": "Measure on at most this many held-out documents; with --streaming, by default "
            f"{STREAMED_EVAL_ROWS}."
        },
    )


def load_texts(arguments: TextArguments, seed: int, splits: Sequence[str] = ("train", "validation")) -> Texts:
    """Load documents, and hold some out where that is needed.

    Args:
        arguments: Where they are and how they are read.
        seed: Which documents are held out, and the order of a stream.
        splits: Which of `"train"` and `"validation"` must be there. The other one is there too if text for it is
            named. Nothing is held out where `"validation"` is not among them.

    Returns:
        Tables with the column `text`. Of a stream, `train` is shuffled within a buffer, in another order after
        `set_epoch`, and `validation` is in memory.

    Raises:
        ValueError: If no text, or one that cannot be read, is named, options contradict each other or would have no
            effect, or there is too little text to hold some out.
    """
    files = {"train": arguments.train_file, "validation": arguments.validation_file}
    files = {split: expand_files(names, TEXT_FORMATS) for split, names in files.items() if names}
    check_options(arguments, files, splits)
    if arguments.dataset_name:
        tables = load_dataset(
            arguments.dataset_name,
            arguments.dataset_config_name,
            revision=arguments.dataset_revision,
            streaming=arguments.streaming,
        )
        tables = {split: keep_text(table, arguments.text_column) for split, table in tables.items()}
    elif files:
        read = partial(
            read_files,
            column=arguments.text_column,
            sample_by=arguments.sample_by or SAMPLE_BY[0],
            streaming=arguments.streaming,
            num_workers=arguments.preprocessing_num_workers,
        )
        tables = {split: read(names) for split, names in files.items()}
    else:
        contents = arguments.builtin_sample or DEFAULT_SAMPLE
        logger.info(f"No training text is named; reading the built-in sample, {contents}.")
        tables = builtin_sample(contents)
    texts = choose_splits(tables, splits, arguments.validation_share, seed)
    if "train" in texts:
        texts["train"] = limit_rows(texts["train"], arguments.max_train_samples)
    if "validation" in texts:
        most = STREAMED_EVAL_ROWS if arguments.streaming else None
        texts["validation"] = in_memory(limit_rows(texts["validation"], arguments.max_eval_samples or most))
        if not len(texts["validation"]):
            raise ValueError(
                "No document of the stream is held out: give --validation_file or a larger --validation_share."
            )
    if arguments.streaming and "train" in texts:
        texts["train"] = texts["train"].shuffle(seed, buffer_size=arguments.shuffle_buffer_size or SHUFFLE_BUFFER)
    return texts


def check_options(arguments: TextArguments, files: Mapping[str, Sequence[str]], splits: Sequence[str]) -> None:
    """Check that each option can have an effect.

    Args:
        arguments: All options.
        files: What is named by them, by split.
        splits: Those that must be there.

    Raises:
        ValueError: At the first option that contradicts another, has no effect, or is out of range.
    """
    if files and arguments.dataset_name:
        named = f"--{next(iter(files))}_file"
        raise ValueError(f"Text comes from {named} or from --dataset_name, not from both: leave one out.")
    is_text = bool(files) and common_format(chain.from_iterable(files.values()), TEXT_FORMATS) == "txt"
    unused = {
        **unused_by_source(arguments.dataset_name, files, is_text),
        **unused_by_splits(files, splits),
        **unused_by_streaming(arguments.streaming),
    }
    for name, reason in unused.items():
        refuse_unused({name: getattr(arguments, name)}, reason)
    counts = ("shuffle_buffer_size", "preprocessing_num_workers", "max_train_samples", "max_eval_samples")
    check_counts({name: getattr(arguments, name) for name in counts})
    if arguments.validation_share is not None and not 0 < arguments.validation_share < 1:
        raise ValueError(f"--validation_share is {arguments.validation_share}; it must lie between 0 and 1.")
    if arguments.sample_by not in (None, *SAMPLE_BY):
        raise ValueError(f"--sample_by is {arguments.sample_by!r}; it must be one of {', '.join(SAMPLE_BY)}.")


def unused_by_source(dataset_name: str | None, files: Mapping[str, Sequence[str]], is_text: bool) -> dict[str, str]:
    """Return the options that have no effect where text comes from, and why."""
    if dataset_name:
        return dict.fromkeys(("builtin_sample", "sample_by"), "beside --dataset_name")
    unused = dict.fromkeys(("dataset_config_name", "dataset_revision"), "without --dataset_name")
    if not files:
        return unused | dict.fromkeys(
            ("text_column", "sample_by", "streaming", "validation_share"),
            "on the built-in sample; name a --train_file",
        )
    unused["builtin_sample"] = f"beside --{next(iter(files))}_file"
    if is_text:
        return unused | {"text_column": "on txt files"}
    return unused | {"sample_by": "on files other than txt"}


def unused_by_splits(files: Mapping[str, Sequence[str]], splits: Sequence[str]) -> dict[str, str]:
    """Return the options that have no effect on the splits that are needed, and why."""
    unused = {}
    if "validation" not in splits:
        unused = dict.fromkeys(("validation_file", "validation_share", "max_eval_samples"), "where all text is read")
    elif "validation" in files:
        unused["validation_share"] = "beside --validation_file"
    if files and "train" not in files:
        unused["max_train_samples"] = "without --train_file"
    return unused


def unused_by_streaming(streaming: bool) -> dict[str, str]:
    """Return the option that has no effect with or without streaming, and why."""
    if streaming:
        return {"preprocessing_num_workers": "beside --streaming; --dataloader_num_workers reads in several processes"}
    return {"shuffle_buffer_size": "without --streaming"}


def read_files(
    files: list[str], column: str | None, sample_by: str, streaming: bool = False, num_workers: int | None = None
) -> Table:
    """Read the documents of local files of one format; those that hold nothing are left out.

    Args:
        files: In UTF-8, compressed by gzip or not.
        column: Which column of a table holds the text; None where there is only one.
        sample_by: What is one document of a txt file.
        streaming: Read the files while the documents are used. Otherwise they are read once, into the cache of
            `datasets`.
        num_workers: Processes that read several files.

    Raises:
        ValueError: If a file is damaged or holds no text.
    """
    file_format = common_format(files, TEXT_FORMATS)
    if file_format != "txt":
        column = find_text_column(files[0], column)
    # size and time of change are part of the key of the cache
    stamped = [(file, os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in map(os.path.abspath, files)]
    options = {"files": stamped, "column": column, "sample_by": sample_by}
    if streaming:
        return IterableDataset.from_generator(generate_rows, TEXT, gen_kwargs=options)
    num_workers = min(num_workers or 1, len(files))
    try:
        return Dataset.from_generator(
            generate_rows, TEXT, gen_kwargs=options, num_proc=num_workers if num_workers > 1 else None
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, ValueError):
            raise ValueError(str(error.__cause__)) from error
        for _ in generate_rows(**options):  # raises what another process could not hand over
            pass
        raise
    except ValueError as error:
        if "corresponds to no data" not in str(error):
            raise
        raise ValueError(f"{', '.join(files)}: there is no text in it.") from error


def generate_rows(files: list[tuple[str, int, int]], column: str | None, sample_by: str) -> Iterator[dict[str, str]]:
    """Yield a row for each document of files, which are named with their sizes and times."""
    for file, _, _ in files:
        left_out = 0
        for text in read_documents(file, column, sample_by):
            if text and text.strip():
                yield {"text": text}
            else:
                left_out += 1
        if left_out:
            logger.info(f"{file}: {left_out} rows hold no text and are left out.")


def read_documents(file: str, column: str | None, sample_by: str) -> Iterator[str | None]:
    """Yield the documents of one file, as they are written.

    Raises:
        ValueError: If the file is damaged, or its column is missing or holds something else.
    """
    file_format = TEXT_FORMATS[suffix_of(file)]
    if file_format == "txt":
        yield from split_text(file, sample_by)
    elif file_format == "json":
        for place, row in read_json_rows(file):
            text = row.get(column)
            if text is not None and (not isinstance(text, str) or isinstance(text, Number)):
                raise ValueError(f"{place}: the column {column!r} holds no text: {str(text)[:40]}.")
            yield text
    elif file_format == "parquet":
        with refuse_damaged_parquet(file):
            stored = parquet.ParquetFile(file)
            check_column(file, column, stored.schema_arrow.names)
            for batch in stored.iter_batches(batch_size=LOOKED_AT, columns=[column]):
                yield from batch.column(0).to_pylist()
    else:
        rows = read_csv(file, is_tab_separated=file_format == "tsv")
        names = next(rows, [])
        check_column(file, column, names)
        position = names.index(column)
        for fields in rows:
            yield fields[position]


def check_column(file: str, column: str, names: Sequence[str]) -> None:
    """Check that a file has a column.

    Raises:
        ValueError: If it has not, or twice.
    """
    if list(names).count(column) != 1:
        raise ValueError(f"{file} has no column {column!r}, or several of that name, among {', '.join(names)}.")


def split_text(file: str, sample_by: str) -> Iterator[str]:
    """Yield the lines of a text file, its paragraphs, which empty lines separate, or all of it."""
    with open_text(file) as stream:
        lines = (line.rstrip("\r\n") for line in stream)
        if sample_by == "line":
            yield from lines
        elif sample_by == "document":
            yield "\n".join(lines)
        else:
            paragraph: list[str] = []
            for line in lines:
                if line.strip():
                    paragraph.append(line)
                elif paragraph:
                    yield "\n".join(paragraph)
                    paragraph = []
            if paragraph:
                yield "\n".join(paragraph)


def find_text_column(file: str, column: str | None) -> str:
    """Return the column that is named, `text`, or the only one that holds strings.

    Raises:
        ValueError: If it is missing, or none is named and several hold strings.
    """
    file_format = TEXT_FORMATS[suffix_of(file)]
    if file_format == "parquet":
        with refuse_damaged_parquet(file):
            schema = parquet.read_schema(file)
        types = {name: schema.field(name).type for name in schema.names}
        strings = [name for name, kind in types.items() if pa.types.is_string(kind) or pa.types.is_large_string(kind)]
    elif file_format == "json":
        rows = [row for _, row in islice(read_json_rows(file), LOOKED_AT)]
        found = [name for row in rows for name, value in row.items() if type(value) is str]
        strings = list(dict.fromkeys(found))
    else:
        rows = islice(read_csv(file, is_tab_separated=file_format == "tsv"), LOOKED_AT + 1)
        names, columns = next(rows, []), list(zip(*rows))
        holds_words = [any(value.strip() and not is_number(value) for value in values) for values in columns]
        strings = [name for name, has_words in zip(names, holds_words) if name and (has_words or name == column)]
    return choose_column(column, strings)


def choose_column(column: str | None, strings: Sequence[str]) -> str:
    """Return the column that is named, `text`, or the only one that holds strings.

    Raises:
        ValueError: If it is missing, or none is named and several hold strings.
    """
    column = column or ("text" if "text" in strings else strings[0] if len(strings) == 1 else None)
    if column not in strings:
        raise ValueError(
            f"No column {column or 'of text'!r} was found; name one with --text_column. Columns with strings: "
            f"{', '.join(strings) or 'none'}."
        )
    return column


def keep_text(table: Table, column: str | None) -> Table:
    """Keep one column, named `text`, and of it the rows that hold something.

    Raises:
        ValueError: If the column is missing, or none is named and several hold strings.
    """
    features = table.features or table._resolve_features().features
    strings = [name for name, feature in features.items() if getattr(feature, "dtype", "").endswith("string")]
    column = choose_column(column, strings)
    table = table.select_columns([column])
    if column != "text":
        table = table.rename_column(column, "text")
    kept = table.filter(lambda text: bool(text and text.strip()), input_columns=["text"])
    if isinstance(kept, Dataset) and len(kept) < len(table):
        logger.info(f"{len(table) - len(kept)} of {len(table)} rows hold no text and are left out.")
    return kept


def choose_splits(tables: Mapping[str, Table], splits: Sequence[str], share: float | None, seed: int) -> Texts:
    """Name the splits `train` and `validation`; the second is split off the first where it is needed and missing.

    Args:
        tables: By their own names.
        splits: Those that must be there.
        share: Of the training documents to hold out; None is the default.
        seed: Which ones.

    Raises:
        ValueError: If a split is missing, or there is too little to hold some out.
    """
    held_out = next((tables[name] for name in ("validation", "test") if name in tables), None)
    if "train" not in tables and ("train" in splits or held_out is None):
        raise ValueError(
            f"There is no training text, only {', '.join(tables)}: give --train_file, or a data set with `train`."
        )
    texts = {} if held_out is None or "validation" not in splits else {"validation": held_out}
    if "train" in tables:
        texts["train"] = tables["train"]
    if "validation" in texts and share is not None:
        raise ValueError(
            f"--validation_share is {share}, which has no effect, because the data set has held-out text."
        )
    if "validation" in splits and "validation" not in texts:
        texts["train"], texts["validation"] = hold_out(tables["train"], share or DEFAULT_SHARE, seed)
    return texts


def hold_out(table: Table, share: float, seed: int) -> tuple[Table, Table]:
    """Split held-out documents off the training documents.

    Of a stream, whose length is not known, the text of a document decides where it belongs, so that all processes and
    passes agree, and equal documents stay together.

    Raises:
        ValueError: If a table is too short.
    """
    if isinstance(table, IterableDataset):
        parts = (partial(belongs_to, seed=seed, share=share, held_out=held_out) for held_out in (False, True))
        train, held_out = (table.filter(part, input_columns=["text"]) for part in parts)
        return train, held_out
    rows = max(1, round(share * len(table)))
    if rows >= len(table):
        raise ValueError(
            f"The training text holds {len(table)} documents, too few to hold some out: give --validation_file, or "
            "split it finer with --sample_by."
        )
    parts = table.train_test_split(test_size=rows, seed=seed)
    return parts["train"], parts["test"]


def belongs_to(text: str, seed: int, share: float, held_out: bool) -> bool:
    """Tell whether a document of a stream belongs to the held-out ones, or to the others."""
    digest = zlib.crc32(text.encode("utf-8"), seed % 2**32)
    return (digest < share * 2**32) == held_out


def limit_rows(table: Table, most: int | None) -> Table:
    """Keep at most this many documents."""
    if most is None or (isinstance(table, Dataset) and most >= len(table)):
        return table
    return table.take(most)


def in_memory(table: Table) -> Dataset:
    """Read a stream of bounded length to its end; a table is there already."""
    return Dataset.from_list(list(table)) if isinstance(table, IterableDataset) else table
