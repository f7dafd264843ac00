"""Callers of requests are told to send what they have collected, once for a run of responses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import TracebackType

Flush = Callable[[], None]


class _OfThread(threading.local):
    """The calls that wait for the end of the run of responses that this thread delivers; None outside of one."""

    waiting: set[Flush] | None = None


_of_thread = _OfThread()


def flush(calls: Iterable[Flush | None]) -> None:
    """Make each of the calls once, now or at the end of the thread's `OneFlush`."""
    waiting = _of_thread.waiting
    for each in set(calls):
        if each is None:
            continue
        if waiting is None:
            each()
        else:
            waiting.add(each)


class OneFlush:
    """While a thread is in it, what it delivers is collected; the callers send it together at the end.

    For a thread that has several responses in hand, and does not wait between them.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        _of_thread.waiting = set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waiting, _of_thread.waiting = _of_thread.waiting, None
        for each in waiting or ():
            each()
