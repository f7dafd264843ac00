"""The link between a front end and the engine, on a real hub and real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import gevent

from tests.unit.core.waiting.hub_thread import run_on_hub, until
from trident.app.worker.worker import GeventLink


class Engine:
    """The connection that the link drives. It records its calls."""

    def __init__(self) -> None:
        self.sock, self.peer = socket.socketpair()
        self.sock.setblocking(False)
        self.wants_to_write = False
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.received = b""
        self.on_read: Callable[[], None] = lambda: None

    def read(self) -> None:
        self._note("read")
        self.received += self.sock.recv(100)
        self.on_read()

    def flush(self) -> None:
        self._note("flush")

    def look(self) -> None:
        self._note("look")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.get_ident())

    def close(self) -> None:
        self.sock.close()
        self.peer.close()


def on_a_hub(test: Callable[[GeventLink, Engine], None]) -> None:
    """Run `test` in a greenlet of a new hub, with a link that drives an engine; fail if it hangs or raises."""

    def run(hub: object) -> None:
        engine = Engine()
        link = GeventLink()
        link.start(engine)
        try:
            test(link, engine)
            assert engine.threads == {threading.get_ident()}
        finally:
            link.close()
            engine.close()

    run_on_hub(run)


# --- reading


def test_the_engine_is_read_before_the_clients() -> None:
    """If bytes of both arrive at the same time, the engine's state is known when a client asks for it."""

    def test(link: GeventLink, engine: Engine) -> None:
        loop = gevent.get_hub().loop
        heard: list[str] = []
        engine.on_read = lambda: heard.append("engine")
        pairs = [socket.socketpair() for _ in range(20)]
        watchers = []
        for client, _ in pairs:
            watcher = loop.io(client.fileno(), 1)

            def hear(watcher: object = watcher) -> None:
                heard.append("client")
                watcher.stop()  # type: ignore[attr-defined]

            watcher.start(hear)
            watchers.append(watcher)
        gevent.sleep(0)  # the loop watches all of them
        for _, peer in pairs[:10]:
            peer.send(b"?")
        engine.peer.send(b"!")
        for _, peer in pairs[10:]:
            peer.send(b"?")
        until(lambda: len(heard) == 21)
        for watcher, pair in zip(watchers, pairs, strict=True):
            watcher.close()
            for each in pair:
                each.close()
        assert heard[0] == "engine"

    on_a_hub(test)


# --- sending


def test_a_full_socket_is_flushed_when_it_is_writable() -> None:
    def test(link: GeventLink, engine: Engine) -> None:
        engine.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with suppress(BlockingIOError):
            while True:
                engine.sock.send(bytes(4096))
        engine.wants_to_write = True
        link.wake()
        until(lambda: "flush" in engine.calls)
        looks = engine.calls.count("look")
        until(lambda: engine.calls.count("look") > looks + 1)
        assert engine.calls.count("flush") == 1  # the socket is full: no flush in vain
        engine.peer.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                engine.peer.recv(1 << 16)
        until(lambda: engine.calls.count("flush") > 1)
        engine.wants_to_write = False
        link.wake()
        gevent.sleep(0.01)
        flushes = engine.calls.count("flush")
        looks = engine.calls.count("look")
        until(lambda: engine.calls.count("look") > looks + 1)
        assert engine.calls.count("flush") == flushes

    on_a_hub(test)
