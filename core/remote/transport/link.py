"""What drives a front end's connection to the engine: who watches its socket, and how its callers wait.

Link            the protocol
├── ThreadLink     a native thread watches, and callers wait on locks
└── GeventLink     the hub watches, and callers are greenlets (app/worker/gevent_link.py)
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Protocol

from core.waiting.waiter import ThreadWaiter, Waiter

_LOOK_SECONDS = 0.05


class Linked(Protocol):
    """What a link drives, always on the link's thread."""

    @property
    def sock(self) -> socket.socket | None:
        """The connected socket, None while there is none."""

    @property
    def wants_to_write(self) -> bool:
        """Whether something could not be sent yet."""

    def read(self) -> None:
        """Read what has arrived."""

    def flush(self) -> None:
        """Send what was collected, as much as the socket takes."""

    def look(self) -> None:
        """Connect if there is no connection, and give up what has waited too long. Called about every 50 ms."""


class Link(Protocol):
    def start(self, linked: Linked) -> None:
        """Begin to drive. Called once."""

    def wake(self) -> None:
        """Have `flush` called soon, once for all calls until then. Any thread."""

    def waiter(self) -> Waiter:
        """For the calling thread or greenlet, which waits until the connection settles it."""

    def close(self) -> None:
        """Stop driving. After this returns `linked` is no longer called."""


class ThreadLink:
    """A link with its own native thread: for servers without a hub, and for tests."""

    def __init__(self) -> None:
        self._linked: Linked | None = None
        self._awake, self._waker = socket.socketpair()
        self._awake.setblocking(False)
        self._waker.setblocking(False)
        self._asked = False
        self._is_closing = False
        self._own_thread = threading.Thread(target=self._drive, name="trident-engine-link", daemon=True)

    def start(self, linked: Linked) -> None:
        self._linked = linked
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
        linked = self._linked
        assert linked is not None
        while not self._is_closing:
            linked.look()
            with selectors.DefaultSelector() as selector:
                sock = linked.sock
                selector.register(self._awake, selectors.EVENT_READ)
                if sock is not None:
                    write = selectors.EVENT_WRITE if linked.wants_to_write else 0
                    selector.register(sock, selectors.EVENT_READ | write)
                ready = {key.fileobj: events for key, events in selector.select(_LOOK_SECONDS)}
            if self._awake in ready:
                # In this order: a signal that this takes must not leave `_asked` set.
                self._awake.recv(4096)
                self._asked = False
                linked.flush()
            events = ready.get(sock, 0) if sock is not None else 0
            if events & selectors.EVENT_WRITE:
                linked.flush()
            if events & selectors.EVENT_READ:
                linked.read()
