"""A response as the cache keeps it.

Source: docs/spec/schedulers.md section 3.7 ("stored", "hit response").
"""

from __future__ import annotations

from sys import getsizeof

from core.inference.close_reason import CloseReason
from core.inference.layout import TensorLayout, layout_of
from core.inference.request import InferenceRequest, Parameter
from core.inference.response import InferenceResponse, PackedOutputs
from core.inference.times import InferenceTimes

_TIMES = frozenset(InferenceTimes(0, 0, 0, 0, 0, CloseReason.IDLE).parameters())


class CachedResponse:
    """The outputs of a response, one run of bytes, and its parameters. It never changes, so any thread may read it.

    `nbytes` is the memory that it takes, in bytes, without that of `layout`, which similar responses share.
    """

    __slots__ = ("content", "layout", "nbytes", "parameters")

    def __init__(self, layout: TensorLayout, content: bytes, parameters: dict[str, Parameter] | None) -> None:
        self.layout = layout
        self.content = content
        self.parameters = parameters
        self.nbytes = block_size(getsizeof(self)) + block_size(getsizeof(content)) + _parameters_size(parameters)

    @classmethod
    def of(cls, response: InferenceResponse) -> CachedResponse:
        """A copy of what is the same in every answer to the request."""
        outputs = response.outputs
        if type(outputs) is PackedOutputs:
            layout, content = outputs.layout, bytes(outputs.content)
        else:
            contents = [output.content() for output in outputs]
            named = zip(outputs, contents, strict=True)
            layout = layout_of([(out.name, out.datatype, tuple(out.shape), len(each)) for out, each in named])
            content = b"".join(contents)
        # The times of the execution are not those of a later answer.
        kept = {name: value for name, value in (response.parameters or {}).items() if name not in _TIMES}
        return cls(layout, content, kept or None)

    def answer(self, request: InferenceRequest, name: str, version: int) -> InferenceResponse:
        """The response to `request`, which `name` and `version` of a model gave before."""
        parameters = None if self.parameters is None else self.parameters.copy()
        outputs = PackedOutputs(self.layout, memoryview(self.content))
        return InferenceResponse(name, version, outputs, id=request.id, parameters=parameters)


def block_size(nbytes: int) -> int:
    """What an object of that size takes of the heap: blocks are multiples of 16 bytes, with a header."""
    return (nbytes + 23) & ~15


def layout_size(layout: TensorLayout) -> int:
    """The memory of a layout in bytes."""
    size = getsizeof(layout) + getsizeof(layout.entries)
    for entry in layout.entries:
        _, _, shape, start, end = entry
        size += getsizeof(entry) + getsizeof(shape) + sum(map(getsizeof, (*shape, start, end)))
    return size


def _parameters_size(parameters: dict[str, Parameter] | None) -> int:
    if parameters is None:
        return 0
    return getsizeof(parameters) + sum(getsizeof(each) for pair in parameters.items() for each in pair)
