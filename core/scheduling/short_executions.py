"""Decides whether a model's executions are short enough to run on the submitting thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from core.config.model_spec import ModelSpec
from core.inference.pending_request import PendingRequest
from core.inference.tensors import BYTES

# On its own thread an execution takes two to three times its computing time, because that thread shares the interpreter
# with the submitting one. So these limits only tell that running inline does no harm: the execution takes no longer
# than the rest of the work for as many requests.
_SHORT_NS: Final = 1_000_000
_SHORT_NS_PER_REQUEST: Final = 30_000
_IN_A_ROW: Final = 16
# These limits are for durations measured inline, which are computing time. They tell that running inline is a gain: an
# execution that computes longer is worth another thread on a machine with another core. The work that Python does for
# each request takes the same time on either thread.
_INLINE_NS: Final = 200_000
_INLINE_NS_PER_REQUEST: Final = 8_000
# The durations measured inline are averaged over this many executions. If the average is too high, inline execution is
# tried again after this many other executions.
_AVERAGED: Final = 16
_PAUSE: Final = 1000


class ShortExecutions:
    """The measured durations of one model's executions. Any thread; a note may be lost if two arrive at once.

    No client may block the submitting thread, so the amount of input that a client sends must not make the next
    execution a long one. An execution with twice the input of a short one takes some milliseconds at most, even if the
    time grows with the cube of the size.

    `lasting` tells whether the last 16 executions were short.
    """

    __slots__ = ("_average", "_largest", "_measured", "_short", "lasting")

    def __init__(self, spec: ModelSpec) -> None:
        # The time that a model spends on a string does not follow from the size of the string.
        self._measured = all(tensor.datatype is not BYTES for tensor in spec.inputs.values())
        self._short = 0
        self._largest = 0
        self._average = 0.0
        self.lasting = False

    def expected(self, batch: Sequence[PendingRequest]) -> bool:
        """Whether executing `batch` will be short: the last 16 were, and one of them had at least half its input."""
        return self.lasting and _size(batch) <= 2 * self._largest

    def note(self, batch: Sequence[PendingRequest], duration_ns: int, inline: bool) -> None:
        """Note that executing `batch` took `duration_ns` nanoseconds, on the submitting thread if `inline`."""
        if not self._measured:
            return
        count = len(batch)
        if duration_ns >= _SHORT_NS + _SHORT_NS_PER_REQUEST * count:
            self._short = self._largest = 0
            self.lasting = False
            return
        self._short += 1
        self._largest = max(self._largest, _size(batch))
        if inline:
            self._average += (duration_ns / (_INLINE_NS + _INLINE_NS_PER_REQUEST * count) - self._average) / _AVERAGED
            if self._average > 1:
                self._average = 0.0
                self._short = -_PAUSE
        self.lasting = self._short >= _IN_A_ROW


def _size(batch: Sequence[PendingRequest]) -> int:
    return sum([pending.request.nbytes for pending in batch])
