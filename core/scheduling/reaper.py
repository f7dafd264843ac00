"""The thread that answers in time what waits too long: requests in a queue, sequences without a slot or a request."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Reaper:
    """Calls `look` when it is woken, and after the seconds that the last look returned (None: not by itself).

    `look` must not raise. The thread refers to its scheduler only through `look`, which `close` drops.
    """

    def __init__(self, model: str, look: Callable[[], float | None]) -> None:
        self._look: Callable[[], float | None] | None = look
        self._wake = threading.Event()
        self._own_thread = threading.Thread(target=self._run, name=f"trident-{model}-reaper", daemon=True)

    def start(self) -> None:
        self._own_thread.start()

    def wake(self) -> None:
        """Look soon. Any thread."""
        self._wake.set()

    def close(self, timeout_s: float | None) -> bool:
        """Look no more, and end the thread. Returns whether it ended."""
        self._look = None
        self._wake.set()
        if self._own_thread.ident is not None and self._own_thread is not threading.current_thread():
            self._own_thread.join(timeout_s)
        return not self._own_thread.is_alive()

    def _run(self) -> None:
        while (look := self._look) is not None:
            pause_s = look()
            del look
            self._wake.wait(None if pause_s is None else min(pause_s, threading.TIMEOUT_MAX))
            self._wake.clear()
