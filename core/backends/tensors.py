"""The tensors of a batch: inputs gathered from its requests, results split among them.

The arrays of a single request are passed on without a copy. Those of several requests are copied once. Large arrays are
copied into buffers that the next batch uses again: this avoids the page faults of new memory, and the buffers can be
pinned for a GPU. Tensors in shared memory are read straight into them; for a GPU also those of a single request. Small
inputs that arrived as one run of bytes are joined as bytes: a tenth of the CPU of small models.

Large outputs are views of the results. Small ones are copied into one run of bytes for each request.
Source: docs/spec/onnxruntime-backend.md section 5.5.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, Final

import numpy as np

from trident.core.config.resolve import pad_value
from trident.core.config.schema import BatchInput, ModelConfig, datatype_of
from trident.core.config.spec import BucketSpec, ModelSpec, OutputSpec
from trident.core.errors import BackendFailed, ConfigInvalid
from trident.core.inference.request import InferenceRequest, InputTensor, PackedInputs
from trident.core.inference.response import Outputs, OutputTensor, PackedOutputs, RegionInput
from trident.core.inference.tensors import (
    BY_NAME,
    BYTES,
    Array,
    Shape,
    TensorLayout,
    element_count,
    layout_of,
    shape_text,
)
from trident.core.memo import Memo
from trident.core.observability.statistics import BucketUse

# --- inputs


@dataclass(frozen=True, slots=True)
class BatchInputSpec:
    """One batch input. Its tensor is made from the shapes of the input `source` and fed to all of `target_names`."""

    kind: int
    source: str
    target_names: tuple[str, ...]
    dtype: np.dtype[Any]

    def array(self, requests: Sequence[InferenceRequest]) -> Array:
        """The tensor for a batch of R requests: R or R+1 counts, [largest count], or one row for each item."""
        shapes = [input_named(request, self.source).array.shape for request in requests]
        return np.asarray(_values(self.kind, shapes), self.dtype)


def batch_inputs(config: ModelConfig, model_name: str) -> tuple[BatchInputSpec, ...]:
    """The batch inputs of a validated configuration. Raises ConfigInvalid for an unknown kind."""
    specs = []
    for entry in config.batch_input:
        datatype = datatype_of(entry.data_type)
        if entry.kind not in BatchInput.Kind.values() or datatype is None:
            raise ConfigInvalid(f"batch input of kind {entry.kind} is not supported for {model_name}")
        specs.append(BatchInputSpec(entry.kind, entry.source_input[0], tuple(entry.target_name), datatype.dtype))
    return tuple(specs)


def _values(kind: int, shapes: Sequence[Shape]) -> Array | list[int]:
    counts = [element_count(shape) for shape in shapes]
    if kind == BatchInput.BATCH_ELEMENT_COUNT:
        return counts
    if kind == BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT:
        return list(accumulate(counts))
    if kind == BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO:
        return list(accumulate(counts, initial=0))
    if kind == BatchInput.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE:
        return np.zeros(max(counts))
    rows = np.array([shape[1:] for shape in shapes for _ in range(shape[0])])
    return rows if kind == BatchInput.BATCH_ITEM_SHAPE else rows.reshape(-1)


def input_named(request: InferenceRequest, name: str) -> InputTensor:
    """Raises BackendFailed if the request has no such input; then it should not be in this batch."""
    for tensor in request.inputs:
        if tensor.name == name:
            return tensor
    raise BackendFailed(f"a request in the batch has no input '{name}'", model=request.model_name)


# Called with an input's name and its new buffer, or None when the input has no buffer any more.
OnBuffer = Callable[[str, Array | None], None]


class StagingBuffer:
    """Contiguous memory of one datatype, as large as the largest batch so far. One thread at a time."""

    def __init__(self, name: str, dtype: np.dtype[Any], on_buffer: OnBuffer | None = None) -> None:
        self._name = name
        self._flat: Array = np.empty(0, dtype)
        self._on_buffer = on_buffer

    def view(self, shape: Shape) -> Array:
        """The beginning of the buffer as an array of `shape`. All views share the memory."""
        count = prod(shape)
        if count > self._flat.size:
            flat = np.empty(count, self._flat.dtype)
            self.close()
            self._flat = flat
            if self._on_buffer is not None:
                self._on_buffer(self._name, flat)
        view: Array = self._flat[:count].reshape(shape)
        return view

    def close(self) -> None:
        if self._on_buffer is not None and self._flat.size:
            self._on_buffer(self._name, None)
        self._flat = np.empty(0, self._flat.dtype)


_JOINED_BYTES_AT_MOST: Final = 64 * 1024


class Gatherer:
    """Makes the feed of one execution: an array for each input of the graph. One per instance; its thread only.

    `scalars` are the inputs without dimensions in the graph; their arrays get no dimensions either.
    """

    def __init__(
        self,
        spec: ModelSpec,
        scalars: frozenset[str] = frozenset(),
        batch_inputs: Sequence[BatchInputSpec] = (),
        on_buffer: OnBuffer | None = None,
    ) -> None:
        self._spec = spec
        self._scalars = scalars
        self._batch_inputs = tuple(batch_inputs)
        self._ragged = frozenset(name for name, i in spec.inputs.items() if i.allow_ragged_batch)
        # All requests of a batch have the same values of these.
        self._shapes = frozenset(name for name, i in spec.inputs.items() if i.is_shape_tensor)
        self._buffers = {
            name: StagingBuffer(name, i.datatype.dtype, on_buffer)
            for name, i in spec.inputs.items()
            # An object array that is kept for the next batch would keep the elements of the last one alive.
            if i.datatype is not BYTES
        }
        self._pins = on_buffer is not None
        self._reshaped = frozenset(name for name, i in spec.inputs.items() if i.model_dims is not None)
        # Tensors in regions that are read straight into the buffers.
        self._reads = frozenset(self._buffers) - self._reshaped - self._ragged - self._shapes - self._scalars
        self._as_they_are = not (self._scalars or self._ragged or self._batch_inputs or self._shapes)
        self._joins_blocks = (
            self._as_they_are
            and on_buffer is None
            and all(i.datatype is not BYTES and i.model_dims is None for i in spec.inputs.values())
        )

    def gather(self, requests: Sequence[InferenceRequest], total: int) -> dict[str, Array]:
        """The feed for `requests` with `total` items, concatenated in order along the batch dimension.

        The arrays are valid until the next call. The feed has the inputs of the first request, so an optional input
        that the first one leaves out is left out. Raises BackendFailed if another request lacks one of these inputs.
        """
        if len(requests) == 1:
            feed = {tensor.name: self._alone(tensor) for tensor in requests[0].inputs}
            if self._as_they_are:
                return feed
        elif self._joins_blocks and (packed := _packed_alike(requests)) is not None:
            layout = packed[0].layout
            rows = np.frombuffer(b"".join([inputs.content for inputs in packed]), np.uint8)
            rows = rows.reshape(len(packed), layout.size)
            return {
                name: np.ndarray(
                    (total, *shape[1:]), BY_NAME[datatype].dtype, np.ascontiguousarray(rows[:, start:end]).data
                )
                for name, datatype, shape, start, end in layout.entries
            }
        else:
            feed = {
                tensor.name: self._together(tensor.name, tensors_of(requests, position, tensor.name), total)
                for position, tensor in enumerate(requests[0].inputs)
            }
        for batch_input in self._batch_inputs:
            array = batch_input.array(requests)
            for name in batch_input.target_names:
                feed[name] = array
        return feed

    def close(self) -> None:
        for buffer in self._buffers.values():
            buffer.close()

    def _alone(self, tensor: InputTensor) -> Array:
        name = tensor.name
        if self._pins and type(tensor) is RegionInput and name in self._reads:
            return self._read(name, [tensor], tensor.shape)
        array = tensor.array
        if name in self._scalars:
            return array.reshape(())
        return array.reshape(-1) if name in self._ragged else array

    def _together(self, name: str, tensors: list[InputTensor], total: int) -> Array:
        if type(tensors[0]) is RegionInput and name in self._reads:
            return self._read(name, tensors, (total, *tensors[0].shape[1:]))
        arrays = [tensor.array for tensor in tensors]
        first = arrays[0]
        if name in self._shapes:
            return first
        if name in self._ragged:
            arrays = [array.reshape(-1) for array in arrays]
            shape: Shape = (sum(array.size for array in arrays),)
        else:
            shape = (total, *first.shape[1:])
        buffer = self._buffers.get(name)
        try:
            return np.concatenate(arrays, out=buffer.view(shape) if buffer is not None else None)
        except ValueError as exc:
            raise self._misfit(name, exc) from exc

    def _read(self, name: str, tensors: list[InputTensor], shape: Shape) -> Array:
        array = self._buffers[name].view(shape)
        if len(tensors) == 1:
            tensors[0].copy_to(array)
            return array
        end = 0
        for tensor in tensors:
            start, end = end, end + tensor.shape[0]
            try:
                tensor.copy_to(array[start:end])
            except ValueError as exc:
                raise self._misfit(name, exc) from exc
        return array

    def _misfit(self, name: str, exc: ValueError) -> BackendFailed:
        model = self._spec.name
        return BackendFailed(f"the inputs '{name}' of a batch for '{model}' do not fit together: {exc}", model=model)


def _packed_alike(requests: Sequence[InferenceRequest]) -> list[PackedInputs] | None:
    """The inputs of all requests, if they are small and all packed in the same layout; otherwise None."""
    packed = [request.inputs for request in requests if type(request.inputs) is PackedInputs]
    if len(packed) < len(requests) or packed[0].layout.size * len(packed) > _JOINED_BYTES_AT_MOST:
        return None
    return packed if len({inputs.layout for inputs in packed}) == 1 else None


def tensors_of(requests: Sequence[InferenceRequest], position: int, name: str) -> list[InputTensor]:
    """The inputs `name`, which are nearly always at the same `position` in every request of a batch."""
    tensors = [request.inputs[position] for request in requests if len(request.inputs) > position]
    tensors = [tensor for tensor in tensors if tensor.name == name]
    return tensors if len(tensors) == len(requests) else [input_named(request, name) for request in requests]


def batch_total(batch_sizes: Sequence[int], max_batch_size: int, model_name: str) -> int:
    """The number of items in a batch. Raises BackendFailed, with Triton's text, if the model takes fewer."""
    total = sum(batch_sizes)
    if total != 1 and total > max_batch_size:
        raise BackendFailed(f"batch size {total} for '{model_name}', max allowed is {max_batch_size}", model=model_name)
    return total


