r"""The states of a model version, and the moves between them.

    (new) -> LOADING -> READY -> UNLOADING -> UNAVAILABLE
                    \-> UNAVAILABLE (the load failed)

A reload makes a new version, beside the old one.
Source: docs/spec/repository.md section 1.4.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from trident.core.errors import OutOfMemory
from trident.core.observability.history import Activity
from trident.core.observability.statistics import LoadMetrics
from trident.core.repository.progress import DownloadSnapshot

_log = logging.getLogger("trident.lifecycle")

UNLOADED = "unloaded"
REGISTERED = "REGISTERED: it is loaded when something asks for it"
"""The reason in the index for a version that is not in memory, in a server that loads on demand."""


class ModelState(Enum):
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


TRANSITIONS: dict[ModelState, frozenset[ModelState]] = {
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.UNAVAILABLE}),
    ModelState.READY: frozenset({ModelState.UNLOADING}),
    ModelState.UNLOADING: frozenset({ModelState.UNAVAILABLE}),
    ModelState.UNAVAILABLE: frozenset(),
}


class VersionState:
    """The state of one version, with the reason while it is unavailable. Every move is logged.

    `origin` is as in `ModelVersion`.
    """

    def __init__(self, model: str, version: int, cause: str, origin: str = "") -> None:
        self._model = model
        self._version = version
        self._cause = cause
        self._origin = origin
        self._since = time.monotonic()
        self.current = ModelState.LOADING
        self.reason = ""

    def move(self, to: ModelState, reason: str = "", *, cause: str = "") -> None:
        """`cause` is logged with this move and the following ones until another is given. The index shows `reason`.

        Raises RuntimeError for a move that the table does not allow, which is a bug.
        """
        if to not in TRANSITIONS[self.current]:
            raise RuntimeError(f"model {self._model}:{self._version} cannot go from {self.current.value} to {to.value}")
        now = time.monotonic()
        self._cause = cause or self._cause
        _log.info(
            "'%s' version %d%s: %s -> %s after %.3f s, cause: %s%s",
            self._model,
            self._version,
            self._origin,
            self.current.value,
            to.value,
            now - self._since,
            self._cause,
            f" ({reason})" if reason else "",
            extra={"model": self._model, "version": self._version},
        )
        self._since = now
        self.current = to
        self.reason = reason


class Phase(Enum):
    """STARTING -> LOADING -> READY or FAILED, which say how the start ended; EXITING from any of them.

    A front end is in ENGINE_DOWN while its engine process does not run. The value is the text in readiness bodies.
    """

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    EXITING = "exiting"
    ENGINE_DOWN = "engine_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadPhase:
    """The progress of the downloads that are running. `seconds` is the time since the first of them began."""

    bytes_done: int
    bytes_total: int
    objects_done: int
    objects_total: int
    seconds: float

    @classmethod
    def of(cls, seen: DownloadSnapshot) -> DownloadPhase | None:
        if not seen.active:
            return None
        return cls(
            bytes_done=seen.bytes_done,
            bytes_total=seen.bytes_total,
            objects_done=seen.objects_done,
            objects_total=seen.objects_total,
            seconds=seen.seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPhase:
    """The phase of the server, for readiness bodies and the log: `loading`, model `simple`, 3 of 7."""

    name: Phase
    model: str = ""
    done: int = 0
    total: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    download: DownloadPhase | None = None


class LoadCause(Enum):
    """The value is the text in the log."""

    START = "server start"
    POLL = "repository poll"
    REQUEST = "load request"
    DEMAND = "first request"


class LoadResult(Enum):
    """OUT_OF_MEMORY is separate from FAILURE: a platform then frees memory and loads again."""

    SUCCESS = "success"
    FAILURE = "failure"
    OUT_OF_MEMORY = "out_of_memory"


class LoadCounts:
    """Counts loads of models, each with all of its versions. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {(cause, result): 0 for cause in LoadCause for result in LoadResult}

    @contextmanager
    def counting(self, cause: LoadCause) -> Iterator[None]:
        """Count the load in the block; an error raised in it is the load's failure."""
        result = LoadResult.SUCCESS
        try:
            yield
        except BaseException as error:
            result = LoadResult.OUT_OF_MEMORY if isinstance(error, OutOfMemory) else LoadResult.FAILURE
            raise
        finally:
            with self._lock:
                self._counts[cause, result] += 1

    def metrics(self) -> tuple[LoadMetrics, ...]:
        """All counts, those that are 0 too: a rate needs the value before the first load."""
        with self._lock:
            return tuple(
                LoadMetrics(cause=cause.name.lower(), result=result.value, count=count)
                for (cause, result), count in self._counts.items()
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One version, or a model without versions: then `version` is None, and `state` too unless it failed to load.

    `reason` is empty if nothing went wrong. For a version that is ready it says why a newer one did not replace it, or
    why its requests are executed alone.
    `device_bytes` is what it holds of each device in the server's ledger.
    """

    name: str
    version: int | None = None
    state: ModelState | None = None
    reason: str = ""
    device_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOverview:
    """One model version and where it runs; empty texts for a version that does not run or a model without versions.

    `memory_bytes` and `restarts` are those of its own processes, 0 without any. `sequences` are those that have a slot,
    all slots, and the sequences that wait for one. `steps` are the models of an ensemble, and `hint` is
    the cure of what went wrong, which may name paths of this machine. `queued` requests wait now, and
    `oldest_execution_ns` is for how long the oldest execution that runs now has run. `activity` is None if nothing
    happened in the last minute, or if no history is kept.
    """

    entry: IndexEntry
    device: str = ""
    execution_provider: str = ""
    backend: str = ""
    load_seconds: float = 0.0
    memory_bytes: int = 0
    restarts: int = 0
    sequences: tuple[int, int, int] | None = None
    steps: tuple[str, ...] = ()
    hint: str = ""
    queued: int = 0
    oldest_execution_ns: int = 0
    activity: Activity | None = None
