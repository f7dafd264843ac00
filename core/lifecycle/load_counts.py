"""Counts the loads of models by their cause and their result."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from core.errors import OutOfMemory
from core.observability.metrics.snapshot import LoadMetrics


class LoadCause(Enum):
    """The value is the text in the log."""

    START = "server start"
    POLL = "repository poll"
    REQUEST = "load request"


class LoadResult(Enum):
    """OUT_OF_MEMORY is apart from FAILURE: a platform then makes room and asks again."""

    SUCCESS = "success"
    FAILURE = "failure"
    OUT_OF_MEMORY = "out_of_memory"


class LoadCounts:
    """Any thread. A load is one of a model, with all of its versions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {(cause, result): 0 for cause in LoadCause for result in LoadResult}

    @contextmanager
    def counting(self, cause: LoadCause) -> Iterator[None]:
        """Count the load in the block; an error that leaves it is the load's failure."""
        try:
            yield
        except OutOfMemory:
            self._add(cause, LoadResult.OUT_OF_MEMORY)
            raise
        except BaseException:
            self._add(cause, LoadResult.FAILURE)
            raise
        self._add(cause, LoadResult.SUCCESS)

    def _add(self, cause: LoadCause, result: LoadResult) -> None:
        with self._lock:
            self._counts[cause, result] += 1

    def metrics(self) -> tuple[LoadMetrics, ...]:
        """All counts, those that are 0 too: a rate needs the value before the first load."""
        with self._lock:
            return tuple(
                LoadMetrics(cause=cause.name.lower(), result=result.value, count=count)
                for (cause, result), count in self._counts.items()
            )
