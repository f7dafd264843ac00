from __future__ import annotations

import gevent

from trident.app.worker.io import SendBatching

LIMIT_S = 60.0


def test_all_responses_are_made_before_the_first_one_is_sent() -> None:
    turns = SendBatching(gevent.get_hub())
    events: list[str] = []

    def answer(name: str) -> None:
        events.append(f"made {name}")
        turns.wait()
        events.append(f"sent {name}")

    gevent.joinall([gevent.spawn(answer, name) for name in "abc"], timeout=LIMIT_S, raise_error=True)
    assert events == ["made a", "made b", "made c", "sent a", "sent b", "sent c"]


def test_a_greenlet_that_waits_again_gets_another_turn() -> None:
    turns = SendBatching(gevent.get_hub())
    sent: list[str] = []

    def stream(name: str) -> None:
        for number in range(3):
            turns.wait()
            sent.append(f"{name}{number}")

    gevent.joinall([gevent.spawn(stream, name) for name in "ab"], timeout=LIMIT_S, raise_error=True)
    assert sent == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_a_killed_greenlet_is_not_woken_from_its_next_wait() -> None:
    turns = SendBatching(gevent.get_hub())
    events: list[str] = []

    def interrupted() -> None:
        try:
            turns.wait()
        except gevent.GreenletExit:
            gevent.sleep(0.02)
            events.append("slept")

    def other() -> None:
        turns.wait()
        events.append("sent")

    killed, going = gevent.spawn(interrupted), gevent.spawn(other)
    gevent.get_hub().loop.run_callback(killed.throw)  # between its wait and its turn
    gevent.joinall([killed, going], timeout=LIMIT_S, raise_error=True)
    assert events == ["sent", "slept"]
