"""A link of a front end without a hub."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

from trident.core.remote.connection import LinkHandler
from trident.core.waiting import ThreadWaiter, Waiter

_LOOK_SECONDS = 0.05


class ThreadLink:
    """Drives the connection on a native thread, as a front end does on its hub."""

    def __init__(self) -> None:
        self._handler: LinkHandler | None = None
        self._awake, self._waker = socket.socketpair()
        self._awake.setblocking(False)
        self._waker.setblocking(False)
        self._asked = False
        self._is_closing = False
        self._own_thread = threading.Thread(target=self._drive, name="trident-engine-link", daemon=True)

    def start(self, handler: LinkHandler) -> None:
        self._handler = handler
        self._own_thread.start()

    def wake(self) -> None:
        if not self._asked:
            self._asked = True
            self._signal()

    def waiter(self) -> Waiter:
        return ThreadWaiter()

    def close(self) -> None:
        self._is_closing = True
        self._signal()
        if self._own_thread.is_alive():
            self._own_thread.join()
        self._awake.close()
        self._waker.close()

    def _signal(self) -> None:
        with contextlib.suppress(OSError):  # full of signals, or closed: memory may be freed even after `close`
            self._waker.send(b"\0")

    def _drive(self) -> None:
        handler = self._handler
        assert handler is not None
        while not self._is_closing:
            handler.look()
            with selectors.DefaultSelector() as selector:
                sock = handler.sock
                selector.register(self._awake, selectors.EVENT_READ)
                if sock is not None:
                    write = selectors.EVENT_WRITE if handler.wants_to_write else 0
                    selector.register(sock, selectors.EVENT_READ | write)
                ready = {key.fileobj: events for key, events in selector.select(_LOOK_SECONDS)}
            if self._awake in ready:
                # In this order: a signal that this takes must not leave `_asked` set.
                self._awake.recv(4096)
                self._asked = False
                handler.flush()
            events = ready.get(sock, 0) if sock is not None else 0
            if events & selectors.EVENT_WRITE:
                handler.flush()
            if events & selectors.EVENT_READ:
                handler.read()
