"""Requests that a model answers through senders: later, more than once, from any thread; and the order of responses."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.unit.core.scheduling.scheduler_bench import (
    LIMIT_S,
    LaterBench,
    MakeLaterBench,
    batching,
    later_benches,
    text,
)
from tests.waiting import until
from trident.core.backends.backend import BackendInstance
from trident.core.errors import BackendFailed, ErrorCode
from trident.core.inference.pending_request import DeferredOutcome, ResponseSender
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import Origin, Outputs
from trident.core.observability.statistics import FailureReason
from trident.core.options import WindowLimits


@pytest.fixture
def make_later() -> Iterator[MakeLaterBench]:
    with later_benches() as make:
        yield make


def failures(bench: LaterBench, reason: FailureReason) -> int:
    return bench.statistics.snapshot().request_failures[reason]


def test_removing_an_instance_waits_for_its_final_responses(make_later: MakeLaterBench) -> None:
    bench = make_later(instances=2)
    for id in "ab":
        bench.submit(id)
    until(lambda: sum(len(backend.senders) for backend in bench.backends) == 2)
    if not bench.backends[0].senders:
        bench.backends.reverse()
    leaving: BackendInstance = bench.backends[0]
    removed = threading.Event()

    def remove() -> None:
        bench.scheduler.remove(leaving)()
        removed.set()

    removing = threading.Thread(target=remove)
    removing.start()
    assert not removed.wait(0.05)
    for id in list(bench.backends[0].senders):
        bench.backends[0].sender(id).send(None, final=True)
    removing.join(LIMIT_S)
    assert removed.is_set()


def test_responses_after_the_final_one_are_dropped(
    make_later: MakeLaterBench, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(request: InferenceRequest, sender: ResponseSender) -> Outputs | Exception | DeferredOutcome:
        sender.send(text("only"), final=True)
        sender.send(text("late"))
        sender.send(None, final=True)
        return text("outcome")

    bench = make_later(answer=answer)
    bench.submit("a")
    bench.submit("b")
    assert bench.scheduler.drain(LIMIT_S)
    assert bench.wait(2) == ["a:only.", "b:only."]
    assert bench.statistics.snapshot().request_success == 2
    assert [record.message for record in caplog.records] == [
        "model 'm' answered a request again after its final response; such responses are dropped"
    ]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_cancelled_error_counts_as_cancellation_only_if_a_client_cancelled(
    make_later: MakeLaterBench, is_cancelled: bool
) -> None:
    bench = make_later()
    for id, code in (("a", ErrorCode.CANCELLED), ("b", ErrorCode.INTERNAL)):
        request = bench.submit(id)
        sender = bench.backend.sender(id)
        if is_cancelled:
            request.cancel()
        sender.send(None, final=True, error=BackendFailed("no", code=code))
    bench.wait(2)
    cancelled = Origin.CANCELLED if is_cancelled else Origin.FAILED
    assert [answer.origin for answer in bench.answers] == [cancelled, Origin.FAILED]
    assert failures(bench, FailureReason.CANCELED) == is_cancelled
    assert failures(bench, FailureReason.BACKEND) == 2 - is_cancelled


def test_a_cancelled_request_gets_only_its_final_response(make_later: MakeLaterBench) -> None:
    bench = make_later(window=WindowLimits(responses=1))
    request = bench.submit("a")
    sender = bench.backend.sender("a")
    seen: list[bool] = []
    sender.watch(lambda: seen.append(sender.is_cancelled))
    sender.send(text("1"))
    assert sender.is_full
    request.cancel()
    assert seen == [True]
    assert not sender.is_full
    sender.send(text("2"))
    sender.send(None, final=True)
    assert bench.wait(2) == ["a:1", "a:-."]


@pytest.mark.parametrize("window", [WindowLimits(responses=2), WindowLimits(nbytes=4)])
def test_response_window_is_full_until_responses_are_acknowledged(
    make_later: MakeLaterBench, window: WindowLimits
) -> None:
    bench = make_later(window=window)
    request = bench.submit("a")
    sender = bench.backend.sender("a")
    room: list[bool] = []
    sender.watch(lambda: room.append(sender.is_full))
    for said in ("aa", "bb", "cc"):
        sender.send(text(said))
    assert sender.is_full
    request.take()
    assert (sender.is_full, room) == (True, [])
    request.take()
    assert (sender.is_full, room) == (False, [False])
    sender.send(None, final=True)
    request.take(9)
    assert len(bench.wait(4)) == 4


def test_an_earlier_request_streams_while_later_ones_wait_for_its_end(make_later: MakeLaterBench) -> None:
    bench = make_later(batching(1, ordered=True))
    bench.submit("a")
    bench.submit("b")
    first, second = bench.backend.sender("a"), bench.backend.sender("b")
    second.send(text("1"))
    first.send(text("1"))
    second.send(text("2"))
    assert bench.wait(1) == ["a:1"]
    first.send(text("2"), final=True)
    second.send(None, final=True)
    assert bench.wait(5) == ["a:1", "a:2.", "b:1", "b:2", "b:-."]
