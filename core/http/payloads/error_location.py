"""The location of an error in a body: instances count from 0; lines, rows and columns count from 1."""

from __future__ import annotations

from collections.abc import Callable

from core.errors import InvalidRequest
from core.inference.tensors import Shape, element_count, shape_text

RowName = Callable[[int], str]


def instance_name(index: int) -> str:
    return f"instance {index}"


def line_name(index: int) -> str:
    return f"line {index + 1}"


def csv_row_name(index: int) -> str:
    return f"row {index + 1}"


class ErrorLocation:
    """Locations in the values of one input. `row_name` names its rows; None if there are no rows."""

    def __init__(self, row_name: RowName | None, input_name: str) -> None:
        self.row_name = row_name
        self.input_name = input_name

    def at(self, *indices: int) -> str:
        """The location of the value at `indices` of nested lists; the first index is the row, if there are rows."""
        inner = indices
        text = f"input '{self.input_name}'"
        if self.row_name is not None and indices:
            text, inner = f"{self.row_name(indices[0])}, {text}", indices[1:]
        return f"{text}, element {shape_text(inner)}" if inner else text

    def element(self, index: int, shape: Shape) -> str:
        """The location of the element at position `index` in the row-major order of `shape`."""
        return self.at(*unravelled(index, shape))


class CsvErrorLocation(ErrorLocation):
    """Locations in the columns of one input, which begin at `first_column` (from 0)."""

    def __init__(self, input_name: str, first_column: int, row_name: RowName = csv_row_name) -> None:
        super().__init__(None, input_name)
        self._row_name = row_name
        self._first_column = first_column

    def element(self, index: int, shape: Shape) -> str:
        row, column = divmod(index, element_count(shape[1:]))
        return f"{self._row_name(row)}, column {self._first_column + column + 1} (input '{self.input_name}')"


def unravelled(index: int, shape: Shape) -> tuple[int, ...]:
    """The indices of the element at position `index` in the row-major order of `shape`."""
    indices: list[int] = []
    for dim in reversed(shape):
        index, rest = divmod(index, dim)
        indices.append(rest)
    return tuple(reversed(indices))


def mismatch(location: str, expected: str, got: str) -> InvalidRequest:
    return InvalidRequest(f"{location}: expected {expected}, got {got}")
