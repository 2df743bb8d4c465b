"""Labels of a table: one name of several, several names, or a number to predict; read, checked and encoded."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from statistics import fmean, pstdev
from typing import Any

from transformers import PreTrainedConfig
from transformers.utils import logging

from .file_formats import is_number, parse_printed_list


try:
    from datasets import ClassLabel, Dataset, LargeList, List
except ImportError as error:
    raise ImportError("Reading labels needs datasets: pip install linformer_hf[train]") from error


logger = logging.get_logger(__name__)

SINGLE_LABEL, MULTI_LABEL, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
ANY_NUMBER = (-math.inf, math.inf)
SHOWN = 20  # names in one line of a report
# in a column of numbers these stand for a missing one; in a column of names they are names, as NA is a country
NOT_A_NUMBER = {"nan", "na", "n/a", "null", "none"}
ZERO_OR_ONE = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}

Answer = str | list[str] | float | None
Encoded = int | list[float] | float


@dataclass(frozen=True)
class Labels:
    """What the outputs of a model stand for.

    Args:
        problem_type: As in a model's configuration.
        names: One an output, in their order. Where a number is predicted, its column.
    """

    problem_type: str
    names: tuple[str, ...]


def labels_of(config: PreTrainedConfig) -> Labels:
    """Return what the outputs of a model stand for, from its configuration."""
    names = tuple(config.id2label[number] for number in range(config.num_labels))
    return Labels(config.problem_type or (REGRESSION if len(names) == 1 else SINGLE_LABEL), names)


def encode_tables(
    tables: Mapping[str, Dataset],
    columns: Sequence[str],
    model: Labels,
    problem_type: str | None = None,
    names: Sequence[str] | None = None,
    limits: tuple[float, float] = ANY_NUMBER,
) -> tuple[Labels, dict[str, Dataset]]:
    """Find out what the labels of tables stand for, and encode them in a column `labels` for the loss of a model.

    Test rows may be without labels; the others have them all. With a table `train` the model is to be trained.

    Args:
        tables: A table a split.
        columns: Of the label, or several of 0 and 1.
        model: What the model answers so far.
        problem_type: As `find_problem` has it, where that is known.
        names: What 0, 1, … stand for, where that is known.
        limits: The least and the greatest number to predict.

    Returns:
        What the model is to answer, and the tables.

    Raises:
        ValueError: If labels are missing, wrong, or not those of a model that is not to be trained.
    """
    labelled = {split: table for split, table in tables.items() if has_labels(table, columns, split)}
    if labelled:
        first = next(iter(labelled.values()))
        problem_type = find_problem(first, columns, problem_type)
        names = names or names_of(first, columns)
    else:
        problem_type, names = problem_type or model.problem_type, names or model.names
    answers = {
        split: read_answers(table, columns, problem_type, names, limits, split) for split, table in labelled.items()
    }
    answers = {split: found for split, found in answers.items() if split != "test" or None not in found}
    names = columns if problem_type == REGRESSION else names or find_names(answers, model)
    labels = agree_with_model(Labels(problem_type, tuple(names)), model, may_change="train" in tables)
    encoded = {
        split: table.remove_columns([column for column in columns if column in table.column_names])
        for split, table in tables.items()
    }
    for split, found in answers.items():
        encoded[split] = encoded[split].add_column("labels", encode(found, labels, split))
    return labels, encoded


def has_labels(table: Dataset, columns: Sequence[str], split: str) -> bool:
    """Tell whether a table has the label columns; in test rows these may be blank from top to bottom."""
    if not set(columns) <= set(table.column_names):
        return False
    return split != "test" or not all(is_blank(value) for column in columns for value in values_of(table, column))


def values_of(table: Dataset, column: str) -> list[Any]:
    """Return a column as a list, through arrow, which is many times faster than row by row."""
    return table.select_columns([column]).with_format("arrow")[:][column].to_pylist()


def is_blank(value: Any) -> bool:
    """Tell whether a field holds nothing."""
    return value is None or (isinstance(value, str) and not value.strip())


def find_problem(table: Dataset, columns: Sequence[str], asked: str | None = None) -> str:
    """Return the problem type of a table, from its label columns.

    Files of text say nothing of types, so all rows are looked at: lists, also those printed into a field, and several
    columns mean several labels; numbers, at least one of them with a fraction, mean numbers to predict; all others,
    whole numbers too, are names of one label.

    Args:
        table: With these columns.
        columns: One, or several of 0 and 1.
        asked: What the user says that it is.

    Raises:
        ValueError: If that cannot be what the user says, or some rows hold lists and others do not.
    """
    several = len(columns) > 1 or holds_lists(table, columns[0])
    if asked not in (None, SINGLE_LABEL, MULTI_LABEL, REGRESSION):
        raise ValueError(
            f"--problem_type is {asked!r}; it must be one of {SINGLE_LABEL}, {MULTI_LABEL}, {REGRESSION}."
        )
    if asked is not None and (asked == MULTI_LABEL) != several:
        raise ValueError(
            f"--problem_type is {asked}, but --label_column {' '.join(columns)} holds "
            f"{'several labels' if several else 'one label'} a row; {MULTI_LABEL} takes a list in each row, or "
            "several columns of 0 and 1."
        )
    if several:
        return MULTI_LABEL
    return asked or (REGRESSION if holds_fractions(table, columns[0]) else SINGLE_LABEL)


def holds_lists(table: Dataset, column: str) -> bool:
    """Tell whether each field of a column holds a list of labels, which may have been printed into it.

    Raises:
        ValueError: If some do and others do not.
    """
    feature = table.features[column]
    if isinstance(feature, List | LargeList):
        return True
    if not getattr(feature, "dtype", "").endswith("string"):
        return False
    lists, other = [], []
    for row, value in enumerate(values_of(table, column)):
        if is_blank(value):
            continue
        try:
            (other if parse_printed_list(value) is None else lists).append(row)
        except ValueError as error:
            raise ValueError(f"Row {row}, column {column!r}: {error}") from error
        if lists and other:
            raise ValueError(
                f"In the column {column!r} row {lists[0]} holds a printed list of labels and row {other[0]} does not; "
                "write a list in each row, or use a jsonl file."
            )
    return bool(lists)


def holds_fractions(table: Dataset, column: str) -> bool:
    """Tell whether a column holds numbers, at least one of them written with a fraction."""
    feature = table.features[column]
    if not getattr(feature, "dtype", "").endswith("string"):
        return getattr(feature, "dtype", "").startswith("float")
    has_fraction = False
    for value in values_of(table, column):
        if is_blank(value) or value.strip().lower() in NOT_A_NUMBER:
            continue
        if not is_number(value) and value.strip().lower().lstrip("+-") not in ("inf", "infinity"):
            return False
        has_fraction = has_fraction or not value.strip().lstrip("+-").isdecimal()
    return has_fraction


def names_of(table: Dataset, columns: Sequence[str]) -> tuple[str, ...] | None:
    """Return the label names that a table carries itself: those of its type, or its several columns."""
    if len(columns) > 1:
        return tuple(columns)
    feature = table.features[columns[0]]
    feature = feature.feature if isinstance(feature, List | LargeList) else feature
    return tuple(feature.names) if isinstance(feature, ClassLabel) else None


def read_answers(
    table: Dataset,
    columns: Sequence[str],
    problem_type: str,
    names: Sequence[str] | None,
    limits: tuple[float, float],
    split: str,
) -> list[Answer]:
    """Read each row's label by its name, names by a list, or number; None where there is none.

    Args:
        table: With the columns.
        columns: One, or several of 0 and 1.
        problem_type: As `find_problem` says.
        names: What 0, 1, … stand for. None takes each value for its own name.
        limits: The least and the greatest number to predict.
        split: What the table is called in messages.

    Raises:
        ValueError: If a label is none of the names, no number, or outside the limits.
    """
    values = [values_of(table, column) for column in columns]
    rows = values[0] if len(columns) == 1 else zip(*values)
    read: Callable[[Any], Answer]
    if len(columns) > 1:
        read = partial(read_columns, columns=columns)
    elif problem_type == REGRESSION:
        read = partial(read_number, limits=limits)
    elif problem_type == MULTI_LABEL:
        read = partial(read_list, names=names)
    else:
        read = partial(read_name, names=names)
    answers = []
    for row, value in enumerate(rows):
        try:
            answers.append(read(value))
        except ValueError as error:
            raise ValueError(f"Row {row} for {split}: {error}") from error
    return answers


def read_name(value: Any, names: Sequence[str] | None) -> str | None:
    """Read one label as it is written; the Hub writes -1 where a number would stand and is not known."""
    if is_blank(value) or value != value:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # whole numbers become fractions in a typed column with gaps
    if names is None or value in names:
        return str(value)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if number not in range(-1, len(names)):
        raise ValueError(
            f"the label {value!r} is none of {', '.join(names)}, nor a number from 0 to {len(names) - 1}."
        )
    return None if number == -1 else names[int(number)]


def read_list(value: Sequence[Any] | str | None, names: Sequence[str] | None) -> list[str] | None:
    """Read a list of labels, which may be empty, or printed into one field."""
    if is_blank(value):
        return None
    items = parse_printed_list(value) if isinstance(value, str) else value
    if items is None:
        raise ValueError(f"{value!r} is no list of labels, as in ['a', 'b'].")
    found = [read_name(item, names) for item in items]
    return None if None in found else found


def read_columns(value: Sequence[Any], columns: Sequence[str]) -> list[str] | None:
    """Read one row of several columns: which of them hold a 1."""
    if any(is_blank(item) or item != item for item in value):
        return None
    applies = [ZERO_OR_ONE.get(str(item).strip().lower()) for item in value]
    wrong = [f"{item!r} in {column!r}" for item, column, known in zip(value, columns, applies) if known is None]
    if wrong:
        raise ValueError(f"several label columns hold 0 or 1, not {wrong[0]}.")
    return [column for known, column in zip(applies, columns) if known]


def read_number(value: Any, limits: tuple[float, float]) -> float | None:
    """Read a number to predict."""
    if is_blank(value) or value != value or (isinstance(value, str) and value.strip().lower() in NOT_A_NUMBER):
        return None
    number = float(value)
    if not limits[0] <= number <= limits[1] or math.isinf(number):
        raise ValueError(f"the label {value} must be a finite number from {limits[0]} to {limits[1]}.")
    return number


def find_names(answers: Mapping[str, list[Answer]], model: Labels) -> tuple[str, ...]:
    """Return the names in the training rows; without such rows the model's, or where those are defaults all names."""
    if "train" not in answers and not has_plain_names(model):
        return model.names
    seen = answers.get("train") or chain.from_iterable(answers.values())
    found = set(chain.from_iterable([answer] if isinstance(answer, str) else answer or () for answer in seen))
    try:
        return tuple(sorted(found, key=lambda name: (float(name), name)))
    except ValueError:
        return tuple(sorted(found))


