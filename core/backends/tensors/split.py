"""Splits the results of one execution into the outputs of each request.

Large outputs are views of the results. Small ones are copied into one run of bytes for each request.
Source: docs/spec/onnxruntime-backend.md section 5.5 items 7 to 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from trident.core.backends.tensors.gather import PaddingGatherer, input_named, lengths_of
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import BucketSpec, ModelSpec, OutputSpec
from trident.core.errors import BackendFailed
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import Outputs, OutputTensor, PackedOutputs
from trident.core.inference.tensors import BYTES, Array, Shape, TensorLayout, element_count, layout_of, shape_text
from trident.core.memo import Memo


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
            array = result
            if name in self._scattered:
                array = self._scatter(output, array, (request,))[0]
            else:
                shape = array.shape
                if not self._plain or not shape:
                    array = self._in_client_shape(output, array)
                if self._batching and (not shape or shape[0] != total):
                    raise self._wrong_batch(name, shape, total)
            if not wanted or name in wanted:
                answer.append(OutputTensor(name, datatype, array.shape, array))
        return answer

    def checked(self, output: OutputSpec, result: Array, total: int) -> Array:
        """A result of a batch with one request, which gets it as it is. Raises BackendFailed for a wrong batch."""
        if self._batching and result.shape[:1] != (total,):
            raise self._wrong_batch(output.name, result.shape, total)
        return result if result.shape else self._in_client_shape(output, result)

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
            results = [self._real_rows(name, result, rows, total) for name, result in self._named(results)]
        if self._axes:
            lengths = lengths_of(requests, buckets)
            padded = buckets.length(max(lengths))
            if min(lengths) < padded:
                return self._split_by_length(requests, batch_sizes, lengths, results, padded)
        return super().split(requests, batch_sizes, results, total)

    def _split_by_length(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        lengths: Sequence[int],
        results: Sequence[Array],
        padded: int,
    ) -> list[Outputs]:
        """The outputs of requests whose shapes differ, each request by itself."""
        answers: list[Outputs] = []
        start = 0
        for request, size, length in zip(requests, batch_sizes, lengths, strict=True):
            own = [self._own(name, result, start, size, length, padded) for name, result in self._named(results)]
            answers += super().split((request,), (size,), own, size)
            start += size
        return answers

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

    def _real_rows(self, name: str, result: Array, rows: int, total: int) -> Array:
        if result.shape[:1] != (rows,):
            raise self._wrong_batch(name, result.shape, rows)
        return result[:total]

    def _named(self, results: Sequence[Array]) -> list[tuple[str, Array]]:
        return [(name, result) for (_, name, _), result in zip(self._outputs, results, strict=True)]
