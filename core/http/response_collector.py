"""The counts of all answers of HTTP, for the metrics page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from trident.core.http.counts import Answer


class ResponseCollector(Collector):
    """Shows counts in a registry of the metrics library."""

    def __init__(self, read: Callable[[], Iterable[tuple[Answer, int]]]) -> None:
        """`read` gives the counts of the moment; those of the same answer are added up."""
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        sums: dict[Answer, int] = {}
        for answer, count in self._read():
            sums[answer] = sums.get(answer, 0) + count
        family = CounterMetricFamily(
            "trident_http_responses",
            "Responses of all routes including the infer routes",
            labels=("method", "route", "status"),
        )
        for answer, count in sorted(sums.items()):
            family.add_metric((answer.method, answer.route, str(answer.status)), count)
        yield family
