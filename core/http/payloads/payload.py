"""A decoded body: arrays by input name, their division into requests, and the layout of flat rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from trident.core.config.golden import as_numbers, is_floating, narrowed, shown
from trident.core.config.problem import nearest
from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.errors import BackendFailed, InvalidRequest
from trident.core.http.body import parse_json
from trident.core.inference.request import InputTensor
from trident.core.inference.response import Outputs
from trident.core.inference.tensors import (
    BY_NAME,
    BYTES,
    Array,
    Buffer,
    Datatype,
    Shape,
    bytes_array,
    element_count,
    shape_text,
)


def expected_text(datatype: Datatype) -> str:
    if datatype is BYTES:
        return 'a string or {"b64": "..."}'
    if is_floating(datatype):
        return f'a number that {datatype.name} can hold, "NaN", "Infinity" or "-Infinity"'
    if datatype.kind == "b":
        return "true or false"
    limits = np.iinfo(datatype.dtype)
    return f"an integer from {limits.min} to {limits.max} ({datatype.name})"


def as_datatype(wide: Array, datatype: Datatype, location: ErrorLocation) -> Array:
    """Convert `wide`, booleans or numbers of any shape, to the datatype; BF16 becomes bit patterns.

    Fractions are rounded to nearest for floating-point datatypes and refused for integers. A finite number that would
    become infinite is refused. Raises InvalidRequest that names the first element that does not fit.
    """
    kind = wide.dtype.kind
    if datatype is BYTES or (kind == "b") != (datatype.kind == "b") or kind not in "biuf":
        raise mismatch(location.at(), f"elements of {datatype.name}", f"an array of {wide.dtype}")
    if kind == "b":
        return wide
    if is_floating(datatype):
        narrow = narrowed(wide, datatype)
        finite = np.isfinite(as_numbers(narrow, datatype))
        if not finite.all():
            overflows = ~finite & np.isfinite(wide)
            if overflows.any():
                raise wrong_element(wide, int(np.argmax(overflows)), datatype, location)
        return narrow
    limits = np.iinfo(datatype.dtype)
    if kind == "f":
        with np.errstate(invalid="ignore"):  # signalling NaNs
            wide = wide.astype(np.float64, copy=False)
            # The upper limit plus one is a power of two, which a double holds exactly; the limit itself may not be.
            fits = (np.trunc(wide) == wide) & (wide >= float(limits.min)) & (wide < float(limits.max + 1))
    elif not wide.size or (int(wide.min()) >= limits.min and int(wide.max()) <= limits.max):
        return wide.astype(datatype.dtype, copy=False)
    else:
        # As objects, because numpy compares int64 with uint64 as doubles.
        exact = wide.astype(object)
        fits = ((exact >= limits.min) & (exact <= limits.max)).astype(bool)
    if not fits.all():
        raise wrong_element(wide, int(np.argmin(fits)), datatype, location)
    return wide.astype(datatype.dtype)


def wrong_element(values: Array, index: int, datatype: Datatype, location: ErrorLocation) -> InvalidRequest:
    """The error for the element that is `index` in the row-major order of `values`."""
    got = shown(values.reshape(-1)[index].item())
    return mismatch(location.element(index, values.shape), expected_text(datatype), got)


def wide_integers(values: list[int]) -> Array | None:
    """A flat array of Python integers as int64 or uint64; None if neither holds all of them."""
    for dtype in (np.int64, np.uint64):
        try:
            return np.array(values, dtype)
        except OverflowError:
            continue
    return None


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

    def __init__(self, input_name: str, first_column: int) -> None:
        super().__init__(None, input_name)
        self._first_column = first_column

    def element(self, index: int, shape: Shape) -> str:
        row, column = divmod(index, element_count(shape[1:]))
        return f"{csv_row_name(row)}, column {self._first_column + column + 1} (input '{self.input_name}')"


def unravelled(index: int, shape: Shape) -> tuple[int, ...]:
    """The indices of the element at position `index` in the row-major order of `shape`."""
    indices: list[int] = []
    for dim in reversed(shape):
        index, rest = divmod(index, dim)
        indices.append(rest)
    return tuple(reversed(indices))


def mismatch(location: str, expected: str, got: str) -> InvalidRequest:
    return InvalidRequest(f"{location}: expected {expected}, got {got}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSignature:
    """`inputs` have the dims of one instance. `stacked`: instances are a batch; otherwise each is a request."""

    inputs: dict[str, InputSpec]
    stacked: bool


def instance_signature(spec: ModelSpec, rank: int | None) -> InstanceSignature:
    """The signature for instances whose first input has `rank` dimensions; None for flat rows.

    A model with `max_batch_size` 0 may still have a batch dimension: the first dimension of every input and output, if
    all are variable. Instances without that dimension are rows of a batch. Instances with it are whole tensors.
    """
    if spec.max_batch_size > 0:
        return InstanceSignature(inputs=spec.inputs, stacked=True)
    first = next(iter(spec.inputs.values()))
    inputs_have = all(len(i.dims) > 1 and i.dims[0] == -1 for i in spec.inputs.values())
    outputs_have = all(o.dims[:1] == (-1,) for o in spec.outputs.values())
    if inputs_have and outputs_have and rank in (None, len(first.dims) - 1):
        rows = {name: replace(i, dims=i.dims[1:], model_dims=None) for name, i in spec.inputs.items()}
        return InstanceSignature(inputs=rows, stacked=True)
    return InstanceSignature(inputs=spec.inputs, stacked=False)


def single_input(spec: ModelSpec, what: str) -> InputSpec:
    """The only input of the model. Raises InvalidRequest whose text says that `what` needs such a model."""
    if len(spec.inputs) != 1:
        raise InvalidRequest(f"{what} needs a model with one input, '{spec.name}' has {_listed(spec.inputs)}")
    return next(iter(spec.inputs.values()))


def check_names(given: Iterable[str], spec: ModelSpec, location: str) -> None:
    """Raises InvalidRequest for a name that is not an input of the model, and for a required input without a value."""
    names = dict.fromkeys(given)
    for name in names:
        if name not in spec.inputs:
            raise InvalidRequest(
                f"{location}: '{name[:60]}' is not an input of model '{spec.name}', "
                f"whose inputs are {_listed(spec.inputs)}",
                hint=nearest(name[:60], spec.inputs),
            )
    for name, expected in spec.inputs.items():
        if name not in names and not expected.optional:
            raise InvalidRequest(
                f"{location}: input '{name}' is missing; the inputs of model '{spec.name}' are {_listed(spec.inputs)}"
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


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
        rows = sum(len(array) if array.ndim else 0 for array in arrays)
        if rows != payload.count:
            raise BackendFailed(f"output '{output.name}' has {rows} rows for {payload.count} instances")
        same = len({array.shape[1:] for array in arrays}) == 1
        columns.append(
            OutputColumn(
                output.name, datatype, [np.concatenate(arrays) if len(arrays) > 1 else arrays[0]] if same else arrays
            )
        )
    return columns


# Source: docs/spec/vertex.md section D points 1 to 4; docs/spec/sagemaker.md section C "Auto-wrapping".


_FIRST = re.compile(rb'\s*(?:(\[)|\{\s*("instances"\s*:)?)')
_INSTANCES = re.compile(rb'"instances"')
_INPUTS_KEY = re.compile(rb'"inputs"')
# The list has objects or is empty, or the text ends.
V2_INPUTS = re.compile(rb'"inputs"\s*:\s*\[\s*(?:[{\]]|\Z)')
_COLUMNS = re.compile(rb'"inputs"\s*:\s*(?:\{|(\[)\s*[^\s{\]])')


class DocumentForm(Enum):
    """The form of a document at its outermost level. The value describes it."""

    INSTANCES = "an object with 'instances': one value or object for each"
    BARE = "an array of instances, or one instance that is an array"
    COLUMNS = "an object with 'inputs' that is an object, a whole tensor by input name, or the tensor of the only input"
    V2 = "anything else: the v2 protocol's reader says what is wrong with it"


def document_form(body: Buffer) -> DocumentForm:
    """The form of the document, from a search of its text. `instances` takes precedence over `inputs`."""
    first = _FIRST.match(body)
    if not first:
        return DocumentForm.V2
    if first[1]:
        return DocumentForm.BARE
    if first[2]:
        return DocumentForm.INSTANCES
    if _INSTANCES.search(body) and (not _INPUTS_KEY.search(body) or "instances" in _keys(body)):
        return DocumentForm.INSTANCES
    columns = _COLUMNS.search(body)
    if not columns or (columns[1] and V2_INPUTS.search(body)):
        return DocumentForm.V2
    return DocumentForm.COLUMNS


def _keys(body: Buffer) -> Any:
    document = parse_json(body)
    return document.keys() if type(document) is dict else ()


DEFAULT_MAX_SIZE = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRules:
    """An adapter's rules. `max_input_size` is the limit of compressed content in bytes after inflation.

    `ignored_fields` are members of object instances that are not inputs, such as a key, unless an input has that name.
    """

    ignored_fields: frozenset[str] = frozenset()
    max_input_size: int = DEFAULT_MAX_SIZE


@dataclass(slots=True, kw_only=True, eq=False)
class DecodedPayload:
    """`arrays` are C-contiguous, of their datatypes' numpy types, and have `count` rows each.

    `stacked`: the rows are a batch. Otherwise each row is a separate request; if rows have different shapes, `rows`
    has them, without a batch dimension, and `arrays` is empty. `count` None: the arrays are whole tensors of one
    request. Only JSON documents have `form` and `parameters`.
    """

    arrays: dict[str, Array]
    count: int | None
    stacked: bool
    rows: list[dict[str, Array]] | None = None
    form: DocumentForm | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


def most_rows(spec: ModelSpec) -> int:
    """The most rows in one request to a model that batches: a request of a sequence has one."""
    return 1 if spec.sequence is not None else spec.max_batch_size


def split_instances(payload: DecodedPayload, spec: ModelSpec) -> list[list[InputTensor]]:
    """The inputs of each request of the payload, in order, as views of its arrays.

    A batch is one request, or several of at most `most_rows` rows. Of a model that does not batch, each instance
    is one request (docs/spec/vertex.md section D point 3).
    """
    count = payload.count
    if payload.rows is not None:
        return [[_tensor(spec, name, array) for name, array in row.items()] for row in payload.rows]
    if count is None or (payload.stacked and (spec.max_batch_size == 0 or count <= most_rows(spec))):
        return [[_tensor(spec, name, array) for name, array in payload.arrays.items()]]
    if payload.stacked:
        size = most_rows(spec)
        return [
            [_tensor(spec, name, array[start : start + size]) for name, array in payload.arrays.items()]
            for start in range(0, count, size)
        ]
    return [
        # A slice, because an index into a flat array gives a number.
        [_tensor(spec, name, array[i : i + 1].reshape(array.shape[1:])) for name, array in payload.arrays.items()]
        for i in range(count)
    ]


def _tensor(spec: ModelSpec, name: str, array: Array) -> InputTensor:
    return InputTensor(name, spec.inputs[name].datatype.name, array.shape, array)


def decode_arrays(arrays: dict[str, Array], spec: ModelSpec) -> DecodedPayload:
    """Arrays of shape `[N, *dims]` are a batch, or N instances of a model that does not batch.

    For a model that does not batch all arrays may also have the shape `dims`: then they are one request.
    Raises InvalidRequest that names the input, its shape or its element.
    """
    check_names(arrays, spec, "the arrays")
    whole = spec.max_batch_size == 0 and all(a.ndim == len(spec.inputs[name].dims) for name, a in arrays.items())
    typed: dict[str, Array] = {}
    for name, array in arrays.items():
        expected = spec.inputs[name]
        wanted = expected.dims if whole else (-1, *expected.dims)
        if not fits_dims(array.shape, wanted):
            also = f" or {shape_text(expected.dims)}" if spec.max_batch_size == 0 and not whole else ""
            raise mismatch(f"input '{name}'", f"shape {shape_text(wanted)}{also}", shape_text(array.shape))
        location = ErrorLocation(None, name)
        if array.dtype.kind not in "SU":
            typed[name] = np.ascontiguousarray(as_datatype(array, expected.datatype, location)).reshape(array.shape)
        elif expected.datatype is not BYTES:
            raise mismatch(location.at(), f"elements of {expected.datatype.name}", "strings")
        else:
            elements = array.reshape(-1).tolist()
            if array.dtype.kind == "U":
                elements = [element.encode() for element in elements]
            typed[name] = bytes_array(elements, array.shape)
    if whole:
        return DecodedPayload(arrays=typed, count=None, stacked=False)
    count = common_count(typed)
    for name, array in typed.items():
        if not array.size:  # no content backs the number of rows, and each row would be a request
            raise InvalidRequest(f"input '{name}' has {count} rows without an element: expected at least one in each")
    return DecodedPayload(arrays=typed, count=count, stacked=spec.max_batch_size > 0)


def fits_dims(shape: Shape, dims: Shape) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, length) for length, dim in zip(shape, dims, strict=True))


def common_count(arrays: dict[str, Array]) -> int:
    """The number of rows of all arrays. Raises InvalidRequest if they differ, or if there are no rows."""
    (first, count), *rest = [(name, len(array)) for name, array in arrays.items()]
    for name, length in rest:
        if length != count:
            raise InvalidRequest(f"input '{name}' has {length} rows, input '{first}' has {count}: expected the same")
    if not count:
        raise InvalidRequest(f"input '{first}' has no rows: expected at least one")
    return count


# --- flat rows: the elements of all inputs of one instance, side by side in row-major order
#
# A row of CSV has this layout, and an instance in JSON may: batch prediction makes such instances of the rows of a
# table.


@dataclass(frozen=True, slots=True)
class Block:
    """The columns of one input, and the dims of its instances with the variable dim resolved."""

    spec: InputSpec
    columns: slice
    dims: Shape


def row_layout(signature: InstanceSignature, column_count: int, row: str) -> list[Block]:
    """The blocks of rows with `column_count` columns: for all inputs, or for all required inputs.

    The number of columns resolves one variable dim in all. Raises InvalidRequest that begins with `row` for a number
    that does not fit.
    """
    inputs = list(signature.inputs.values())
    for candidates in (inputs, [i for i in inputs if not i.optional]):
        shapes = _shapes(candidates, column_count)
        if shapes is not None:
            blocks: list[Block] = []
            start = 0
            for spec, dims in zip(candidates, shapes, strict=True):
                end = start + element_count(dims)
                blocks.append(Block(spec, slice(start, end), dims))
                start = end
            return blocks
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
