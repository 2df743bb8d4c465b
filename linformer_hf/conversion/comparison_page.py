"""What a comparison of two models says: tables for the log, and a page with the commands that made it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.markdown import markdown_table, written
from ..common.records import earlier_calls


PAGE = "README.md"
AT_LENGTH = re.compile(r"(.+)_(\d+)")

Numbers = Mapping[int, Mapping[str, float]]  # of each length, by name


def measures(numbers: Numbers) -> list[str]:
    """List the names of all numbers in the order in which they come at each length; some come at some lengths only."""
    names: list[str] = []
    for found in numbers.values():
        place = 0
        for name in found:
            if name not in names:
                names.insert(place, name)
            place = names.index(name) + 1
    return names


def cells(numbers: Numbers, name: str) -> list[str]:
    """Write one number of each length, or a dash where there is none."""
    return [written(found[name]) if name in found else "-" for found in numbers.values()]


def table_lines(numbers: Numbers) -> list[str]:
    """Set numbers as a table for the log, with a column for each length."""
    names = measures(numbers)
    width = max(map(len, names))
    lines = [f"{'tokens':{width}}" + "".join(f"{length:>16}" for length in numbers)]
    for name in names:
        lines.append(f"{name.replace('_', ' '):{width}}" + "".join(f"{cell:>16}" for cell in cells(numbers, name)))
    return lines


def summary_lines(numbers: Numbers) -> list[str]:
    """Set length, cosine and speed as a table for the log, with a line for each length."""
    rows = [
        f"{length:>8}{found['embedding_cosine']:>10.3f}{found['speedup']:>9.2f} x" for length, found in numbers.items()
    ]
    return [f"{'tokens':>8}{'cosine':>10}{'speed':>11}", *rows]


def page(record: Mapping[str, Any], order: Sequence[str], title: str, note: str) -> str:
    """Set the numbers of a record as a page in Markdown, with the commands that made them.

    Args:
        record: Its numbers are named as from `comparison.compare`, with the length at the end.
        order: Of the rows, by the names of the numbers; others come after them.
        title: Heading of the page.
        note: Stands below the title; may be empty.
    """
    numbers: dict[int, dict[str, float]] = {}
    for name, value in record["numbers"].items():
        if at_length := AT_LENGTH.fullmatch(name):
            numbers.setdefault(int(at_length[2]), {})[at_length[1]] = value
    numbers = dict(sorted(numbers.items()))
    header = ["tokens", *map(str, numbers)]
    names = dict.fromkeys([*order, *measures(numbers)])
    rows = [[name.replace("_", " "), *cells(numbers, name)] for name in names]
    commands = "\n".join(call["command"] for call in earlier_calls(record))
    parts = [f"# {title}", note, markdown_table(header, rows), f"```text\n{commands}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"
