from __future__ import annotations

import socket

import gevent

from trident.app.worker.io import ReadWatch

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


def test_the_end_of_the_connection_wakes_the_greenlet() -> None:
    ours, theirs = socket.socketpair()
    watch = ReadWatch(gevent.get_hub(), ours.fileno())
    with ours:
        waiting = gevent.spawn(watch.wait)
        gevent.sleep(0)
        theirs.close()
        gevent.joinall([waiting], timeout=LIMIT_S)
        assert waiting.successful()
        watch.close()
