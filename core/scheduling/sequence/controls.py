"""The control tensors, which tell a model the place of a request in its sequence.

Source: docs/spec/schedulers.md section 3.4, "Controls".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from core.config.sequence.spec import FlagControl, SequenceSpec
from core.errors import InvalidRequest
from core.inference.request import InferenceRequest, InputTensor
from core.inference.tensors import BYTES, Array, Datatype, Shape, bytes_array


class Controls:
    """Makes the control tensors that a model wants: START, END, READY and the correlation id. Any thread.

    `described` are their names, datatypes, shapes and sizes in bytes; None if the size of the id is not known before.
    """

    def __init__(self, sequence: SequenceSpec, *, batching: bool) -> None:
        self._shape: Shape = (1, 1) if batching else (1,)
        self._id = sequence.correlation_id
        # The low bytes of a number are its bits in any integer type that is as short.
        self._id_size = 0 if self._id is None else self._id.datatype.size
        self._id_mask = (1 << (8 * self._id_size)) - 1
        controls = (sequence.start, sequence.end, sequence.ready)
        places = [(start, end) for start in (False, True) for end in (False, True)]
        self._flags = {place: _flag_tensors(self._shape, controls, (*place, True)) for place in places}
        self._flag_bytes = {
            place: b"".join([tensor.array.tobytes() for tensor in self._flags[place]]) for place in places
        }
        not_ready = _flag_tensors(self._shape, controls, (False, False, False))
        self._has_text = self._id is not None and self._id.datatype is BYTES
        null_id = self._id_tensors("" if self._has_text else 0)
        self.not_ready: dict[str, InputTensor] = {tensor.name: tensor for tensor in (*not_ready, *null_id)}
        """Those of a slot in which no request is ready."""
        self.described: tuple[tuple[str, str, Shape, int], ...] | None = None
        if not self._has_text:
            tensors = self.not_ready.values()
            self.described = tuple((each.name, each.datatype, each.shape, each.data.nbytes) for each in tensors)

    def of(self, request: InferenceRequest) -> Iterator[InputTensor]:
        """The controls of `request`, in the order of `described`."""
        yield from self._flags[request.sequence_start, request.sequence_end]
        yield from self._id_tensors(request.correlation_id)

    def content(self, request: InferenceRequest) -> bytes:
        """The bytes of the controls of `request`, one after the other, if they are `described`."""
        flags = self._flag_bytes[request.sequence_start, request.sequence_end]
        return flags + self._id_bytes(request.correlation_id) if self._id_size else flags

    def id_of(self, number: int) -> int | str:
        """A correlation id of the type that the model takes."""
        return str(number) if self._has_text else number

    def check(self, request: InferenceRequest) -> None:
        """Raise InvalidRequest if the model takes correlation ids of another type than that of `request`."""
        control = self._id
        if control is None:
            return
        is_text = isinstance(request.correlation_id, str)
        if is_text is not self._has_text:
            raise InvalidRequest(
                f"{request.log_prefix}sequence batching control '{control.name}' data-type is "
                f"'{'BYTES' if is_text else 'UINT64'}', but model '{request.model_name}' expects "
                f"'{control.datatype.name}'",
                hint=f"send sequence_id as {'a number' if is_text else 'a string'}",
            )

    def _id_tensors(self, correlation_id: int | str) -> tuple[InputTensor, ...]:
        """One, or none if the model does not want it."""
        control = self._id
        if control is None:
            return ()
        if isinstance(correlation_id, str):
            array = bytes_array([correlation_id.encode(errors="surrogatepass")], self._shape)
        else:
            array = np.frombuffer(self._id_bytes(correlation_id), control.datatype.dtype).reshape(self._shape)
        return (made_tensor(control.name, control.datatype, array),)

    def _id_bytes(self, correlation_id: int | str) -> bytes:
        assert isinstance(correlation_id, int)
        return (correlation_id & self._id_mask).to_bytes(self._id_size, "little")


def _flag_tensors(
    shape: Shape, controls: tuple[FlagControl | None, ...], values: tuple[bool, ...]
) -> tuple[InputTensor, ...]:
    """Requests share them: they never change."""
    tensors = []
    for control, value in zip(controls, values, strict=True):
        if control is not None:
            array = np.full(shape, control.true if value else control.false, control.datatype.dtype)
            tensors.append(made_tensor(control.name, control.datatype, array))
    return tuple(tensors)


def made_tensor(name: str, datatype: Datatype, array: Array) -> InputTensor:
    """An input that no client sent, ready for the backend. `array` is C-contiguous and has all dimensions."""
    flat = array.reshape(-1)
    data = flat if datatype is BYTES else flat.view(np.uint8).data
    tensor = InputTensor(name, datatype.name, array.shape, data)
    tensor.array = array
    return tensor