def has_plain_names(labels: Labels) -> bool:
    """Tell whether the names are the defaults of a configuration."""
    return all(name == f"LABEL_{number}" for number, name in enumerate(labels.names))


def agree_with_model(labels: Labels, model: Labels, may_change: bool) -> Labels:
    """Put names into the order that the model has learned, where it knows the same ones, in capitals or not.

    Args:
        labels: What the table asks for.
        model: What the model answers so far.
        may_change: Whether the model is to be trained, and so may get new outputs.

    Raises:
        ValueError: If the model answers something else and is not to be trained.
    """
    order = {name.casefold(): number for number, name in enumerate(model.names)}
    if {name.casefold() for name in labels.names} == set(order) and len(order) == len(labels.names):
        return replace(labels, names=tuple(sorted(labels.names, key=lambda name: order[name.casefold()])))
    same_size = len(labels.names) == len(model.names)
    if not may_change and not (same_size and (has_plain_names(model) or labels.problem_type == REGRESSION)):
        raise ValueError(
            f"The model answers {shorten(model.names)}, the rows ask for {shorten(labels.names)}: take a model that "
            "was fine-tuned on such rows, or give --do_train."
        )
    return labels


def encode(answers: Sequence[Answer], labels: Labels, split: str) -> list[Encoded]:
    """Turn labels into what a model's loss takes.

    Returns:
        For each row the number of its label, a 1.0 or 0.0 for each label, or the number to predict.

    Raises:
        ValueError: If a row has no label, or one that is not among the names.
    """
    missing = [row for row, answer in enumerate(answers) if answer is None]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(answers)} rows for {split} have no label, the first of them row {missing[0]}; "
            "add a label to them or remove them."
        )
    if labels.problem_type == REGRESSION:
        return list(answers)
    positions = {name: position for position, name in enumerate(labels.names)}
    listed = [[answer] if isinstance(answer, str) else answer for answer in answers]
    unknown = sorted(set(chain.from_iterable(listed)) - set(positions))
    if unknown:
        raise ValueError(
            f"The rows for {split} have labels that are not known from training: {shorten(unknown)}. Known are "
            f"{shorten(labels.names)}."
        )
    if labels.problem_type == SINGLE_LABEL:
        return [positions[answer] for answer in answers]
    return [[float(name in answer) for name in labels.names] for answer in answers]


