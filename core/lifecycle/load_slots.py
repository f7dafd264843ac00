"""How many versions load at the same time, and loads that wait for other loads.

A model that is being loaded may ask for the load of another one, and waits for it. Meanwhile it lends its slot, or with
one slot both would wait forever. A load that would wait for itself is refused.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from core.errors import ModelLoadFailed


class LoadSlots:
    """At most `limit` loads at once, those that wait for others not counted. Any thread."""

    def __init__(self, limit: int) -> None:
        self._slots = threading.Semaphore(max(1, limit))
        self._lock = threading.Lock()
        # The models that are being loaded, and for each the models for whose change it waits.
        self._loading: Counter[str] = Counter()
        self._waits: dict[str, Counter[str]] = {}

    @contextmanager
    def taken(self, model: str) -> Iterator[None]:
        """The load of a version of `model`. Waits for a slot."""
        with self._slots:
            with self._lock:
                self._loading[model] += 1
            try:
                yield
            finally:
                with self._lock:
                    self._loading[model] -= 1

    @contextmanager
    def lent(self, asker: str, asked: str) -> Iterator[None]:
        """The change of the model `asked` for which `asker` waits; if that is not being loaded, it has no slot to lend.

        Raises ModelLoadFailed if the change waits for the load of `asker`.
        """
        with self._lock:
            is_loading = self._loading[asker] > 0
            if is_loading:
                if self._waits_for(asked, asker):
                    raise ModelLoadFailed(
                        f"model '{asker}' cannot ask for '{asked}' while it is being loaded itself: each would wait "
                        "for the other",
                        hint="ask in `execute`, or let a client load the models one after the other",
                        model=asker,
                    )
                waits = self._waits.setdefault(asker, Counter())
                is_first = not waits
                waits[asked] += 1
        if not is_loading:
            yield
            return
        if is_first:
            self._slots.release()
        try:
            yield
        finally:
            with self._lock:
                waits[asked] -= 1
                if is_last := not +waits:
                    del self._waits[asker]
            if is_last:
                self._slots.acquire()

    def _waits_for(self, model: str, other: str) -> bool:
        return model == other or any(self._waits_for(each, other) for each in +self._waits.get(model, Counter()))
