"""Local files of texts and tables: found by name, read as they are written, or refused in one line."""

import ast
import csv
import glob
import gzip
import json
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from transformers.utils import logging


try:
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException
    from pyarrow import Table as ArrowTable
except ImportError as error:
    raise ImportError("Reading files needs datasets: pip install linformer_hf[train]") from error


logger = logging.get_logger(__name__)

TABLE_FORMATS = {".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
TEXT_FORMATS = {".txt": "txt", ".text": "txt", **TABLE_FORMATS}
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*")
QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
PRINTED_ITEM = rf"(?:{QUOTED}|[+-]?\d+(?:\.\d+)?)"
# two strings without a comma between, as NumPy prints them, would be joined by Python's own reader
PRINTED_LIST = re.compile(rf"\s*\[\s*(?:{PRINTED_ITEM}(?:\s*,\s*{PRINTED_ITEM})*\s*,?)?\s*\]\s*")
LOOKS_LIKE_A_LIST = re.compile(r"\s*\[\s*['\"]")
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


class Number(str):
    """A number of a JSON file, spelled as it stands there."""


def expand_files(patterns: Iterable[str], formats: Mapping[str, str] = TEXT_FORMATS) -> list[str]:
    """List the files that names, folders and patterns stand for, in a fixed order.

    A name that exists is that file, even if it could be read as a pattern. Of a folder, files of other formats and
    hidden ones are left out.

    Args:
        patterns: Names, folders and patterns, as in `"texts/*.txt"`.
        formats: By suffix; `.gz` may follow any but `.parquet`.

    Raises:
        ValueError: If one of them stands for no file, or a file is empty.
    """
    files = []
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            below = sorted(file for file in path.rglob("*") if file.is_file())
            visible = (file for file in below if not is_hidden(file.relative_to(path)))
            found = [str(file) for file in visible if suffix_of(file) in formats]
        elif path.is_file():
            found = [pattern]
        else:
            found = sorted(file for file in glob.glob(pattern, recursive=True) if os.path.isfile(file))
        if not found:
            raise ValueError(f"{pattern}: there is no such file, nor a folder with files of a known format.")
        files += found
    for file in files:
        if os.path.getsize(file) == 0:
            raise ValueError(f"{file}: the file is empty.")
    return files


def is_hidden(path: Path) -> bool:
    """Tell whether a file or one of its folders is hidden."""
    return any(part.startswith(".") for part in path.parts)


def suffix_of(file: str | Path) -> str:
    """Return the ending of a name in small letters, without that of compression."""
    name = Path(file).name.lower()
    return Path(name.removesuffix(".gz")).suffix


def common_format(files: Iterable[str], formats: Mapping[str, str]) -> str:
    """Return the format of files.

    Raises:
        ValueError: If it is unknown, or there are several.
    """
    suffixes = {suffix_of(file) for file in files}
    found = {formats.get(suffix) for suffix in suffixes}
    if None in found or len(found) > 1:
        raise ValueError(
            f"The files end in {', '.join(sorted(suffixes)) or 'nothing'}; all must be of one format among "
            f"{', '.join(formats)}."
        )
    return found.pop()


@contextmanager
def open_text(file: str) -> Iterator[TextIO]:
    """Open a UTF-8 file for reading, compressed by gzip or not, without its byte-order mark and with all its breaks.

    Raises:
        ValueError: If it is damaged: with the line and byte of the first bytes that are not UTF-8.
    """
    opened = gzip.open if file.lower().endswith(".gz") else open
    try:
        with opened(file, "rt", encoding="utf-8-sig", newline="") as stream:
            yield stream
    except UnicodeDecodeError as error:
        raise ValueError(describe_damage(file)) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{file}: not readable as gzip: {error}.") from error


def describe_damage(file: str) -> str:
    """Say where a file is not UTF-8, and how to mend it."""
    opened = gzip.open if file.lower().endswith(".gz") else open
    with opened(file, "rb") as stream:
        start = 0
        for number, line in enumerate(stream, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                wrong = line[error.start]
                return (
                    f"{file}: line {number}, byte {start + error.start} of the file is 0x{wrong:02x}, which is not "
                    "UTF-8. Files are read as UTF-8; if this one is Latin-1, convert it: iconv -f LATIN1 -t UTF-8."
                )
            start += len(line)
    return f"{file}: not UTF-8."


def read_csv(file: str, is_tab_separated: bool = False, is_quoted: bool = True) -> Iterator[list[str]]:
    """Read a table of comma- or tab-separated values, every field as it is written, the first row included.

    A `.csv` file whose first row has no comma may be separated by semicolons, tabs or vertical bars. Empty lines at
    the end are no rows.

    Args:
        file: In UTF-8, compressed by gzip or not.
        is_tab_separated: Whether tabs, and only these, separate the fields.
        is_quoted: Whether a field may stand in quotes, which may hold separators and line breaks. Files without
            quotes are those that GLUE publishes, of which QQP's has broken rows: they are left out, with a warning.

    Yields:
        The fields of each row; of all rows as many as of the first.

    Raises:
        ValueError: If a row has more or fewer fields than the first, or a quote does not end where a field does.
    """
    limit = csv.field_size_limit(sys.maxsize)  # a field may be a whole book
    try:
        with open_text(file) as stream:
            separator = "\t" if is_tab_separated else find_separator(file)
            quoting = csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
            rows = csv.reader(stream, delimiter=separator, quoting=quoting, strict=True)
            if is_quoted:
                yield from check_rows(rows, file, SEPARATORS[separator])
            else:
                yield from leave_out_broken_rows(rows, file)
    finally:
        csv.field_size_limit(limit)


def leave_out_broken_rows(rows: Any, file: str) -> Iterator[list[str]]:
    """Yield the rows of a `csv.reader` that have as many fields as the first, and say how many others there are."""
    width, broken = None, []
    for fields in rows:
        width = width or len(fields)
        if len(fields) == width:
            yield fields
        elif fields:
            broken.append(rows.line_num)
    if broken:
        logger.warning(
            f"{file}: rows that do not have the {width} fields of the first are left out: {len(broken)}, the first of "
            f"them in line {broken[0]}."
        )


def find_separator(file: str) -> str:
    """Return what separates the names in the first line of a `.csv` file."""
    with open_text(file) as stream:
        first = re.sub(r'"[^"]*"', "", stream.readline())
    found = next((separator for separator in SEPARATORS if separator in first), ",")
    if found != ",":
        logger.info(f"{file}: the first line has no commas; {SEPARATORS[found]} separate the fields.")
    return found


def check_rows(rows: Any, file: str, separators: str) -> Iterator[list[str]]:
    """Yield the rows of a `csv.reader`, and refuse the first that cannot be right."""
    width, first_blank = None, None
    while True:
        line = rows.line_num + 1
        try:
            fields = next(rows, None)
        except csv.Error as error:
            raise ValueError(
                f"{file}: not readable as csv: the row that starts in line {line}: {error}. A quote that belongs to a "
                "text is written twice, and the field stands in quotes."
            ) from error
        if fields is None:
            return
        if not fields:
            first_blank = line if first_blank is None and width is not None else first_blank
            continue
        width = width or len(fields)
        if first_blank is not None and width > 1:
            raise ValueError(f"{file}: not readable as csv: line {first_blank} is empty, and rows follow it.")
        if len(fields) != width:
            raise ValueError(
                f"{file}: not readable as csv: line {line}: the row has {len(fields)} fields, the header has {width}. "
                f"Fields are separated by {separators}; a text that holds one stands in quotes."
            )
        for _ in range(0 if first_blank is None else line - first_blank):
            yield [""]  # in a table of one column an empty line is an empty field
        first_blank = None
        yield fields


def read_json_rows(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read rows from a JSON file: an object in each line, or one list of objects.

    Numbers keep their spelling, as `Number`.

    Yields:
        Where a row stands, for messages, and the row.

    Raises:
        ValueError: At the first thing that is no such row.
    """
    with open_text(file) as stream:
        first = next((line for line in stream if line.strip()), "")
    is_list = first.lstrip().startswith("[")
    with open_text(file) as stream:
        if is_list:
            numbered = enumerate(parse_json(stream.read(), file, 1))
            places = ((f"{file}: row {number}", row) for number, row in numbered)
        else:
            lines = ((number, line) for number, line in enumerate(stream, start=1) if line.strip())
            places = ((f"{file}: line {number}", parse_json(line, file, number)) for number, line in lines)
        for place, row in places:
            if not isinstance(row, dict):
                raise ValueError(f"{place} holds no JSON object, but {str(row)[:40]!r}.")
            yield place, row


def parse_json(text: str, file: str, first_line: int) -> Any:
    """Parse a piece of a JSON file that starts in a line.

    Raises:
        ValueError: With file and line, if it is damaged.
    """
    try:
        value = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise ValueError(
            f"{file}: not readable as json: line {line}, column {error.colno}: {error.msg}. It must hold an object in "
            "each line, or one list of objects."
        ) from error
    if "\\u" in text and LONE_SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise ValueError(f"{file}: line {first_line} holds half of a surrogate pair, which is no character.")
    return value


def read_parquet(file: str, columns: list[str] | None = None) -> ArrowTable:
    """Read a parquet file, or some columns of it.

    Raises:
        ValueError: If it is damaged.
    """
    with refuse_damaged_parquet(file):
        return parquet.ParquetFile(file).read(columns)


@contextmanager
def refuse_damaged_parquet(file: str) -> Iterator[None]:
    """Turn errors of pyarrow into one that names the file."""
    try:
        yield
    except (ArrowException, OSError) as error:
        raise ValueError(f"{file}: not readable as parquet: {str(error).splitlines()[0]}") from error


def parse_printed_list(value: str) -> list[str] | None:
    """Read a list that was printed into one field, as in `['a', 'b']`; None where the field holds none.

    Raises:
        ValueError: If it starts like such a list and is none.
    """
    if PRINTED_LIST.fullmatch(value):
        try:
            return [str(item) for item in ast.literal_eval(value.strip())]
        except (ValueError, SyntaxError) as error:
            raise ValueError(f"{value!r} starts like a list of names, but is not readable as one.") from error
    if LOOKS_LIKE_A_LIST.match(value):
        raise ValueError(
            f"{value!r} starts like a list of names, but is not readable as one: write ['a', 'b'], or use jsonl."
        )
    return None


def is_number(value: str) -> bool:
    """Tell whether a field is the spelling of a finite number."""
    return NUMBER.fullmatch(value) is not None
