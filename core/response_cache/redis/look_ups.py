"""The look-ups that wait for Redis, and the thread that ends those whose budget is spent."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from core.response_cache.cached_response import CachedResponse
from core.response_cache.response_cache import OnFound

_log = logging.getLogger("trident.cache")


class PendingLookUp:
    """Implements LookUp. It ends once: with what was found, by `give_up`, or because its budget is spent."""

    __slots__ = ("_look_ups", "due_s", "key", "on_found")

    def __init__(self, look_ups: LookUps, key: bytes, on_found: OnFound, due_s: float) -> None:
        self._look_ups = look_ups
        self.key = key
        self.due_s = due_s
        # None from its end on.
        self.on_found: OnFound | None = on_found

    def give_up(self) -> None:
        self.end(None)

    def end(self, found: CachedResponse | None) -> bool:
        """Whether this ended it. Any thread."""
        on_found = self._look_ups.claim(self)
        if on_found is None:
            return False
        try:
            on_found(found)
        except Exception:  # its fault must not end the thread of all the others
            _log.exception("the callback of a look-up failed")
        return True


class LookUps:
    """Any thread adds look-ups, and any may take those that nobody has taken. `budget_s` is the time that each has.

    `on_late` is told how many look-ups have spent their budget, before they end.
    """

    def __init__(self, budget_s: float, on_late: Callable[[int], None]) -> None:
        self._budget_s = budget_s
        self._on_late = on_late
        self._lock = threading.Lock()
        self._added = threading.Condition(self._lock)
        self._closed = threading.Event()
        # --- guarded by the lock. All that have not ended, and some that have, in the order of their ends.
        self._open: deque[PendingLookUp] = deque()
        self._untaken: deque[PendingLookUp] = deque()
        self._watch = threading.Thread(target=self._end_late, name="trident-cache-budget", daemon=True)
        self._watch.start()

    def add(self, key: bytes, on_found: OnFound) -> PendingLookUp:
        with self._lock:
            look_up = PendingLookUp(self, key, on_found, time.monotonic() + self._budget_s)
            if not self._open:
                self._added.notify()
            self._open.append(look_up)
            self._untaken.append(look_up)
        return look_up

    def take(self, count: int) -> list[PendingLookUp]:
        """At most `count` look-ups that nobody has taken and that have not ended, the oldest first."""
        taken: list[PendingLookUp] = []
        with self._lock:
            while self._untaken and len(taken) < count:
                look_up = self._untaken.popleft()
                if look_up.on_found is not None:
                    taken.append(look_up)
        return taken

    @property
    def waits(self) -> bool:
        """Whether there are some to take."""
        return bool(self._untaken)

    def claim(self, look_up: PendingLookUp) -> OnFound | None:
        """What to call at the end of the look-up; None if it has ended."""
        with self._lock:
            on_found, look_up.on_found = look_up.on_found, None
        return on_found

    def end_all(self) -> None:
        """End what waits as not found."""
        with self._lock:
            waiting = list(self._open)
        for look_up in waiting:
            look_up.give_up()

    def close(self) -> None:
        """End what waits, and the thread."""
        self._closed.set()
        with self._lock:
            self._added.notify()
        self._watch.join()
        self.end_all()

    def _end_late(self) -> None:
        """The body of the thread. It sleeps until the oldest is due: it wakes once in a budget, however many come."""
        while not self._closed.is_set():
            with self._lock:
                while not self._open and not self._closed.is_set():
                    self._added.wait()
                due_s = self._open[0].due_s if self._open else 0.0
            if self._closed.wait(max(0.0, due_s - time.monotonic())):
                return
            late: list[PendingLookUp] = []
            now_s = time.monotonic()
            with self._lock:
                while self._open and (self._open[0].on_found is None or self._open[0].due_s <= now_s):
                    look_up = self._open.popleft()
                    if look_up.on_found is not None:
                        late.append(look_up)
            if late:
                self._on_late(len(late))
                for look_up in late:
                    look_up.give_up()
