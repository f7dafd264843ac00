"""The limit on concurrent reads from storages, over all models that are being fetched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from core.repository.download.backoff import GivenUp

_LOOK_EVERY = 0.2


class RequestSlots:
    """`count` shared slots, plus one for each fetch, so that a very slow storage does not stop the other fetches."""

    def __init__(self, count: int) -> None:
        self._shared = threading.BoundedSemaphore(count)

    def of_fetch(self, stop: threading.Event) -> FetchSlots:
        return FetchSlots(self._shared, stop)


class FetchSlots:
    """The slots that one fetch may use; its threads take them."""

    def __init__(self, shared: threading.BoundedSemaphore, stop: threading.Event) -> None:
        self._shared = shared
        self._own = threading.BoundedSemaphore(1)
        self._stop = stop

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a slot in the block, after waiting for one. Raises GivenUp when the fetch is told to stop."""
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
