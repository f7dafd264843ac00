"""Gathers the inputs of a batch into the tensors that a model reads.

The arrays of a single request are passed on without a copy. Those of several requests are copied once. Large arrays are
copied into buffers that the next batch uses again: this avoids the page faults of new memory, and the buffers can be
pinned for a GPU. The bytes of small arrays are joined, which takes a third of the time of numpy's `concatenate` (64
arrays of 64 bytes: 4 µs instead of 14 µs).
Source: docs/spec/onnxruntime-backend.md section 5.5 items 1 to 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from core.backends.tensors.batch_inputs import BatchInputSpec, input_named
from core.backends.tensors.staging_buffer import OnBuffer, StagingBuffer
from core.config.model_spec import ModelSpec
from core.errors import BackendFailed
from core.inference.request import InferenceRequest, PackedInputs
from core.inference.tensors import BY_NAME, BYTES, Array, Shape

_JOINED_BYTES_AT_MOST: Final = 64 * 1024


class Gatherer:
    """Makes the feed of one execution: an array for each input of the graph. One per instance; its thread only.

    `scalars` are the inputs without dimensions in the graph; their arrays get no dimensions either.
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
        # All requests of a batch have the same values of these.
        self._shapes = frozenset(name for name, i in spec.inputs.items() if i.is_shape_tensor)
        self._buffers = {
            name: StagingBuffer(name, i.datatype.dtype, on_buffer)
            for name, i in spec.inputs.items()
            # An object array that is kept for the next batch would keep the elements of the last one alive.
            if i.datatype is not BYTES
        }
        # Joining bytes does not check that the shapes agree. For these inputs the request validation has done so.
        self._joinable = frozenset(
            name
            for name, i in spec.inputs.items()
            if on_buffer is None and i.datatype is not BYTES and -1 not in i.dims and not i.allow_ragged_batch
        )
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
            feed = {tensor.name: tensor.array for tensor in requests[0].inputs}
            if self._as_they_are:
                return feed
            feed = {name: self._alone(name, array) for name, array in feed.items()}
        elif self._joins_blocks and (packed := _packed_alike(requests)) is not None:
            return _joined(packed, total)
        else:
            feed = {
                tensor.name: self._together(tensor.name, arrays_of(requests, position, tensor.name), total)
                for position, tensor in enumerate(requests[0].inputs)
            }
        for batch_input in self._batch_inputs:
            array = batch_input.array(requests)
            for name in batch_input.target_names:
                feed[name] = array
        return feed

    def close(self) -> None:
        """Free the buffers."""
        for buffer in self._buffers.values():
            buffer.close()

    def _alone(self, name: str, array: Array) -> Array:
        if name in self._scalars:
            return array.reshape(())
        return array.reshape(-1) if name in self._ragged else array

    def _together(self, name: str, arrays: list[Array], total: int) -> Array:
        first = arrays[0]
        if name in self._shapes:
            return first
        if name in self._joinable and first.nbytes * total <= _JOINED_BYTES_AT_MOST:
            buffers: list[Any] = arrays  # arrays are buffers, but mypy knows it only from Python 3.12 on
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
            raise self._misfit(name, exc) from exc

    def _misfit(self, name: str, exc: ValueError) -> BackendFailed:
        model = self._spec.name
        return BackendFailed(f"the inputs '{name}' of a batch for '{model}' do not fit together: {exc}", model=model)


def _packed_alike(requests: Sequence[InferenceRequest]) -> list[PackedInputs] | None:
    """The inputs of all requests, if they are small and all packed in the same layout; otherwise None."""
    packed = [request.inputs for request in requests if type(request.inputs) is PackedInputs]
    if len(packed) < len(requests) or packed[0].layout.size * len(packed) > _JOINED_BYTES_AT_MOST:
        return None
    return packed if len({inputs.layout for inputs in packed}) == 1 else None


def _joined(packed: Sequence[PackedInputs], total: int) -> dict[str, Array]:
    """The feed for small inputs of one layout. Their contents are the rows of a block; an input is some columns."""
    layout = packed[0].layout
    rows = np.frombuffer(b"".join([inputs.content for inputs in packed]), np.uint8)
    rows = rows.reshape(len(packed), layout.size)
    return {
        name: np.ndarray((total, *shape[1:]), BY_NAME[datatype].dtype, np.ascontiguousarray(rows[:, start:end]).data)
        for name, datatype, shape, start, end in layout.entries
    }


def arrays_of(requests: Sequence[InferenceRequest], position: int, name: str) -> list[Array]:
    """The arrays of input `name`, which is nearly always at the same `position` in every request of a batch."""
    tensors = [request.inputs[position] for request in requests if len(request.inputs) > position]
    arrays = [tensor.array for tensor in tensors if tensor.name == name]
    return arrays if len(arrays) == len(requests) else [input_named(request, name).array for request in requests]


def batch_total(batch_sizes: Sequence[int], max_batch_size: int, model_name: str) -> int:
    """The number of items in a batch. Raises BackendFailed, with Triton's text, if the model takes fewer."""
    total = sum(batch_sizes)
    if total != 1 and total > max_batch_size:
        raise BackendFailed(f"batch size {total} for '{model_name}', max allowed is {max_batch_size}", model=model_name)
    return total
