"""The outputs of one or more responses, joined by output; all encoders take them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from core.config.golden.tensor import as_numbers
from core.errors import BackendFailed, InvalidRequest
from core.http.payloads.payload import DecodedPayload
from core.http.slices.long_answer import ELEMENTS
from core.inference.response import Outputs
from core.inference.tensors import BY_NAME, Array, Datatype


@dataclass(frozen=True, slots=True, eq=False)
class OutputColumn:
    """One output. `parts` in order are its rows; there are several parts only if their shapes differ.

    `whole`: the output has no rows, and its one part is the tensor. BF16 is converted to FP32.
    """

    name: str
    datatype: Datatype
    parts: list[Array]
    whole: bool = False

    def array(self, format_name: str) -> Array:
        """The only part. Raises InvalidRequest that names the format, which cannot hold rows of different shapes."""
        if len(self.parts) > 1:
            shapes = f"{list(self.parts[0].shape[1:])} and {list(self.parts[1].shape[1:])}"
            raise InvalidRequest(
                f"output '{self.name}' has rows of different shapes, such as {shapes}, which {format_name} cannot hold",
                hint="ask for application/json or application/jsonlines",
            )
        return self.parts[0]


def row_slices(columns: list[OutputColumn]) -> Iterator[list[OutputColumn]]:
    """The columns in slices of rows, with about ELEMENTS elements each; one slice if rows have different shapes."""
    parts = [column.parts[0] for column in columns]
    count = len(parts[0]) if parts[0].ndim else 1
    elements = sum(part.size for part in parts)
    if elements <= ELEMENTS or not all(len(c.parts) == 1 and c.parts[0].shape[:1] == (count,) for c in columns):
        yield columns
        return
    step = max(1, ELEMENTS * count // elements)
    for start in range(0, count, step):
        rows = slice(start, start + step)
        yield [OutputColumn(c.name, c.datatype, [c.parts[0][rows]], c.whole) for c in columns]


def output_columns(responses: Sequence[Outputs], payload: DecodedPayload) -> list[OutputColumn]:
    """The columns of the responses to the requests of `split_instances`, in their order.

    Raises BackendFailed if the model did not return one row for each instance, or the same outputs every time.
    """
    first = responses[0]
    names = [output.name for output in first]
    by_name = [{output.name: output for output in response} for response in responses]
    if not names or any(outputs.keys() != set(names) for outputs in by_name):
        raise BackendFailed("the model returned no outputs, or different outputs for the parts of one batch")
    columns: list[OutputColumn] = []
    for output in first:
        datatype = BY_NAME[output.datatype]
        arrays = [as_numbers(outputs[output.name].array, datatype) for outputs in by_name]
        if payload.count is None:
            columns.append(OutputColumn(output.name, datatype, arrays[:1], whole=True))
            continue
        if not payload.stacked:
            arrays = [array[np.newaxis] for array in arrays]
        _check_rows(output.name, arrays, payload.count)
        same = len({array.shape[1:] for array in arrays}) == 1
        columns.append(OutputColumn(output.name, datatype, [_joined(arrays)] if same else arrays))
    return columns


def _joined(arrays: list[Array]) -> Array:
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]


def _check_rows(name: str, arrays: list[Array], count: int) -> None:
    rows = sum(len(array) if array.ndim else 0 for array in arrays)
    if rows != count:
        raise BackendFailed(f"output '{name}' has {rows} rows for {count} instances")
