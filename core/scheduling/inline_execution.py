"""Whether a model's executions are so short that a thread which has other things to do may run one."""

from __future__ import annotations

from collections.abc import Sequence

from core.config.model_spec import ModelSpec
from core.inference.pending_request import PendingRequest
from core.inference.tensors import BYTES

# On a thread of its own an execution takes two to three times as long as it computes, because that thread shares the
# interpreter with the one that submits. So this says only that it would do no harm: it is no longer than what is done
# for so many requests anyway.
_SHORT_NS = 1_000_000
_SHORT_NS_PER_REQUEST = 30_000
_IN_A_ROW = 16
# And this, which counts where it runs in that thread's place, that it gains: one that computes for longer is worth
# another thread, on a machine with another core. What Python does for each request takes as long on either.
_LENT_NS = 200_000
_LENT_NS_PER_REQUEST = 8_000
# Of the executions in a thread's place so many say how long they take, and after so many others it is tried again.
_AVERAGED = 16
_PAUSE = 1000
TURN_NS = 4_000_000
"""For so long that thread may go on with what is queued, before the instance's own has to see to the rest."""


class InlineExecution:
    """Any thread; an execution that is noted while another one is may be lost.

    No client may hold up that thread: how much it sends must not make the next execution long after short ones. One
    that has twice as much to do takes some milliseconds at most, also where the time grows with the cube of the size.
    """

    __slots__ = ("_average", "_largest", "_possible", "_short")

    def __init__(self, spec: ModelSpec) -> None:
        # A batch that waits for company needs a thread that waits, and what is done to a string its size does not say.
        waits = spec.batching is not None and spec.batching.max_queue_delay_ns > 0
        self._possible = not waits and all(tensor.datatype is not BYTES for tensor in spec.inputs.values())
        self._short = 0
        self._largest = 0
        self._average = 0.0

    @property
    def lasting(self) -> bool:
        """Whether the last 16 executions were short."""
        return self._short >= _IN_A_ROW

    def expected(self, batch: Sequence[PendingRequest]) -> bool:
        """Whether executing `batch` will be short: the last 16 were, and the inputs of one of them half as large."""
        return self.lasting and _size(batch) <= 2 * self._largest

    def note(self, batch: Sequence[PendingRequest], duration_ns: int, lent: bool = False) -> None:
        """`batch` was executed in `duration_ns` nanoseconds; `lent`: in the place of the instance's own thread."""
        if not self._possible:
            return
        count = len(batch)
        if duration_ns >= _SHORT_NS + _SHORT_NS_PER_REQUEST * count:
            self._short = self._largest = 0
            return
        self._short += 1
        self._largest = max(self._largest, _size(batch))
        if lent:
            self._average += (duration_ns / (_LENT_NS + _LENT_NS_PER_REQUEST * count) - self._average) / _AVERAGED
            if self._average > 1:
                self._average = 0.0
                self._short = -_PAUSE


def _size(batch: Sequence[PendingRequest]) -> int:
    return sum([pending.request.nbytes for pending in batch])
