"""The counts of HTTP requests of several processes, added up.

It is the metrics library's own way: each process counts in files of a directory that all of them see, so that the
counts of one that has died stay.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from core.http.application import V2Application

_log = logging.getLogger("trident.http")

# The files of a process, by the kinds of its metrics, and their size in bytes; the library makes each when it first
# counts such a thing.
_KINDS = ("counter", "histogram")
_FILE_SIZE = 1 << 16


class SharedRequestMetrics:
    """Made before the applications are: what they count from then on is counted in `directory`."""

    def __init__(self, directory: Path) -> None:
        values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        MultiProcessCollector(self._registry, str(directory))  # type: ignore[no-untyped-call]
        for kind in _KINDS:
            _reserve(directory / f"{kind}_{os.getpid()}.db")

    def page(self, application: V2Application) -> bytes:
        """The counts of all processes, of all their ports, in the Prometheus text format."""
        return generate_latest(self._registry)


def _reserve(path: Path) -> None:
    """Take the file's room on the disk now: when that is full, a request could not be counted and so not answered, and
    to count in a mapped page that finds no room would end the process."""
    try:
        with path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, _FILE_SIZE)
    except OSError as error:
        _log.warning("no room to count requests in %s: %s", path, error.strerror)
