"""Streams of responses, for a native thread and for a greenlet, on a scheduler that answers through senders."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import gevent
import pytest

from tests.unit.core.scheduling.scheduler_bench import LaterBench, described, later_benches, text
from tests.unit.core.waiting.hub_thread import run_on_hub
from tests.unit.fake_engine import FakeEngine, FakeModel
from tests.waiting import until
from trident.core.errors import DeadlineExceeded, RequestCancelled
from trident.core.frontend.bridge import Bridge, ResponseStreams, ThreadBridge
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.options import WindowLimits

WINDOW = WindowLimits(responses=4, nbytes=64)
Test = Callable[[Bridge, LaterBench, FakeModel], None]


class Engine(FakeEngine):
    def __init__(self, bench: LaterBench) -> None:
        super().__init__()
        self._bench = bench

    def submit(self, pending: PendingRequest) -> None:
        pending.on_cancel = None
        self._bench.scheduler.submit(pending)


def on_thread(test: Test) -> None:
    with later_benches() as make:
        bench = make(window=WINDOW)
        test(ThreadBridge(), bench, Engine(bench).model("simple"))


def on_hub(test: Test) -> None:
    def run(hub: object) -> None:
        bridge = GeventBridge(hub)
        try:
            with later_benches() as make:
                bench = make(window=WINDOW)
                test(bridge, bench, Engine(bench).model("simple"))
        finally:
            bridge.close()

    run_on_hub(run)


def both(test: Test) -> Callable[[Callable[[Test], None]], None]:
    """Run `test` on a native thread, and as a greenlet."""

    @pytest.mark.parametrize("on", [on_thread, on_hub])
    def run(on: Callable[[Test], None]) -> None:
        on(test)

    run.__name__ = test.__name__
    return run


def request(id: str = "a") -> InferenceRequest:
    return InferenceRequest("simple", [], id=id)


def sending(bench: LaterBench, *said: str, ids: str = "a") -> threading.Thread:
    """A native thread that sends each text to all requests, held back by any one's window, and then the end."""

    def send() -> None:
        senders = [bench.backend.sender(id) for id in ids]
        room = threading.Event()
        for sender in senders:
            sender.watch(room.set)
        for one in said:
            for sender in senders:
                while sender.is_full:
                    assert room.wait(60)
                    room.clear()
                sender.send(text(one))
        for sender in senders:
            sender.send(None, final=True)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@both
def test_a_stream_gives_all_responses_in_their_order(bridge: Bridge, bench: LaterBench, model: FakeModel) -> None:
    thread = sending(bench, *map(str, range(100)))
    stream = bridge.stream(model, request(), lambda: False)
    assert [described(each) for each in stream] == [*(f"a:{number}" for number in range(100)), "a:-."]
    assert stream.take() == []
    thread.join()


@both
def test_streams_of_one_model_do_not_wait_for_each_other(bridge: Bridge, bench: LaterBench, model: FakeModel) -> None:
    said = [str(number) * 64 for number in range(9)]  # each one fills the window
    thread = sending(bench, *said, ids="ab")
    streams = ResponseStreams(bridge.mailbox())
    for id in "ab":
        streams.add(partial(bridge.stream, model, request(id), lambda: False))
    found = [(number, described(each)) for number, each in streams]
    for number, id in enumerate("ab"):
        assert [text for at, text in found if at == number] == [*(f"{id}:{one}" for one in said), f"{id}:-."]
    thread.join()


@both
def test_response_is_acknowledged_when_the_next_one_is_requested(
    bridge: Bridge, bench: LaterBench, model: FakeModel
) -> None:
    stream = bridge.stream(model, request())
    gevent.sleep(0)
    sender = bench.backend.sender("a")
    for said in "1234":
        sender.send(text(said))
    next(stream)
    assert sender.is_full
    next(stream)
    assert not sender.is_full
    sender.send(None, final=True)


@pytest.mark.slow
@pytest.mark.parametrize("on", [on_thread, on_hub])
@pytest.mark.parametrize("error", [None, DeadlineExceeded("too late")])
def test_stream_ends_when_its_client_disconnects(on: Callable[[Test], None], error: DeadlineExceeded | None) -> None:
    def test(bridge: Bridge, bench: LaterBench, model: FakeModel) -> None:
        is_gone = False

        def client_gone() -> bool:
            if is_gone and error is not None:
                raise error
            return is_gone

        stream = bridge.stream(model, request(), client_gone)
        gevent.sleep(0)
        sender = bench.backend.sender("a")
        sender.send(text("1"))
        assert described(next(stream)) == "a:1"
        is_gone = True
        (last,) = stream
        assert isinstance(last.error, RequestCancelled if error is None else DeadlineExceeded)
        assert last.final
        assert sender.is_cancelled
        sender.send(None, final=True)

    on(test)


def test_the_watch_of_the_hub_forgets_streams_that_ended() -> None:
    def test(bridge: Bridge, bench: LaterBench, model: FakeModel) -> None:
        assert isinstance(bridge, GeventBridge)
        thread = sending(bench, "1")
        assert len(list(bridge.stream(model, request(), lambda: False))) == 2
        thread.join()
        until(lambda: not bridge._watch._waiting, sleep=gevent.sleep)

    on_hub(test)
