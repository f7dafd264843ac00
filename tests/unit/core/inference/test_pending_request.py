"""A request on its way through the engine."""

from __future__ import annotations

import pytest

from trident.core.inference.pending_request import CollectedFlushes, Deferred, Flush, PendingRequest, flush
from trident.core.inference.request import InferenceRequest


def test_cancel_tells_the_engine_that_asked_for_it() -> None:
    told: list[PendingRequest] = []
    pending = PendingRequest(InferenceRequest("m", []), lambda response: None)
    pending.cancel()
    assert pending.cancelled
    pending.on_cancel = told.append
    pending.cancel()
    assert told == [pending]


def test_run_makes_each_call_once_and_calls_added_meanwhile() -> None:
    deferred = Deferred()
    made: list[str] = []

    def first() -> None:
        made.append("first")
        deferred.add(second)

    def second() -> None:
        made.append("second")

    deferred.add(first)
    deferred.add(first)
    assert made == []
    deferred.run()
    assert made == ["first", "second"]
    deferred.run()
    assert len(made) == 2


class Callers:
    """Two callers who note that they are told to send."""

    def __init__(self) -> None:
        self.told: list[str] = []
        # One object for all calls, as callers have it.
        self.a: Flush = lambda: self.told.append("a")
        self.b: Flush = lambda: self.told.append("b")


def test_each_caller_is_told_once_and_at_once() -> None:
    callers = Callers()
    flush([callers.a, None, callers.a])
    assert callers.told == ["a"]
    flush([callers.a])
    assert callers.told == ["a", "a"]


def test_callers_are_told_at_the_end_of_one_flush() -> None:
    callers = Callers()
    with CollectedFlushes():
        flush([callers.a])
        flush([callers.b, callers.a])
        assert callers.told == []
    assert sorted(callers.told) == ["a", "b"]
    flush([callers.b])
    assert len(callers.told) == 3


def test_an_error_keeps_no_caller_waiting() -> None:
    callers = Callers()

    def deliver() -> None:
        with CollectedFlushes():
            flush([callers.a])
            raise KeyError

    with pytest.raises(KeyError):
        deliver()
    assert callers.told == ["a"]
