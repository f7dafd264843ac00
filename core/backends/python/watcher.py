"""One thread that watches the files of all stub processes: their sockets between executions, what models print, and
the ends of the processes."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable

_log = logging.getLogger("trident.backends.python")

Call = Callable[[], None]


class FileWatcher:
    """Starts its thread with the first file, and ends it with the last one. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[int, WatchedFile] = {}
        self._epoll: select.epoll | None = None
        self._wake = -1

    def watch(self, descriptor: int, on_readable: Call, on_writable: Call | None = None) -> WatchedFile:
        """Watch a file, which is not armed yet. The calls are made on the watcher's thread, and must be quick."""
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                self._wake = os.eventfd(0, os.EFD_CLOEXEC)
                self._epoll.register(self._wake, select.EPOLLIN)
                thread = threading.Thread(
                    target=self._run, args=(self._epoll, self._wake), name="trident-python-models", daemon=True
                )
                thread.start()
            file = WatchedFile(self, self._epoll, descriptor, on_readable, on_writable)
            for each in file.descriptors:
                self._files[each] = file
            return file

    def remove(self, file: WatchedFile) -> None:
        with self._lock:
            for each in file.descriptors:
                if self._files.get(each) is file:
                    del self._files[each]
            if not self._files and self._epoll is not None:
                os.eventfd_write(self._wake, 1)
                self._epoll = None

    def _run(self, epoll: select.epoll, wake: int) -> None:
        try:
            while True:
                for descriptor, events in epoll.poll():
                    if descriptor == wake:
                        return
                    file = self._files.get(descriptor)
                    if file is not None:
                        try:
                            file.call(descriptor, events)
                        except Exception:
                            _log.exception("a frame or a line of a Python model's process could not be read")
        finally:
            epoll.close()
            os.close(wake)


class WatchedFile:
    """A file that the watcher watches. Any thread.

    Writing is watched on a duplicate, because epoll knows each file once.
    """

    def __init__(
        self, watcher: FileWatcher, epoll: select.epoll, descriptor: int, on_readable: Call, on_writable: Call | None
    ) -> None:
        self._watcher = watcher
        self._epoll = epoll
        self._on_readable = on_readable
        self._on_writable = on_writable
        self._descriptor = descriptor
        self._duplicate = -1 if on_writable is None else os.dup(descriptor)
        self._lock = threading.Lock()
        self._has_ended = False
        self.descriptors = [descriptor] if on_writable is None else [descriptor, self._duplicate]
        epoll.register(descriptor, select.EPOLLONESHOT)
        if on_writable is not None:
            epoll.register(self._duplicate, select.EPOLLONESHOT)

    def arm(self) -> None:
        """Call `on_readable` once, as soon as there is something to read."""
        self._modify(self._descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def disarm(self) -> None:
        """Do not call `on_readable`. A call that has begun goes on."""
        self._modify(self._descriptor, select.EPOLLONESHOT)

    def want_to_write(self, wanted: bool) -> None:
        """Whether to call `on_writable` as long as the file takes something."""
        self._modify(self._duplicate, select.EPOLLOUT if wanted else select.EPOLLONESHOT)

    def _modify(self, descriptor: int, events: int) -> None:
        with self._lock:
            if not self._has_ended:
                self._epoll.modify(descriptor, events)

    def call(self, descriptor: int, events: int) -> None:
        if descriptor == self._descriptor:
            self._on_readable()
        elif self._on_writable is not None:
            self._on_writable()

    def end(self) -> None:
        """Watch it no longer. To be called before it is closed."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            for each in self.descriptors:
                self._epoll.unregister(each)
            if self._duplicate >= 0:
                os.close(self._duplicate)
            # No cycle: what is watched refers to this.
            self._on_readable, self._on_writable = _nothing, None
        self._watcher.remove(self)


def _nothing() -> None: ...
