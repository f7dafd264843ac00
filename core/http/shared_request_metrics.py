"""The counts of HTTP requests of several processes, summed.

The metrics library does this with a directory that all processes share: each process counts in its own files, so that
the counts of a dead process stay.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from core.http.application import V2Application
from core.http.response_collector import ResponseCollector
from core.http.response_counts import ResponseCounts
from core.http.shared_response_counts import SharedResponseCounts

_log = logging.getLogger("trident.http")

# The kinds of a process's metrics, each with a file of this size in bytes. The library makes a file at the first count.
_KINDS = ("counter", "histogram")
_FILE_SIZE = 1 << 16


class SharedRequestMetrics:
    """Create it before the applications: from then on they count in `directory`, their answers in `responses`."""

    def __init__(self, directory: Path) -> None:
        values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
        self._responses = SharedResponseCounts(directory)
        self._registry = CollectorRegistry()
        self._registry.register(ResponseCollector(self._responses.items))
        MultiProcessCollector(self._registry, str(directory))  # type: ignore[no-untyped-call]
        for kind in _KINDS:
            _reserve(directory / f"{kind}_{os.getpid()}.db")

    @property
    def responses(self) -> ResponseCounts:
        """Where all applications of this process must count their answers."""
        return self._responses.counts

    def page(self, application: V2Application, openmetrics: bool = False) -> bytes:
        """The counts of all ports of all processes, in the Prometheus text format or as the end of OpenMetrics."""
        return (generate_openmetrics if openmetrics else generate_latest)(self._registry)


def _reserve(path: Path) -> None:
    """Reserve the file's room on the disk now: on a full disk a request could not be counted, and so not answered, and
    a write to a mapped page without room on the disk would end the process."""
    try:
        with path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, _FILE_SIZE)
    except OSError as error:
        _log.warning("no room to count requests in %s: %s", path, error.strerror)
