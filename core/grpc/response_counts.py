"""How many calls ended, by method and status, for the metrics page.

Counting in the metrics library takes a microsecond and more, so the calls count in their methods, and what they counted
is taken over from time to time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import Counter

from core.grpc.calls.refused_call import RefusedCall
from core.grpc.methods import Method
from core.grpc.status import Status
from core.waiting.deadlines import Deadlines

_TAKEN_OVER_AFTER_S: Final = 0.25


class ResponseCounts:
    """On the hub's thread. `counter` is a collector of the metrics library, and may be a quarter of a second behind."""

    __slots__ = ("_deadlines", "_is_due", "_methods", "_unknown", "counter")

    def __init__(self, methods: Sequence[Method], deadlines: Deadlines) -> None:
        # What is no call, and calls of methods that there are not: clients can make up as many names as they like.
        self._unknown = Method("", "", "", RefusedCall)
        self._methods = (*methods, self._unknown)
        self._deadlines = deadlines
        self._is_due = False
        self.counter = Counter(
            "trident_grpc_responses",
            "Calls over gRPC that have ended; a stream counts once",
            ("method", "status"),
            registry=None,
        )

    def count(self, method: Method | None, status: Status) -> None:
        index: int = status  # a list of a compiled module has no fast way for a member of an enum
        (method or self._unknown).ended[index] += 1
        if not self._is_due:
            self._is_due = True
            self._deadlines.add(_TAKEN_OVER_AFTER_S, self)

    def expire(self) -> None:
        """Take over what was counted."""
        self._is_due = False
        for method in self._methods:
            for status, count in zip(Status, method.ended, strict=True):
                if count:
                    self.counter.labels(method.name, status.name).inc(count)
                    method.ended[status] = 0
