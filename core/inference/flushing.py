"""Flushing what the callers of requests have collected, once for a run of responses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import TracebackType

Flush = Callable[[], None]


class _OfThread(threading.local):
    """The collected calls; None outside of the context."""

    waiting: set[Flush] | None = None


_of_thread = _OfThread()


def flush(calls: Iterable[Flush | None]) -> None:
    """Make each of the calls once, now or at the end of the thread's `CollectedFlushes`."""
    waiting = _of_thread.waiting
    for each in set(calls):
        if each is None:
            continue
        if waiting is None:
            each()
        else:
            waiting.add(each)


class CollectedFlushes:
    """A context in which a thread's calls of `flush` are collected; each is made once, at the end.

    For a thread that delivers several responses without waiting in between.
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
