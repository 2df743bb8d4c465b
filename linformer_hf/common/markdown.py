"""Tables in Markdown, which also read well as plain text, and numbers in them."""

from collections.abc import Iterable, Sequence


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a table in Markdown, with columns of equal width.

    Args:
        header: The title of each column.
        rows: The cells of each row, as many as the header has. A `|` in a cell is escaped.

    Returns:
        The lines, without a line break at the end.

    Raises:
        ValueError: If a row has more or fewer cells than the header.
    """
    lines = [[cell.replace("|", r"\|") for cell in line] for line in (header, *rows)]
    for line in lines[1:]:
        if len(line) != len(header):
            raise ValueError(f"A row of the table has {len(line)} cells, {line}, but the header has {len(header)}.")
    widths = [max(3, *map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines)


def written(value: float, digits: int = 4) -> str:
    """Write a number with this many digits, and at least all those before the point."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"
