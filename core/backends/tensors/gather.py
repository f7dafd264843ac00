"""The inputs of a batch, gathered into the tensors that a model reads.

One request's arrays go to the model as they are. Those of many are copied once: large ones into buffers that are used
again for the next batch, which saves the page faults of fresh memory and lets a GPU's be pinned; small ones by joining
bytes, which takes a third of the time of numpy's `concatenate` (64 arrays of 64 bytes: 4 µs against 14 µs).
Source: docs/spec/onnxruntime-backend.md section 5.5 items 1 to 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from core.backends.tensors.batch_inputs import BatchInputSpec, input_named
from core.config.model_spec import ModelSpec
from core.errors import BackendFailed
from core.inference.request import InferenceRequest, PackedInputs
from core.inference.tensors import BY_NAME, BYTES, Array, Shape
from core.memo import Memo

# Called with an input's name and the buffer that it is staged in from now on; None: it is not staged any more.
OnBuffer = Callable[[str, Array | None], None]

_JOINED_BYTES_AT_MOST = 64 * 1024


class StagingBuffer:
    """Contiguous memory of one datatype that grows to the largest batch it has seen. One thread."""

    def __init__(self, name: str, dtype: np.dtype[Any], on_buffer: OnBuffer | None = None) -> None:
        self._name = name
        self._flat: Array = np.empty(0, dtype)
        self._views: Memo[Shape, Array] = Memo(256)
        self._on_buffer = on_buffer

    def view(self, shape: Shape) -> Array:
        """The beginning of the buffer as an array of `shape`; what the last view held is overwritten through it."""
        view = self._views.get(shape)
        return self._make_view(shape) if view is None else view

    def close(self) -> None:
        if self._on_buffer is not None and self._flat.size:
            self._on_buffer(self._name, None)
        self._views.clear()
        self._flat = np.empty(0, self._flat.dtype)

    def _make_view(self, shape: Shape) -> Array:
        count = prod(shape)
        if count > self._flat.size:
            flat = np.empty(count, self._flat.dtype)
            self.close()
            self._flat = flat
            if self._on_buffer is not None:
                self._on_buffer(self._name, flat)
        view = self._views[shape] = self._flat[:count].reshape(shape)
        return view


class Gatherer:
    """Makes the feed of one execution: an array for each input of the graph. One per instance; its thread only.

    `scalars` are the inputs that have no dimensions in the graph: they get arrays without dimensions.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        scalars: frozenset[str] = frozenset(),
        batch_inputs: Sequence[BatchInputSpec] = (),
        on_buffer: OnBuffer | None = None,
    ) -> None:
        self._spec = spec
        self._scalars = scalars
        self._batch_inputs = tuple(batch_inputs)
        self._ragged = frozenset(name for name, i in spec.inputs.items() if i.allow_ragged_batch)
        self._buffers = {
            name: StagingBuffer(name, i.datatype.dtype, on_buffer)
            for name, i in spec.inputs.items()
            # An object array that is used again would keep the last batch's elements alive.
            if i.datatype is not BYTES
        }
        # Arrays of which the request validation has seen to it that their shapes agree: joining bytes does not.
        self._joinable = frozenset(
            name
            for name, i in spec.inputs.items()
            if on_buffer is None and i.datatype is not BYTES and -1 not in i.dims and not i.allow_ragged_batch
        )
        self._as_they_are = not (self._scalars or self._ragged or self._batch_inputs)
        self._joins_blocks = (
            self._as_they_are
            and on_buffer is None
            and all(i.datatype is not BYTES and i.model_dims is None for i in spec.inputs.values())
        )

    def gather(self, requests: Sequence[InferenceRequest], total: int) -> dict[str, Array]:
        """The feed for `requests`, which hold `total` items: concatenated in order along the batch dimension.

        The arrays are valid until the next call. Inputs are those of the first request; optional ones that it leaves
        out are left out. Raises BackendFailed where another request does not have them.
        """
        if len(requests) == 1:
            feed = {tensor.name: tensor.array for tensor in requests[0].inputs}
            if self._as_they_are:
                return feed
            feed = {name: self._alone(name, array) for name, array in feed.items()}
        elif self._joins_blocks and (packed := _packed_alike(requests)) is not None:
            return _joined(packed, total)
        else:
            feed = {
                tensor.name: self._together(tensor.name, _column(requests, position, tensor.name), total)
                for position, tensor in enumerate(requests[0].inputs)
            }
        for batch_input in self._batch_inputs:
            array = batch_input.array(requests)
            for name in batch_input.target_names:
                feed[name] = array
        return feed

    def close(self) -> None:
        """Let go of the buffers."""
        for buffer in self._buffers.values():
            buffer.close()

    def _alone(self, name: str, array: Array) -> Array:
        if name in self._scalars:
            return array.reshape(())
        return array.reshape(-1) if name in self._ragged else array

    def _together(self, name: str, arrays: list[Array], total: int) -> Array:
        first = arrays[0]
        if name in self._joinable and first.nbytes * total <= _JOINED_BYTES_AT_MOST:
            buffers: list[Any] = arrays  # arrays are buffers, which mypy knows for Python 3.12 and later only
            return np.ndarray((total, *first.shape[1:]), first.dtype, b"".join(buffers))
        if name in self._ragged:
            arrays = [array.reshape(-1) for array in arrays]
            shape: Shape = (sum(array.size for array in arrays),)
        else:
            shape = (total, *first.shape[1:])
        buffer = self._buffers.get(name)
        try:
            return np.concatenate(arrays, out=buffer.view(shape) if buffer is not None else None)
        except ValueError as exc:
            raise BackendFailed(
                f"the inputs '{name}' of a batch for '{self._spec.name}' do not fit together: {exc}",
                model=self._spec.name,
            ) from exc


def _packed_alike(requests: Sequence[InferenceRequest]) -> list[PackedInputs] | None:
    """The inputs of all requests, if they are packed in the same layout and small."""
    packed = [request.inputs for request in requests if type(request.inputs) is PackedInputs]
    if len(packed) < len(requests) or packed[0].layout.size * len(packed) > _JOINED_BYTES_AT_MOST:
        return None
    return packed if len({inputs.layout for inputs in packed}) == 1 else None


def _joined(packed: Sequence[PackedInputs], total: int) -> dict[str, Array]:
    """The feed for small requests that all have the same layout: their contents are the rows of a block, and each input
    is some columns of it."""
    layout = packed[0].layout
    rows = np.frombuffer(b"".join([inputs.content for inputs in packed]), np.uint8)
    rows = rows.reshape(len(packed), layout.size)
    return {
        name: np.ndarray((total, *shape[1:]), BY_NAME[datatype].dtype, np.ascontiguousarray(rows[:, start:end]).data)
        for name, datatype, shape, start, end in layout.entries
    }


def _column(requests: Sequence[InferenceRequest], position: int, name: str) -> list[Array]:
    """The arrays of input `name`, which nearly always stands at the same `position` in every request of a batch."""
    tensors = [request.inputs[position] for request in requests if len(request.inputs) > position]
    arrays = [tensor.array for tensor in tensors if tensor.name == name]
    return arrays if len(arrays) == len(requests) else [input_named(request, name).array for request in requests]


def batch_total(batch_sizes: Sequence[int], max_batch_size: int, model_name: str) -> int:
    """The items in a batch. Raises BackendFailed with Triton's text where there are more than the model takes."""
    total = sum(batch_sizes)
    if total != 1 and total > max_batch_size:
        raise BackendFailed(f"batch size {total} for '{model_name}', max allowed is {max_batch_size}", model=model_name)
    return total
