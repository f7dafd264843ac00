"""The progress of downloads, for the log, the readiness body, the metrics and a progress bar.

The downloading threads write the log, about every five seconds, so that nothing runs while nothing is downloaded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_log = logging.getLogger("trident.repository")
_LOG_EVERY = 5.0
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class DownloadSnapshot:
    """The state of the downloads at one moment.

    The fields up to `seconds` describe the current group of downloads. It begins when a download starts while none is
    running, includes every download that starts before all of them have ended, and is empty after that. `seconds` is
    the time since it began. The totals count over the life of the process: bytes received from storages, objects made
    from them, objects found in the cache, repeated attempts, and seconds in which any download was running.
    """

    active: bool = False
    models: tuple[str, ...] = ()
    bytes_done: int = 0
    bytes_total: int = 0
    objects_done: int = 0
    objects_total: int = 0
    seconds: float = 0.0
    bytes_downloaded_total: int = 0
    objects_downloaded_total: int = 0
    cache_hits_total: int = 0
    retries_total: int = 0
    seconds_total: float = 0.0


class DownloadProgress:
    """The counters of all downloads of a process; any thread. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # --- guarded by the lock
        self._running: list[ModelDownload] = []
        self._ended: list[ModelDownload] = []
        self._began = self._logged = 0.0
        self._bytes = self._objects = self._hits = self._retries = 0
        self._seconds = 0.0

    def snapshot(self) -> DownloadSnapshot:
        with self._lock:
            return self._snapshot(self._clock())

    def found(self, title: str, objects: int) -> None:
        with self._lock:
            self._hits += objects
        _log.debug("%s is in the cache: %s", title, _objects_text(objects))

    @contextmanager
    def download(self, model: str, title: str, cached: int, objects: int, size: int) -> Iterator[ModelDownload]:
        """Count a download of `objects` objects of `model` with `size` bytes in all.

        `title` names the model and its version in the log; `cached` is the number of objects from the cache.
        """
        download = ModelDownload(self, model, objects, size)
        with self._lock:
            began = self._clock()
            if not self._running:
                self._ended.clear()
                self._began = self._logged = began
            self._hits += cached
            self._running.append(download)
        is_complete = False
        try:
            yield download
            is_complete = True
        finally:
            with self._lock:
                now = self._clock()
                self._running.remove(download)
                if is_complete:
                    self._ended.append(download)
                if not self._running:
                    self._seconds += now - self._began
        seconds = now - began
        _log.info(
            "downloaded %s: %s, %s in %.1f s (%s/s), %d from the cache",
            title,
            _objects_text(download.objects_done),
            size_text(download.bytes_done),
            seconds,
            size_text(round(download.bytes_received / seconds) if seconds else download.bytes_received),
            cached,
        )

    def add(self, *, received: int = 0, objects: int = 0, retries: int = 0) -> None:
        with self._lock:
            self._bytes += received
            self._objects += objects
            self._retries += retries

    def log_if_due(self) -> None:
        with self._lock:
            now = self._clock()
            if now - self._logged < _LOG_EVERY:
                return
            self._logged = now
            seen = self._snapshot(now)
        _log.info(
            "downloading %s: %s of %s, %d of %s, %.0f s",
            ", ".join(f"model '{model}'" for model in seen.models),
            size_text(seen.bytes_done),
            size_text(seen.bytes_total),
            seen.objects_done,
            _objects_text(seen.objects_total),
            seen.seconds,
        )

    def _snapshot(self, now: float) -> DownloadSnapshot:
        running = bool(self._running)
        counted = [*self._ended, *self._running] if running else []
        seconds = now - self._began if running else 0.0
        return DownloadSnapshot(
            active=running,
            models=tuple(sorted({download.model for download in self._running})),
            bytes_done=sum(download.bytes_done for download in counted),
            bytes_total=sum(download.bytes_total for download in counted),
            objects_done=sum(download.objects_done for download in counted),
            objects_total=sum(download.objects_total for download in counted),
            seconds=seconds,
            bytes_downloaded_total=self._bytes,
            objects_downloaded_total=self._objects,
            cache_hits_total=self._hits,
            retries_total=self._retries,
            seconds_total=self._seconds + seconds,
        )


class ModelDownload:
    """The progress of one model's download, to which the downloading threads report."""

    def __init__(self, progress: DownloadProgress, model: str, objects: int, size: int) -> None:
        self.model = model
        self.bytes_done = self.objects_done = self.bytes_received = 0
        self.bytes_total = size
        self.objects_total = objects
        self._progress = progress
        self._lock = threading.Lock()

    def received(self, size: int) -> None:
        with self._lock:
            self.bytes_done += size
            self.bytes_received += size
        self._progress.add(received=size)
        self._progress.log_if_due()

    def discarded(self, size: int) -> None:
        """Count `size` bytes as missing again: they were damaged."""
        with self._lock:
            self.bytes_done -= size

    def finished(self) -> None:
        with self._lock:
            self.objects_done += 1
        self._progress.add(objects=1)

    def retried(self) -> None:
        self._progress.add(retries=1)


def size_text(size: int) -> str:
    scaled, unit = float(size), 0
    while scaled >= 999.5 and unit < len(_UNITS) - 1:
        scaled, unit = scaled / 1000, unit + 1
    # At least two digits, as in "1.0 GB", except for a number of bytes.
    return f"{scaled:.1f} {_UNITS[unit]}" if unit and scaled < 9.95 else f"{scaled:.0f} {_UNITS[unit]}"


def _objects_text(objects: int) -> str:
    return "1 object" if objects == 1 else f"{objects} objects"
