from __future__ import annotations

import threading
from typing import Any

import gevent

from tests.unit.core.waiting.hub_thread import LIMIT_S, run_on_hub, until
from trident.core.waiting.hub import HubSignal


def test_many_signals_are_one_call_on_the_hub() -> None:
    def test(hub: Any) -> None:
        calls: list[int] = []
        signal = HubSignal(hub, lambda: calls.append(threading.get_ident()))
        for _ in range(100):
            signal.send()
        assert calls == []
        until(lambda: calls)
        gevent.sleep(0)
        assert calls == [threading.get_ident()]
        signal.send()
        until(lambda: len(calls) == 2)
        signal.close()

    run_on_hub(test)


def test_no_signal_of_another_thread_is_lost() -> None:
    """Each signal follows a write: the last call must see the last write."""

    def test(hub: Any) -> None:
        sent, seen = 0, 0

        def look() -> None:
            nonlocal seen
            seen = sent

        signal = HubSignal(hub, look)

        def send() -> None:
            nonlocal sent
            for _ in range(2000):
                sent += 1
                signal.send()

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: seen == 2000)
        thread.join(LIMIT_S)
        signal.close()

    run_on_hub(test)


def test_a_signal_after_io_calls_too() -> None:
    def test(hub: Any) -> None:
        calls: list[int] = []
        signal = HubSignal(hub, lambda: calls.append(1))
        signal.send_after_io()
        until(lambda: calls)
        signal.close()

    run_on_hub(test)


def test_signals_after_the_end_do_nothing() -> None:
    def test(hub: Any) -> None:
        calls: list[int] = []
        signal = HubSignal(hub, lambda: calls.append(1))
        signal.close()
        signal.send()
        thread = threading.Thread(target=signal.send)
        thread.start()
        thread.join(LIMIT_S)
        gevent.sleep(0.001)
        assert calls == []

    run_on_hub(test)