def check_variety(encoded: Sequence[Encoded], split: str) -> None:
    """Check that the labels differ.

    Raises:
        ValueError: If all rows have one label.
    """
    if all(value == encoded[0] for value in encoded):
        raise ValueError(f"All {len(encoded)} rows for {split} have the same label: there is nothing to learn.")


def report_shares(encoded: Sequence[Encoded], labels: Labels, split: str) -> None:
    """Log the share of each label, or mean and standard deviation of the numbers to predict."""
    if labels.problem_type == REGRESSION:
        said = (
            f"{labels.names[0]} from {min(encoded):.4g} to {max(encoded):.4g}, mean {fmean(encoded):.4g}, standard "
            f"deviation {pstdev(encoded):.4g}"
        )
    else:
        shares = label_shares(encoded, labels)
        said = shorten([f"{name} {share:.1%}" for name, share in zip(labels.names, shares)])
    logger.info(f"{len(encoded)} rows for {split}: {said}.")


def label_shares(encoded: Sequence[Encoded], labels: Labels) -> list[float]:
    """Return the share of the rows that have each label."""
    if labels.problem_type == SINGLE_LABEL:
        counts = Counter(encoded)
        return [counts[number] / len(encoded) for number in range(len(labels.names))]
    return [sum(column) / len(encoded) for column in zip(*encoded)]


def best_constant(encoded: Sequence[Encoded], labels: Labels) -> Encoded:
    """Return the best answer that does not depend on the text: the most frequent label, or the mean."""
    if labels.problem_type == REGRESSION:
        return fmean(encoded)
    shares = label_shares(encoded, labels)
    if labels.problem_type == SINGLE_LABEL:
        return shares.index(max(shares))
    return [float(share > 0.5) for share in shares]


def decode(number: Any, labels: Labels) -> str | list[str] | float:
    """Return the prediction for one row as a name, names, or a number.

    Args:
        number: The position of a name, a 0 or 1 for each name, or the number itself.
        labels: What the model answers.
    """
    if labels.problem_type == REGRESSION:
        return float(number)
    if labels.problem_type == SINGLE_LABEL:
        return labels.names[number]
    return [name for name, applies in zip(labels.names, number) if applies]


def shorten(items: Sequence[str]) -> str:
    """List the first items, and how many more there are."""
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + more