# Rows are added as copies of the last real row, because that is a row which the model is known to take; lengths are
# filled up with the pad value of their input. Source: docs/ragged-batching.md.


class SteadySizes:
    """Keeps the batch size of a session that needs `change_s` seconds for another one. Any thread.

    `seconds` is how long an execution of each size takes, the size in use first. A larger batch runs in several
    executions, a smaller one is padded. The size changes, for all instances of the session, when the batches since then
    would have taken less time with another size, by as much as the change takes.
    """

    def __init__(self, seconds: Mapping[int, float], change_s: float) -> None:
        self._seconds = seconds
        self._change_s = change_s
        self._lock = threading.Lock()
        self._size = next(iter(seconds))
        # The elements that another size would have saved; negative sums are forgotten.
        self._saved = dict.fromkeys(seconds, 0.0)

    def size(self, items: int) -> int:
        """The size for a batch of so many items."""
        with self._lock:
            taken = self._taken(self._size, items)
            for size in self._saved:
                self._saved[size] = max(0.0, self._saved[size] + taken - self._taken(size, items))
            best = max(self._saved, key=self._saved.__getitem__)
            if self._saved[best] > self._change_s:
                self._size = best
                self._saved = dict.fromkeys(self._saved, 0.0)
            return self._size

    def _taken(self, size: int, items: int) -> float:
        return -(-items // size) * self._seconds[size]


class PaddingGatherer(Gatherer):
    """A Gatherer for a model with `buckets`, or with `steady` sizes.

    `rows`, `size` and `use` are those of the latest feed: its rows, how many of them are executed at once, and its
    bucket with the padding.
    """

    def __init__(
        self,
        spec: ModelSpec,
        buckets: BucketSpec,
        scalars: frozenset[str] = frozenset(),
        batch_inputs: Sequence[BatchInputSpec] = (),
        on_buffer: OnBuffer | None = None,
        steady: SteadySizes | None = None,
    ) -> None:
        super().__init__(spec, scalars, batch_inputs, on_buffer)
        self.use = BucketUse(0, 0, 0, 0)
        self.rows = self.size = 0
        self._steady = steady
        self._pads_rows = steady is not None or bool(buckets.batch_sizes)
        self._buckets = buckets
        self._batching = spec.max_batch_size > 0
        self._pad_values = {
            name: pad_value(spec.inputs[name].datatype, buckets.pad_values.get(name, "")) for name in buckets.axes
        }

    def gather(self, requests: Sequence[InferenceRequest], total: int) -> dict[str, Array]:
        """Gather as Gatherer does, padded to the bucket of the batch."""
        buckets = self._buckets
        self.size = buckets.rows(total) if self._steady is None else self._steady.size(total)
        self.rows = rows = -(-total // self.size) * self.size
        length = buckets.length(max(lengths_of(requests, buckets))) if buckets.lengths else 0
        feed: dict[str, Array] = {}
        elements = made = 0
        for position, tensor in enumerate(requests[0].inputs):
            name = tensor.name
            tensors = tensors_of(requests, position, name)
            feed[name] = array = self._padded(name, tensors, rows, length)
            elements += sum([element_count(each.shape) for each in tensors])
            made += array.size
        for batch_input in self._batch_inputs:
            by_row = batch_input.array(requests)
            if rows > total:
                table = by_row.reshape(total, -1)
                table = np.concatenate([table, np.repeat(table[-1:], rows - total, axis=0)])
                by_row = table.reshape(rows, *by_row.shape[1:]) if by_row.ndim > 1 else table.reshape(-1)
            for name in batch_input.target_names:
                feed[name] = by_row
        self.use = BucketUse(self.size if self._pads_rows else 0, length, elements, made - elements)
        return feed

    def _padded(self, name: str, tensors: list[InputTensor], rows: int, length: int) -> Array:
        first = tensors[0]
        if name in self._scalars:
            return first.array.reshape(())
        axis = self._buckets.axes.get(name)
        given = first.array.shape if name in self._reshaped else first.shape
        shape = list(given)
        if self._batching:
            shape[0] = rows
        if axis is not None:
            shape[axis] = length
        if len(tensors) == 1 and list(given) == shape:
            return self._alone(first)
        buffer = self._buffers.get(name)
        padded = np.empty(shape, object) if buffer is None else buffer.view(tuple(shape))
        end = 0
        for tensor in tensors:
            start, end = end, end + tensor.shape[0]
            part = padded[start:end] if self._batching else padded
            try:
                if axis is None:
                    tensor.copy_to(part)
                else:
                    array = tensor.array
                    part[_along(axis, slice(array.shape[axis]))] = array
                    part[_along(axis, slice(array.shape[axis], None))] = self._pad_values[name]
            except ValueError as exc:
                raise self._misfit(name, exc) from exc
        if self._batching and end < rows:
            padded[end:] = padded[end - 1]
        return padded


def lengths_of(requests: Sequence[InferenceRequest], buckets: BucketSpec) -> list[int]:
    """The length of each request: that of its longest padded input, 0 if it has none of them."""
    axes = buckets.axes
    return [
        max([t.array.shape[axes[t.name]] for t in request.inputs if t.name in axes], default=0) for request in requests
    ]


def _along(axis: int, part: slice) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, part)


# --- outputs


def client_shape(output: OutputSpec, shape: Shape, batching: bool) -> Shape:
    """The shape for an output that the model gave in `shape`: the configured reshape, or the dims without any.

    Variable dimensions are matched by position. A shape that contradicts the configuration stays.
    """
    if output.model_dims is None:
        return shape
    batch, dims = (shape[:1], shape[1:]) if batching else ((), shape)
    if len(dims) != len(output.model_dims):
        return shape
    variable = iter([dim for dim, configured in zip(dims, output.model_dims, strict=True) if configured == -1])
    wanted = (*batch, *(next(variable, 1) if dim == -1 else dim for dim in output.dims))
    return wanted if element_count(wanted) == element_count(shape) else shape


_PACKED_BYTES_AT_MOST: Final = 64 * 1024
_NOT_BATCHED: Final = "the model does not give each item a row: set max_batch_size to 0 in its configuration"
_SCATTER: Final = "it follows a ragged input: name it in a batch_output with that input as its source_input"

# The requested outputs, the numbers of requests and items, and the shapes of the results.
_LayoutKey = tuple[object, ...]


class Splitter:
    """Splits the results of one model. Any thread.

    `scattered` maps each output that is split by the shapes of an input to the name of that input. Each request gets
    the output's dimensions, and for those that are variable the sizes that its input has at the same positions.
    """

    def __init__(self, spec: ModelSpec, scattered: Mapping[str, str]) -> None:
        self._spec = spec
        self._batching = spec.max_batch_size > 0
        self._scattered = scattered
        self._outputs = [(output, output.name, output.datatype.name) for output in spec.outputs.values()]
        self._plain = not scattered and all(output.model_dims is None for output in spec.outputs.values())
        self._layouts: Memo[_LayoutKey, TensorLayout | None] = Memo(256)
        self._packs = self._plain and all(output.datatype is not BYTES for output in spec.outputs.values())

    def split(
        self, requests: Sequence[InferenceRequest], batch_sizes: Sequence[int], results: Sequence[Array], total: int
    ) -> Sequence[Outputs]:
        """The requested outputs of each request, in the order of the configuration.

        `results` has one array for each configured output, in that order, with `total` items, the sum of
        `batch_sizes`. Raises BackendFailed for a result that cannot be split.
        """
        if self._packs and not requests[0].wants_arrays and len({request.outputs for request in requests}) == 1:
            packed = self._packed(requests, results, total)
            if packed is not None:
                return packed
        if len(requests) == 1:
            return [self._of_one(requests[0], results, total)]
        columns: list[list[OutputTensor]] = []
        for (output, name, datatype), result in zip(self._outputs, results, strict=True):
            pieces = self._cut(output, result, requests, batch_sizes, total)
            columns.append([OutputTensor(name, datatype, piece.shape, piece) for piece in pieces])
        answers: list[list[OutputTensor]] = []
        for request, row in zip(requests, zip(*columns, strict=True), strict=True):
            wanted = request.outputs
            answers.append([tensor for tensor in row if tensor.name in wanted] if wanted else list(row))
        return answers

    def _packed(
        self, requests: Sequence[InferenceRequest], results: Sequence[Array], total: int
    ) -> list[PackedOutputs] | None:
        """The outputs of one request, or of requests with one item each, as runs of bytes; None if they are too large.

        One copy takes less time than an array, and later its bytes, for each output of each request.
        """
        count = len(requests)
        if count > 1 and count != total:
            return None
        wanted = requests[0].outputs
        key = (wanted, count, total, *[result.shape for result in results])
        try:
            layout = self._layouts[key]
        except KeyError:
            layout = self._layout(wanted, results, count, total)
            self._layouts[key] = layout
        if layout is None:
            return None
        if wanted:
            results = [result for (_, name, _), result in zip(self._outputs, results, strict=True) if name in wanted]
        if count == 1:
            return [PackedOutputs(layout, memoryview(b"".join([result.tobytes() for result in results])))]
        columns = [result.reshape(count, -1).view(np.uint8) for result in results]
        block = np.concatenate(columns, axis=1) if len(columns) > 1 else columns[0]
        content, size = block.reshape(-1).data, layout.size
        return [PackedOutputs(layout, content[start : start + size]) for start in range(0, size * count, size)]

    def _layout(self, wanted: tuple[str, ...], results: Sequence[Array], count: int, total: int) -> TensorLayout | None:
        """The layout of the `wanted` outputs of one of `count` requests; None if they must not be packed."""
        described: list[tuple[str, str, Shape, int]] = []
        for (_, name, datatype), result in zip(self._outputs, results, strict=True):
            shape = result.shape
            if not shape or (self._batching and shape[0] != total) or (count > 1 and not result.size):
                return None
            if not wanted or name in wanted:
                described.append((name, datatype, shape if count == 1 else (1, *shape[1:]), result.nbytes // count))
        layout = layout_of(described)
        return layout if 0 < layout.size * count <= _PACKED_BYTES_AT_MOST else None

    def _of_one(self, request: InferenceRequest, results: Sequence[Array], total: int) -> list[OutputTensor]:
        wanted = request.outputs
        answer: list[OutputTensor] = []
        for (output, name, datatype), result in zip(self._outputs, results, strict=True):
            if name in self._scattered:
                array = self._scatter(output, result, (request,))[0]
            else:
                array = self.checked(output, result, total)
            if not wanted or name in wanted:
                answer.append(OutputTensor(name, datatype, array.shape, array))
        return answer

    def checked(self, output: OutputSpec, result: Array, total: int) -> Array:
        """A result of a batch with one request, which gets it whole. Raises BackendFailed for a wrong batch."""
        shape = result.shape
        if self._batching and (not shape or shape[0] != total):
            raise self._wrong_batch(output.name, shape, total)
        return result if self._plain and shape else self._in_client_shape(output, result)

    def _cut(
        self,
        output: OutputSpec,
        result: Array,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        total: int,
    ) -> Iterable[Array]:
        """One piece of `result` for each request."""
        if output.name in self._scattered:
            return self._scatter(output, result, requests)
        shape = result.shape
        if not shape or shape[0] != total:
            raise self._wrong_batch(output.name, shape, total)
        if output.model_dims is not None:
            result = self._in_client_shape(output, result)
        if total == len(requests):
            # Iterating over the rows takes half the time of slicing each.
            return result[:, None]
        pieces: list[Array] = []
        start = 0
        for size in batch_sizes:
            end = start + size
            pieces.append(result[start:end])
            start = end
        return pieces

    def _scatter(self, output: OutputSpec, result: Array, requests: Sequence[InferenceRequest]) -> list[Array]:
        source = self._scattered[output.name]
        dims = output.dims if output.model_dims is None else output.model_dims
        if self._batching:
            dims = (-1, *dims)
        flat = result.reshape(-1)
        pieces: list[Array] = []
        start = 0
        for request in requests:
            given = input_named(request, source).array.shape
            shape: Shape = tuple([given[at] if dim == -1 else dim for at, dim in enumerate(dims)])
            end = start + element_count(shape)
            if end > flat.size:
                raise BackendFailed(
                    f"output '{output.name}' of '{self._spec.name}' has {flat.size} elements, too few to give each "
                    f"request the variable dimensions of its input '{source}'",
                    model=self._spec.name,
                )
            pieces.append(self._in_client_shape(output, flat[start:end].reshape(shape)))
            start = end
        return pieces

    def _in_client_shape(self, output: OutputSpec, result: Array) -> Array:
        """`result` in the shape that the client sees: the configured reshape, or the dims for a result without any."""
        if not result.shape:
            return result.reshape(tuple(1 for _ in output.dims))
        shape = client_shape(output, result.shape, self._batching)
        return result if shape == result.shape else result.reshape(shape)

    def _wrong_batch(self, name: str, shape: Shape, total: int) -> BackendFailed:
        is_ragged = any(tensor.allow_ragged_batch for tensor in self._spec.inputs.values())
        return BackendFailed(
            f"output '{name}' of '{self._spec.name}' has shape {shape_text(shape)} for a batch of {total}, so that it "
            f"cannot be divided among the requests: {_SCATTER if is_ragged else _NOT_BATCHED}",
            model=self._spec.name,
        )


def scattered_outputs(config: ModelConfig) -> dict[str, str]:
    """The outputs that `batch_output` splits by the shapes of an input, each with the name of that input."""
    return {name: entry.source_input[0] for entry in config.batch_output for name in entry.target_name}


class PaddedSplitter(Splitter):
    """A Splitter for what `gatherer` padded.

    `axes` has the dimensions of each output that are as long as the padded inputs. They are cut back to the length of
    the request; those of other outputs stay as the model made them.
    """

    def __init__(
        self, spec: ModelSpec, buckets: BucketSpec, gatherer: PaddingGatherer, axes: Mapping[str, tuple[int, ...]]
    ) -> None:
        super().__init__(spec, {})
        self._buckets = buckets
        self._gatherer = gatherer
        self._axes = axes

    def split(
        self, requests: Sequence[InferenceRequest], batch_sizes: Sequence[int], results: Sequence[Array], total: int
    ) -> Sequence[Outputs]:
        """Split as Splitter does; `total` are the real items."""
        buckets, rows = self._buckets, self._gatherer.rows
        if rows > total:
            for name, result in self._named(results):
                if result.shape[:1] != (rows,):
                    raise self._wrong_batch(name, result.shape, rows)
            results = [result[:total] for result in results]
        if self._axes:
            lengths = lengths_of(requests, buckets)
            padded = buckets.length(max(lengths))
            if min(lengths) < padded:
                # Their shapes differ: each request by itself.
                answers: list[Outputs] = []
                start = 0
                for request, size, length in zip(requests, batch_sizes, lengths, strict=True):
                    own = [
                        self._own(name, result, start, size, length, padded) for name, result in self._named(results)
                    ]
                    answers += super().split((request,), (size,), own, size)
                    start += size
                return answers
        return super().split(requests, batch_sizes, results, total)

    def _own(self, name: str, result: Array, start: int, size: int, length: int, padded: int) -> Array:
        axes = self._axes.get(name, ())
        for axis in axes:
            if axis >= result.ndim or result.shape[axis] != padded:
                raise BackendFailed(
                    f"output '{name}' of '{self._spec.name}' has shape {shape_text(result.shape)} for inputs that were "
                    f"padded to the length {padded}, so that it cannot be cut to the length of its request",
                    hint="remove it from LENGTH_OUTPUTS in the model's configuration, or name the dimension otherwise "
                    "in the graph",
                    model=self._spec.name,
                )
        index = [slice(None)] * result.ndim
        if self._batching:
            index[0] = slice(start, start + size)
        for axis in axes:
            index[axis] = slice(length)
        return np.ascontiguousarray(result[tuple(index)])

    def _named(self, results: Sequence[Array]) -> list[tuple[str, Array]]:
        return [(name, result) for (_, name, _), result in zip(self._outputs, results, strict=True)]
