"""Requests that were decoded before and arrive again with another id and other tensors.

A client sends the same bytes before its tensors again and again. Parsing and checking them takes 20 µs for a small
request, finding them here 3.
Source: docs/spec/grpc.md section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from core.frontend.known_texts import KnownTexts
from core.grpc.codec.message_cut import TENSOR, HeadSizes, MessageHead, head_of, tensors_from
from core.grpc.codec.response_plan import ResponsePlan
from core.grpc.messages.wire import length_prefix
from core.inference.layout import layout_of
from core.inference.request import InferenceRequest, Inputs, InputTensor, PackedInputs, Parameter
from core.inference.tensors import Buffer, Shape
from core.memo import Memo

_MAX_HEAD_SIZE: Final = 2048
# Copying smaller tensors together takes less time than an array for each of them.
_LARGE: Final = 16384
_MOST_OFFSETS: Final = 512


class _KnownHead:
    """A decoded request without its id and its tensors. Any thread."""

    __slots__ = ("_layout", "_named", "_places", "_prefixes", "_request", "_size", "_unpack", "plan", "prefix_size")

    def __init__(
        self, request: InferenceRequest, own: dict[str, Parameter] | None, sizes: list[int], plan: ResponsePlan
    ) -> None:
        """`own` are the parameters in the message, `sizes` the sizes of its tensors in bytes."""
        self.plan = plan
        # A copy without the tensors: they are views of a message whose memory must become free.
        self._request = request.with_inputs([], model_version=request.model_version, id="")
        self._request.parameters = own
        self._named: list[tuple[str, str, Shape]] = [(t.name, t.datatype, t.shape) for t in request.inputs]
        prefixes = [length_prefix(TENSOR, size) for size in sizes]
        self._prefixes = tuple(prefixes)
        self._places: list[tuple[int, int]] = []
        at = 0
        for prefix, size in zip(prefixes, sizes, strict=True):
            at += len(prefix) + size
            self._places.append((at - size, at))
        self._size = at
        self.prefix_size = len(prefixes[0])
        self._unpack: Callable[[Buffer, int], tuple[bytes, ...]] | None = None
        self._layout = layout_of([(*named, size) for named, size in zip(self._named, sizes, strict=True)])
        if at <= _LARGE:
            formats = zip(prefixes, sizes, strict=True)
            self._unpack = Struct("".join(f"{len(prefix)}s{size}s" for prefix, size in formats)).unpack_from

    def again(self, request_id: str, message: Buffer, end: int) -> InferenceRequest | None:
        """The same request with the tensors that stand from `end` in `message`; None if their number is wrong."""
        inputs: Inputs | None = None
        if len(message) - end == self._size:
            unpack = self._unpack
            inputs = self._separate(message, end) if unpack is None else self._packed(unpack(message, end))
        if inputs is None:  # the sizes are others
            tensors = tensors_from(message, end)
            if tensors is None or len(tensors) != len(self._named):
                return None
            inputs = [InputTensor(*named, tensor) for named, tensor in zip(self._named, tensors, strict=True)]
        request = self._request
        return request.with_inputs(inputs, model_version=request.model_version, id=request_id)

    def _packed(self, parts: tuple[bytes, ...]) -> Inputs | None:
        """The tensors as one run; None unless they have the sizes of the first ones."""
        if parts[::2] != self._prefixes:
            return None
        return PackedInputs(self._layout, memoryview(b"".join(parts[1::2])))

    def _separate(self, message: Buffer, end: int) -> Inputs | None:
        """The tensors where they are; None unless they have the sizes of the first ones."""
        view = memoryview(message)
        inputs: list[InputTensor] = []
        at = end
        for named, prefix, (start, stop) in zip(self._named, self._prefixes, self._places, strict=True):
            start += end
            if view[at:start] != prefix:
                return None
            at = stop + end
            inputs.append(InputTensor(*named, view[start:at]))
        return inputs


class KnownHeads:
    """What stands before the tensors, up to 2 KB each and without the id. Any thread."""

    def __init__(self) -> None:
        self._known: KnownTexts[_KnownHead] = KnownTexts()
        self._sizes = HeadSizes()
        self._offsets: Memo[int, int] = Memo(_MOST_OFFSETS)

    def recall(self, message: Buffer) -> tuple[InferenceRequest, ResponsePlan] | None:
        """The request in `message`; None if it is unknown, or only protobuf can tell."""
        head = self._sizes.guess(message)
        known = None if head is None else self._known.get(head[0])
        if head is None or known is None:
            head = head_of(message)
            known = None if head is None else self._known.get(head[0])
            if head is None or known is None:
                return None
            self._sizes.learn(message, head)
        _, content, end = head
        try:
            request = known.again(content.decode() if content else "", message, end)
        except UnicodeDecodeError:
            return None
        if request is None:
            return None
        self._known.hits += 1
        size = len(message)
        if size > _LARGE and self._offsets.get(size) != end + known.prefix_size:
            self._offsets[size] = end + known.prefix_size
        return request, known.plan

    def tensor_offset(self, size: int) -> int:
        """Where the first tensor began in the last known message of `size` bytes; 0 without one."""
        return self._offsets.get(size, 0)

    def remember(
        self,
        head: MessageHead,
        request: InferenceRequest,
        own: dict[str, Parameter] | None,
        sizes: list[int],
        plan: ResponsePlan,
    ) -> None:
        """Learn a decoded request, if each of its inputs has one of the tensors behind its head, which have `sizes`.

        `own` are the parameters in the message: those of request headers are not remembered.
        """
        text = head[0]
        if len(text) > _MAX_HEAD_SIZE or not len(request.inputs) == len(sizes) > 0:
            return
        if self._known.is_learning():
            self._known[text] = _KnownHead(request, own, sizes, plan)
