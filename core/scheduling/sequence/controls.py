"""The control tensors, which tell a model the place of a request in its sequence.

Source: docs/spec/schedulers.md section 3.4, "Controls".
"""

from __future__ import annotations

import numpy as np

from core.config.sequence.spec import FlagControl, SequenceSpec
from core.errors import InvalidRequest
from core.inference.request import InferenceRequest, InputTensor
from core.inference.tensors import BYTES, Array, Datatype, bytes_array


class Controls:
    """Makes the control tensors of one model. They are shared by requests and never change. Any thread."""

    def __init__(self, sequence: SequenceSpec, *, batching: bool) -> None:
        self._shape = (1, 1) if batching else (1,)
        self._id = sequence.correlation_id
        self._flags = {
            (start, end): self._flag_tensors((sequence.start, start), (sequence.end, end), (sequence.ready, True))
            for start in (False, True)
            for end in (False, True)
        }
        not_ready = self._flag_tensors((sequence.start, False), (sequence.end, False), (sequence.ready, False))
        null_id = self.id_tensor("" if self._id is not None and self._id.datatype is BYTES else 0)
        self.not_ready: dict[str, InputTensor] = {tensor.name: tensor for tensor in (*not_ready, *null_id)}
        """Those of a slot in which no request is ready."""

    def of(self, start: bool, end: bool, id_tensor: tuple[InputTensor, ...]) -> tuple[InputTensor, ...]:
        """The controls of a request at this place; `id_tensor` is that of its sequence."""
        return self._flags[start, end] + id_tensor

    def check(self, request: InferenceRequest) -> None:
        """Raise InvalidRequest if the model takes correlation ids of another type than that of `request`."""
        control = self._id
        if control is None:
            return
        is_text = isinstance(request.correlation_id, str)
        if is_text is not (control.datatype is BYTES):
            raise InvalidRequest(
                f"{request.log_prefix}sequence batching control '{control.name}' data-type is "
                f"'{'BYTES' if is_text else 'UINT64'}', but model '{request.model_name}' expects "
                f"'{control.datatype.name}'",
                hint=f"send sequence_id as {'a number' if is_text else 'a string'}",
            )

    def id_tensor(self, correlation_id: int | str) -> tuple[InputTensor, ...]:
        """The tensor of a correlation id; none if the model does not want it."""
        control = self._id
        if control is None:
            return ()
        if isinstance(correlation_id, str):
            array = bytes_array([correlation_id.encode(errors="surrogatepass")], self._shape)
        else:
            # As in Triton a shorter integer gets the low bytes, and a signed one the same bits.
            size = control.datatype.size
            low = correlation_id & ((1 << (8 * size)) - 1)
            array = np.frombuffer(low.to_bytes(size, "little"), control.datatype.dtype).reshape(self._shape)
        return (made_tensor(control.name, control.datatype, array),)

    def _flag_tensors(self, *flags: tuple[FlagControl | None, bool]) -> tuple[InputTensor, ...]:
        tensors = []
        for control, value in flags:
            if control is not None:
                array = np.full(self._shape, control.true if value else control.false, control.datatype.dtype)
                tensors.append(made_tensor(control.name, control.datatype, array))
        return tuple(tensors)


def made_tensor(name: str, datatype: Datatype, array: Array) -> InputTensor:
    """An input that no client sent, ready for the backend. `array` is C-contiguous and has all dimensions."""
    flat = array.reshape(-1)
    data = flat if datatype is BYTES else flat.view(np.uint8).data
    tensor = InputTensor(name, datatype.name, array.shape, data)
    tensor.array = array
    return tensor
