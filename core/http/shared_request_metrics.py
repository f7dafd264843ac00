"""The counts of HTTP requests of several processes, added up.

It is the metrics library's own way: each process counts in files of a directory that all of them see, so that the
counts of one that has died stay.
"""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from core.http.application import V2Application


class SharedRequestMetrics:
    """Made before the applications are: what they count from then on is counted in `directory`."""

    def __init__(self, directory: Path) -> None:
        values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        MultiProcessCollector(self._registry, str(directory))  # type: ignore[no-untyped-call]

    def page(self, application: V2Application) -> bytes:
        """The counts of all processes, of all their ports, in the Prometheus text format."""
        return generate_latest(self._registry)
