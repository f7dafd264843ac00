"""The tables that the server prints at startup, with the borders of tritonserver's tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from core.observability import console
from core.observability.log_text import escaped

_NARROWEST = 6


class ModelRow(NamedTuple):
    """One version of a model at startup; unknown fields are empty."""

    model: str
    version: str
    state: str
    device: str = ""
    execution_provider: str = ""
    reason: str = ""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], width: int | None = None) -> str:
    """A text table, without a final line break, of at most `width` columns; None: those of the terminal.

    Long cells are wrapped, at blanks where there are some, and keep their line breaks. Every line begins with `|` or
    `+` and contains no control character, whatever is in the cells.
    """
    cells = [[_lines(cell) for cell in row] for row in (headings, *rows)]
    natural = [max(len(line) for row in cells for line in row[column]) for column in range(len(headings))]
    widths = _fitting(natural, (console.width() if width is None else width) - 3 * len(headings) - 1)
    wrapped = [[_wrapped(lines, each) for lines, each in zip(row, widths, strict=True)] for row in cells]
    # A cell that is wrapped at blanks may need less than its share.
    widths = [max(len(line) for row in wrapped for line in row[column]) for column in range(len(headings))]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    head, *body = (_row(row, widths) for row in wrapped)
    return "\n".join([border, *head, border, *(line for row in body for line in row), border])


def _fitting(widths: Sequence[int], room: int) -> list[int]:
    """The widths of columns that have `room` together: the widest give way, as far as a column can be read."""
    fitting = list(widths)
    while sum(fitting) > room and max(fitting) > _NARROWEST:
        fitting[fitting.index(max(fitting))] -= 1
    return fitting


def _wrapped(lines: Sequence[str], width: int) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]]


def models_table(rows: Iterable[ModelRow], width: int | None = None) -> str:
    """The models, and below them why some do not serve: their reasons would be the widest column."""
    shown = list(rows)
    width = console.width() if width is None else width
    lines = [table(("Model", "Version", "State", "Device", "Execution provider"), [row[:5] for row in shown], width)]
    for row in shown:
        for index, line in enumerate(_lines(row.reason) if row.reason else ()):
            start = f"| {escaped(row.model)} {row.version}".rstrip() + ": " if not index else "|   "
            lines += textwrap.wrap(line, width, initial_indent=start, subsequent_indent="|   ", break_on_hyphens=False)
    return "\n".join(lines)


def options_table(rows: Iterable[Sequence[str]]) -> str:
    """The table of `ServerSettings.describe()`."""
    return table(("Option", "Value", "From"), rows)


def addresses_table(rows: Iterable[Sequence[str]]) -> str:
    """The table of services and their addresses."""
    return table(("Service", "Address"), rows)


def _lines(cell: str) -> list[str]:
    return [escaped(line) for line in cell.rstrip("\n").split("\n")]


def _row(cells: Sequence[list[str]], widths: Sequence[int]) -> list[str]:
    height = max(len(lines) for lines in cells)
    padded = [lines + [""] * (height - len(lines)) for lines in cells]
    return [
        "| " + " | ".join(lines[at].ljust(width) for lines, width in zip(padded, widths, strict=True)) + " |"
        for at in range(height)
    ]
