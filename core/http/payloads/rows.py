"""The layout of a flat row: the elements of all inputs of one instance, side by side in row-major order.

A row of CSV has it, and an instance in JSON may: batch prediction makes such instances of the rows of a table.
"""

from __future__ import annotations

from dataclasses import dataclass

from trident.core.config.spec import InputSpec
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.payload import InstanceSignature
from trident.core.inference.tensors import Shape, element_count


@dataclass(frozen=True, slots=True)
class Block:
    """The columns of one input, and the dims of its instances with the variable dim resolved."""

    spec: InputSpec
    columns: slice
    dims: Shape


class RowLayout:
    """The blocks of rows with `column_count` columns: for all inputs, or for all required inputs.

    The number of columns resolves one variable dim in all. Raises InvalidRequest that begins with `row` for a number
    that does not fit.
    """

    def __init__(self, signature: InstanceSignature, column_count: int, row: str) -> None:
        self.column_count = column_count
        inputs = list(signature.inputs.values())
        required = [i for i in inputs if not i.optional]
        for candidates in (inputs, required):
            shapes = _shapes(candidates, column_count)
            if shapes is not None:
                self.blocks = _blocks(candidates, shapes)
                return
        raise InvalidRequest(f"{row}: expected {_expected(inputs)}, got {column_count}")


def _shapes(inputs: list[InputSpec], column_count: int) -> list[Shape] | None:
    """The resolved dims of each input; None if they do not fit `column_count` columns."""
    variable = sum(i.dims.count(-1) for i in inputs)
    if variable > 1:
        raise InvalidRequest(
            "flat rows cannot determine several variable dimensions; send JSON with nested lists by input name, "
            "or arrays of the inputs as application/x-npz"
        )
    if not variable:
        shapes = [i.dims for i in inputs]
        return shapes if sum(map(element_count, shapes)) == column_count else None
    fixed = sum(element_count(i.dims) for i in inputs if -1 not in i.dims)
    (unit,) = (element_count(d for d in i.dims if d != -1) for i in inputs if -1 in i.dims)
    length, rest = divmod(column_count - fixed, unit) if unit else (0, 1)
    if rest or length < 1:
        return None
    return [tuple(length if dim == -1 else dim for dim in i.dims) for i in inputs]


def _blocks(inputs: list[InputSpec], shapes: list[Shape]) -> list[Block]:
    blocks: list[Block] = []
    start = 0
    for spec, dims in zip(inputs, shapes, strict=True):
        end = start + element_count(dims)
        blocks.append(Block(spec, slice(start, end), dims))
        start = end
    return blocks


def _expected(inputs: list[InputSpec]) -> str:
    """The expected number of columns, for an error text: in all, and of each input if there are several."""
    widths = [
        f"{'a multiple of ' if -1 in i.dims else ''}{element_count(d for d in i.dims if d != -1)} for '{i.name}'"
        for i in inputs
    ]
    if any(-1 in i.dims for i in inputs):
        return f"columns: {', '.join(widths)}"
    total = sum(element_count(i.dims) for i in inputs)
    return f"{total} columns" if len(inputs) == 1 else f"{total} columns ({', '.join(widths)})"
