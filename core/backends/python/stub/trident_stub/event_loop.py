"""The event loop of a model whose `execute` or `is_ready` is a coroutine, on a thread of its own.

asyncio is imported by the first of them: it would take a tenth of the start of every process.
Source: docs/spec/python-backend.md section 4.2.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future


class EventLoop:
    """Started when it is first needed. Any thread but its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The result of `coroutine`, waited for. Raises what it raises."""
        return self.start(coroutine).result()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run `coroutine`, and return at once."""
        import asyncio

        return asyncio.run_coroutine_threadsafe(coroutine, self._running())

    def stop(self, timeout_s: float) -> None:
        """Cancel what still runs and end the thread; give up on it after `timeout_s`."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or loop.is_closed():
            return
        loop.call_soon_threadsafe(_cancel_all, loop)
        thread.join(timeout_s)
        if not thread.is_alive():
            loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="model event loop", daemon=True)
                self._thread.start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    asyncio.set_event_loop(loop)
    while True:
        try:
            loop.run_forever()
            return
        except (SystemExit, KeyboardInterrupt):
            # A coroutine raised it: that ends the loop before those who wait for the coroutine are told.
            continue


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        # They run once more to learn that they are cancelled.
        asyncio.gather(*tasks, return_exceptions=True).add_done_callback(lambda _: loop.stop())
    else:
        loop.stop()
