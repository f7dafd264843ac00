"""How many reads from storages may run at once, over all models that are being fetched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from core.repository.download.backoff import GivenUp

_LOOK_EVERY = 0.2


class RequestSlots:
    """`count` slots for everybody, and one more for each fetch: a storage that only drips must not stop the others."""

    def __init__(self, count: int) -> None:
        self._shared = threading.BoundedSemaphore(count)

    def of_fetch(self, stop: threading.Event) -> FetchSlots:
        return FetchSlots(self._shared, stop)


class FetchSlots:
    """The slots as one fetch sees them; its threads ask."""

    def __init__(self, shared: threading.BoundedSemaphore, stop: threading.Event) -> None:
        self._shared = shared
        self._own = threading.BoundedSemaphore(1)
        self._stop = stop

    @contextmanager
    def one(self) -> Iterator[None]:
        """Wait for a slot, and have it in the block. Raises GivenUp when the fetch is told to stop."""
        slot = self._acquire()
        try:
            yield
        finally:
            slot.release()

    def _acquire(self) -> threading.BoundedSemaphore:
        while not self._stop.is_set():
            if self._own.acquire(blocking=False):
                return self._own
            if self._shared.acquire(timeout=_LOOK_EVERY):
                return self._shared
        raise GivenUp
