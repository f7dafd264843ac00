from __future__ import annotations

import socket

import gevent

from trident.app.worker.http1.request import BodyInput
from trident.app.worker.io import ReadWatch, SendBatching

LIMIT_S = 60.0


def test_the_watch_wakes_its_greenlet_for_each_arrival_and_is_quiet_between() -> None:
    ours, theirs = socket.socketpair()
    hub = gevent.get_hub()
    watch = ReadWatch(hub, ours.fileno())
    received: list[bytes] = []

    def read_three() -> None:
        for _ in range(3):
            watch.wait()
            received.append(ours.recv(10))
            gevent.sleep(0)  # the next bytes arrive while no greenlet waits

    with ours, theirs:
        reader = gevent.spawn(read_three)
        for word in (b"a", b"b", b"c"):
            theirs.send(word)
            with gevent.Timeout(LIMIT_S):
                while not received or received[-1] != word:
                    gevent.sleep(0)
        gevent.joinall([reader], timeout=LIMIT_S)
        assert received == [b"a", b"b", b"c"]
        theirs.send(b"d")
        gevent.sleep(0.01)
        assert not watch._is_on, "a watcher without a waiting greenlet must not keep the loop busy"
        again = gevent.spawn(watch.wait)
        gevent.joinall([again], timeout=LIMIT_S)
        assert again.successful()
        watch.close()


def test_all_responses_are_made_before_the_first_one_is_sent() -> None:
    turns = SendBatching(gevent.get_hub())
    events: list[str] = []

    def answer(name: str) -> None:
        events.append(f"made {name}")
        turns.wait()
        events.append(f"sent {name}")

    gevent.joinall([gevent.spawn(answer, name) for name in "abc"], timeout=LIMIT_S, raise_error=True)
    assert events == ["made a", "made b", "made c", "sent a", "sent b", "sent c"]


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


def test_the_input_reads_as_a_file() -> None:
    source = BodyInput(memoryview(b"one\ntwo\nthree"))
    assert source.read(2) == b"on"
    assert source.readline() == b"e\n"
    assert source.read(100) == b"two\nthree"
    assert source.read() == b""
    assert list(BodyInput(memoryview(b"a\nb"))) == [b"a\n", b"b"]
    assert BodyInput(memoryview(b"abc")).read() == b"abc"
