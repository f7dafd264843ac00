from __future__ import annotations

import pytest

from tests.unit.core.grpc.grpc_client import Client, with_client
from tests.unit.core.waiting.hub_thread import until
from tests.unit.fake_engine import FakeEngine
from trident.core.lifecycle.state import Phase, ServingPhase

WATCH = "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
UNAVAILABLE = 14


@pytest.mark.slow
def test_each_change_of_the_readiness_is_told_until_the_server_stops() -> None:
    engine = FakeEngine()
    engine.ready = False

    def test(client: Client) -> None:
        watches = [client.send(WATCH) for _ in range(2)]
        assert [watch.messages for watch in watches] == [[NOT_SERVING]] * 2
        engine.ready = True
        until(lambda: all(len(watch.messages) == 2 for watch in watches))
        engine.serving = ServingPhase(name=Phase.EXITING)
        until(lambda: all(watch.releases for watch in watches))
        for watch in watches:
            assert watch.messages == [NOT_SERVING, SERVING, NOT_SERVING]
            assert (watch.status, watch.message) == (UNAVAILABLE, "Server exiting")

    with_client(engine, test)


def test_nobody_looks_any_more_when_the_last_watcher_has_gone() -> None:
    def test(client: Client) -> None:
        watch = client.send(WATCH)
        assert watch.receiver is not None
        watch.receiver.cancel()
        assert watch.releases == 1
        readiness = client.application.front_end.readiness
        until(lambda: not readiness._is_looking)
        assert readiness._watchers == {}

    with_client(FakeEngine(), test)


def test_a_client_that_does_not_read_is_told_the_latest_state_only() -> None:
    engine = FakeEngine()

    def test(client: Client) -> None:
        watch = client.begin(WATCH, window=0)
        client.end(client.feed(watch, b"\0\0\0\0\0"))
        readiness = client.application.front_end.readiness
        for ready in (False, True, False):
            engine.ready = ready
            readiness.expire()
        assert watch.messages == [SERVING]
        watch.take_all()
        until(lambda: len(watch.messages) == 2)
        assert watch.messages == [SERVING, NOT_SERVING]

    with_client(engine, test)
