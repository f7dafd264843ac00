"""Requests that were decoded before and arrive again with another id and other tensors.

A client sends the same bytes before its tensors again and again. Parsing and checking them takes 20 µs for a small
request, finding them here 3.
Source: docs/spec/grpc.md section 3.
"""

from __future__ import annotations

from struct import Struct

from core.frontend.known_texts import KnownTexts
from core.grpc.codec.message_cut import TENSOR, MessageHead, tensors_from
from core.grpc.codec.response_plan import ResponsePlan
from core.grpc.messages.wire import length_prefix
from core.inference.layout import layout_of
from core.inference.request import InferenceRequest, InputTensor, PackedInputs, Parameter
from core.inference.tensors import Buffer, Shape

_MAX_HEAD_SIZE = 2048
# Larger tensors are not copied together.
_MAX_PACKED_SIZE = 16384


class _KnownHead:
    """A decoded request without its id and its tensors. Any thread."""

    __slots__ = ("_layout", "_names", "_packed_size", "_prefixes", "_request", "_unpack", "plan")

    def __init__(
        self, request: InferenceRequest, own: dict[str, Parameter] | None, sizes: list[int], plan: ResponsePlan
    ) -> None:
        """`own` are the parameters in the message, `sizes` the sizes of its tensors in bytes."""
        self.plan = plan
        # A copy without the tensors: they are views of a message whose memory must become free.
        self._request = request.with_inputs([], model_version=request.model_version, id="")
        self._request.parameters = own
        self._names: list[tuple[str, str, Shape]] = [(t.name, t.datatype, t.shape) for t in request.inputs]
        self._packed_size = -1
        if sum(sizes) <= _MAX_PACKED_SIZE:
            self._prefixes = tuple(length_prefix(TENSOR, size) for size in sizes)
            parts = zip(self._prefixes, sizes, strict=True)
            message = Struct("".join(f"{len(prefix)}s{size}s" for prefix, size in parts))
            self._packed_size = message.size
            self._unpack = message.unpack_from
            entries = zip(self._names, sizes, strict=True)
            self._layout = layout_of([(*names, size) for names, size in entries])

    def again(self, request_id: str, message: Buffer, end: int) -> InferenceRequest | None:
        """The same request with the tensors that stand from `end` in `message`; None if their number is wrong."""
        request = self._request
        if len(message) - end == self._packed_size:
            parts = self._unpack(message, end)
            if parts[::2] == self._prefixes:
                inputs = PackedInputs(self._layout, memoryview(b"".join(parts[1::2])))
                return request.with_inputs(inputs, model_version=request.model_version, id=request_id)
        tensors = tensors_from(message, end)
        if tensors is None or len(tensors) != len(self._names):
            return None
        separate = [InputTensor(*names, tensor) for names, tensor in zip(self._names, tensors, strict=True)]
        return request.with_inputs(separate, model_version=request.model_version, id=request_id)


class KnownHeads:
    """What stands before the tensors, up to 2 KB each and without the id. Any thread."""

    def __init__(self) -> None:
        self._known: KnownTexts[_KnownHead] = KnownTexts()

    def recall(self, head: MessageHead, message: Buffer) -> tuple[InferenceRequest, ResponsePlan] | None:
        """The request that `head` and the tensors behind it make; None if it is unknown, or only protobuf can tell."""
        known = self._known.get(head.text)
        if known is None:
            return None
        try:
            request_id = head.id.decode() if head.id else ""
        except UnicodeDecodeError:
            return None
        request = known.again(request_id, message, head.end)
        if request is None:
            return None
        self._known.hits += 1
        return request, known.plan

    def remember(
        self,
        head: MessageHead,
        request: InferenceRequest,
        own: dict[str, Parameter] | None,
        tensors: list[memoryview],
        plan: ResponsePlan,
    ) -> None:
        """Learn a decoded request, if each of its inputs has one of the `tensors` behind its head.

        `own` are the parameters in the message: those of request headers are not remembered.
        """
        if len(head.text) > _MAX_HEAD_SIZE or not len(request.inputs) == len(tensors) > 0:
            return
        if self._known.is_learning():
            self._known[head.text] = _KnownHead(request, own, list(map(len, tensors)), plan)
