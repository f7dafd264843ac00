"""The gevent bridge with a real hub and real threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import gevent
import gevent.event
import gevent.socket
import pytest

from tests.unit.core.waiting.hub_thread import LIMIT_S, hub_test
from tests.unit.fake_engine import FakeEngine, empty_response
from tests.waiting import until
from trident.core.errors import BackendFailed, DeadlineExceeded, RequestCancelled
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OnResponse


def on_a_hub(test: Callable[[GeventBridge], None]) -> Callable[[], None]:
    """The test that runs `test` with a bridge, as a greenlet of a new hub."""

    def run(hub: Any) -> None:
        bridge = GeventBridge(hub)
        try:
            test(bridge)
        finally:
            bridge.close()

    return hub_test(update_wrapper(run, test, updated=()))


@on_a_hub
def test_let_others_run_switches_to_greenlets_and_ready_sockets(bridge: GeventBridge) -> None:
    order: list[str] = []
    left, right = gevent.socket.socketpair()
    with left, right:
        reading = gevent.spawn(lambda: order.append(right.recv(10).decode()))
        gevent.idle()
        left.sendall(b"socket")
        running = gevent.spawn(order.append, "greenlet")
        for _ in range(2):
            bridge.let_others_run()
        order.append("work")
        gevent.joinall([reading, running], timeout=LIMIT_S)
    assert sorted(order[:2]) == ["greenlet", "socket"]
    assert order[2] == "work"


def request(name: str = "simple") -> InferenceRequest:
    return InferenceRequest(name, [], id=name)


@on_a_hub
def test_requests_that_arrive_together_are_submitted_together(bridge: GeventBridge) -> None:
    events: list[str] = []

    class Noting(FakeEngine):
        def submit(self, pending: PendingRequest) -> None:
            events.append(f"submit {pending.request.id}")
            pending.on_response(InferenceResponse("simple", 1, [], id=pending.request.id))

    engine = Noting()

    def connection(name: str) -> None:
        events.append(f"read {name}")
        bridge.infer(engine.model("simple"), request(name))

    gevent.joinall([gevent.spawn(connection, name) for name in "abc"], timeout=LIMIT_S)
    assert events == ["read a", "read b", "read c", "submit a", "submit b", "submit c"]


@on_a_hub
def test_cached_response_needs_no_greenlet_switch(bridge: GeventBridge) -> None:
    submitted: list[str] = []

    class Engine(FakeEngine):
        def submit(self, pending: PendingRequest) -> None:
            submitted.append(pending.request.id)
            pending.on_response(empty_response(pending.request))

    model = Engine().model("simple")
    model.cached_answer = lambda request: empty_response(request) if request.id == "known" else None
    passed: list[str] = []
    other = gevent.spawn(passed.append, "another greenlet")
    assert bridge.infer(model, request("known")).id == "known"
    assert (passed, submitted) == ([], [])
    assert bridge.infer(model, request("simple")).id == "simple"
    assert submitted == ["simple"]
    other.join(LIMIT_S)


@on_a_hub
def test_a_batch_signals_the_hub_once(bridge: GeventBridge) -> None:
    waiting: list[OnResponse] = []
    answered = InferenceResponse("simple", 1, [])

    class Batching(FakeEngine):
        def submit(self, pending: PendingRequest) -> None:
            waiting.append(pending.on_response)

    wake = bridge.inbox._async = Counting(bridge.inbox._async)
    connections = [gevent.spawn(bridge.infer, Batching().model("simple"), request()) for _ in range(16)]
    until(lambda: len(waiting) == 16, sleep=gevent.sleep)
    # The hub does not run in between, because this greenlet does not yield.
    batch = threading.Thread(target=lambda: [on_response(answered) for on_response in waiting])
    batch.start()
    batch.join(LIMIT_S)
    gevent.joinall(connections, timeout=LIMIT_S)
    assert [connection.value for connection in connections] == [answered] * 16
    assert wake.signals == 1


class Counting:
    """A watcher that counts its signals."""

    def __init__(self, watcher: Any) -> None:
        self._watcher = watcher
        self.stop = watcher.stop
        self.close = watcher.close
        self.signals = 0

    def send(self) -> None:
        self.signals += 1
        self._watcher.send()


@on_a_hub
def test_a_slow_request_is_submitted_on_another_thread(bridge: GeventBridge) -> None:
    threads: list[threading.Thread] = []

    class Noted(FakeEngine):
        def submit(self, pending: PendingRequest) -> None:
            threads.append(threading.current_thread())
            super().submit(pending)

    engine = Noted()
    assert bridge.infer(engine.model("simple"), request("slow"), is_slow=True).id == "slow"
    for streamed in (False, True):
        responses: list[InferenceResponse] = []
        bridge.submit(engine.model("simple"), request("slow"), responses.append, streamed=streamed, is_slow=True)
        until(lambda responses=responses: responses, sleep=gevent.sleep)
    assert len(threads) == 3
    assert threading.current_thread() not in threads


@on_a_hub
def test_slow_request_of_a_disconnected_client_is_not_submitted(bridge: GeventBridge) -> None:
    engine = FakeEngine()
    hold = threading.Event()
    busy = [gevent.spawn(bridge.run, hold.wait, LIMIT_S) for _ in range(8)]
    slow = gevent.spawn(bridge.infer, engine.model("simple"), request(), lambda: True, is_slow=True)
    until(lambda: bridge._watch._looks >= 3, sleep=gevent.sleep)
    hold.set()
    assert isinstance(slow.get(timeout=LIMIT_S).error, RequestCancelled)
    gevent.joinall(busy, timeout=LIMIT_S)
    assert engine.calls == []


@on_a_hub
def test_several_responses_become_an_error(bridge: GeventBridge) -> None:
    class Chatty(FakeEngine):
        def submit(self, pending: PendingRequest) -> None:
            for final in (False, False, True):
                pending.on_response(InferenceResponse("simple", 1, [], final=final, error=BackendFailed("part")))

    error = bridge.infer(Chatty().model("simple"), request()).error
    assert error is not None
    assert error.message == "expected a single response, got 3"


@pytest.mark.slow
@on_a_hub
def test_a_disconnected_client_cancels_its_request(bridge: GeventBridge) -> None:
    engine = FakeEngine(lambda _: None)
    gone: list[str] = []
    names = ("a", "b", "c")
    connections = {
        name: gevent.spawn(bridge.infer, engine.model("simple"), request(name), lambda n=name: n in gone)
        for name in names
    }
    gevent.sleep(0)
    gone.append("b")
    assert isinstance(connections["b"].get(timeout=LIMIT_S).error, RequestCancelled)
    assert engine.calls == [("cancel", "b")]
    gone.extend(names)
    for connection in connections.values():
        assert isinstance(connection.get(timeout=LIMIT_S).error, RequestCancelled)
    assert sorted(engine.calls) == [("cancel", name) for name in names]
    # No request waits, so the timer stops; the next request starts it again.
    until(lambda: not bridge._watch._running, sleep=gevent.sleep)
    again = gevent.spawn(bridge.infer, engine.model("simple"), request("d"), lambda: True)
    assert isinstance(again.get(timeout=LIMIT_S).error, RequestCancelled)


@on_a_hub
def test_an_expired_deadline_cancels_the_request_and_answers_at_once(bridge: GeventBridge) -> None:
    class Late(FakeEngine):
        """Answers a cancelled request only when the test does it."""

        def cancel(self, pending: PendingRequest) -> None:
            self.calls.append(("cancel", pending.request.model_name))

    def too_late() -> bool:
        raise DeadlineExceeded("too late")

    engine = Late(lambda _: None)
    given = request("a")
    late = gevent.spawn(bridge.infer, engine.model("simple"), given, too_late)
    other = gevent.spawn(bridge.infer, engine.model("simple"), request("b"), lambda: False)
    answer = late.get(timeout=LIMIT_S)
    assert isinstance(answer.error, DeadlineExceeded)
    assert engine.calls == [("cancel", "a")]
    # A late response wakes no greenlet.
    engine._pending.pop(id(given))(InferenceResponse("a", 1, []))
    (on_response,) = engine._pending.values()
    on_response(InferenceResponse("b", 1, []))
    assert other.get(timeout=LIMIT_S).model_name == "b"


@on_a_hub
def test_greenlet_that_stops_waiting_cancels_its_request(bridge: GeventBridge) -> None:
    engine = FakeEngine(lambda _: None)
    leaving = gevent.spawn(bridge.infer, engine.model("simple"), request())
    gevent.sleep(0)
    leaving.kill(gevent.Timeout(1), timeout=LIMIT_S)
    assert isinstance(leaving.exception, gevent.Timeout)
    assert engine.calls == [("cancel", "simple")]


def response(number: int) -> InferenceResponse:
    return InferenceResponse("simple", number, [])


@on_a_hub
def test_responses_keep_their_order_across_threads(bridge: GeventBridge) -> None:
    seen: list[int] = []

    class Silent(FakeEngine):
        def submit(self, pending: PendingRequest) -> None: ...

    pending = bridge.submit(Silent().model("simple"), request(), lambda each: seen.append(each.model_version))
    thread = threading.Thread(target=pending.on_response, args=(response(1),))
    thread.start()
    thread.join(LIMIT_S)
    pending.on_response(response(2))
    until(lambda: len(seen) == 2, sleep=gevent.sleep)
    assert seen == [1, 2]
