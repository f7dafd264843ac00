"""Responses that are not the result of an execution: sent later, more than once, or from any thread.

Source: docs/spec/schedulers.md section 3.8, docs/spec/python-backend.md section 4.3 ("InferenceResponseSender").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

import numpy as np

from trident.core.errors import ServerError
from trident.core.inference.pending_request import Defer, PendingRequest
from trident.core.inference.request import InferenceRequest, Parameter
from trident.core.inference.response import InferenceResponse, OnResponse, Outputs, OutputTensor, PackedOutputs
from trident.core.inference.window_limits import WindowLimits


class DeferredOutcome(Enum):
    """The type of LATER and AGAIN."""

    LATER = "the request is answered through its sender"
    AGAIN = "the request is to be executed again"


LATER: Final = DeferredOutcome.LATER
"""An outcome of an execution: the request is answered through its sender, or has been already."""
AGAIN: Final = DeferredOutcome.AGAIN
"""An outcome of an execution: the request is to be executed again. Its sender sends nothing any more."""


class ResponseSender(Protocol):
    """Sends the responses to one request of an execution. Any thread; several may send at once.

    Keep it until the final response: a sender that is dropped before answers its request with an error.
    """

    @property
    def is_cancelled(self) -> bool:
        """The request was cancelled: its responses are dropped, but the final one is still needed."""
        ...

    @property
    def is_full(self) -> bool:
        """The client has not taken enough of what was sent. `send` works, but costs memory; false once cancelled."""
        ...

    def send(
        self,
        outputs: Outputs | None,
        *,
        final: bool = False,
        error: ServerError | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        """Send a response: `outputs`, or `error` in place of them. Returns at once and never raises.

        Neither outputs nor an error, and `final`: there are no more responses. The responses of a request arrive in the
        order in which they were sent. What is sent after the final one is dropped.
        """
        ...

    def watch(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when `is_cancelled` becomes true, and each time `is_full` becomes false.

        On any thread; here, if the request is cancelled already. It must neither block nor raise.
        """
        ...


# Source: docs/spec/schedulers.md section 3.8.


class ResponseWindow:
    """Not thread-safe. Responses are taken in the order in which they were sent."""

    __slots__ = ("_limits", "_nbytes", "_sizes")

    def __init__(self, limits: WindowLimits) -> None:
        self._limits = limits
        self._sizes: deque[int] = deque()
        self._nbytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._sizes) >= self._limits.responses or self._nbytes >= self._limits.nbytes

    def put(self, response: InferenceResponse) -> None:
        """Note that `response` was sent."""
        size = _size(response)
        self._sizes.append(size)
        self._nbytes += size

    def take(self, count: int) -> None:
        """Note that the oldest `count` responses were taken; more than there are is the same as all."""
        sizes = self._sizes
        for _ in range(min(count, len(sizes))):
            self._nbytes -= sizes.popleft()


def _size(response: InferenceResponse) -> int:
    """The bytes of the outputs, those of strings included."""
    outputs = response.outputs
    if type(outputs) is PackedOutputs:
        return outputs.layout.size
    size = 0
    for output in outputs:
        # The array of an output that is bytes already is made on each use.
        if type(output) is OutputTensor and output.array.dtype == np.object_:
            size += sum(map(len, output.array.reshape(-1).tolist()))
        else:
            size += output.nbytes
    return size


class StreamedRequest(PendingRequest):
    """The engine lets the model send only as much as fits into a window of responses that were sent and not taken.

    So a client that reads slowly holds back its own model, and costs no more memory than its window. The responses to
    any other request have no window.
    """

    __slots__ = ("on_take",)

    def __init__(
        self,
        request: InferenceRequest,
        on_response: OnResponse,
        *,
        defer: Defer | None = None,
        flush: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(request, on_response, defer=defer, flush=flush)
        # What `take` calls: set by the engine while the request is open.
        self.on_take: Callable[[StreamedRequest, int], None] | None = None

    def take(self, count: int = 1) -> None:
        """The oldest `count` responses have left: the model may send as much again. Any thread."""
        on_take = self.on_take
        if on_take is not None:
            on_take(self, count)
