"""The metrics that models make: counters, gauges and histograms beside those of the server.

    CustomMetrics   all families of the server; the page reads them
    └── OwnMetrics     those that one process of a model uses, by the numbers that it got for them

Source: docs/spec/python-backend.md section 4.3, docs/spec/statistics-and-metrics.md "Custom metrics". The texts about
names are those of the library in which Triton keeps its metrics.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import count, pairwise
from math import isfinite

from trident.core.errors import InvalidRequest, ServerError, Unsupported, readable
from trident.core.observability.statistics import CustomFamilyMetrics, CustomSeriesMetrics

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_HISTOGRAM_SUFFIXES = ("_bucket", "_count", "_sum")
_Labels = tuple[tuple[str, str], ...]


class MetricKind(Enum):
    """The value is the type on the page."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"

    def refuse(self, operation: str) -> ServerError:
        return Unsupported(f"TRITONSERVER_METRIC_KIND_{self.name} does not support {operation}")


class _Series:
    """One series and how many metrics of all owners stand for it. `bounds` and `counts` are those of a histogram, which
    has a count more than bounds.
    """

    __slots__ = ("bounds", "counts", "labels", "users", "value")

    def __init__(self, labels: Mapping[str, str], bounds: Sequence[float]) -> None:
        self.labels = {name: readable(value) for name, value in labels.items()}
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.users = 0
        # The sum of what a histogram observed.
        self.value = 0.0

    def metrics(self) -> CustomSeriesMetrics:
        return CustomSeriesMetrics(
            labels=dict(self.labels), value=self.value, bounds=self.bounds, counts=tuple(self.counts)
        )


class _Family:
    """`users` are the owners that have made it."""

    __slots__ = ("description", "kind", "name", "series", "users")

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self.name = name
        self.description = readable(description)
        self.kind = kind
        self.users = 0
        self.series: dict[_Labels, _Series] = {}

    def names(self) -> set[str]:
        """The names that it has on the page, in both formats."""
        if self.kind is MetricKind.HISTOGRAM:
            return {self.name, *(self.name + suffix for suffix in _HISTOGRAM_SUFFIXES)}
        return {self.name, self.name.removesuffix("_total")}


class CustomMetrics:
    """The families of all models. Any thread.

    `is_reserved` says whether a name belongs to the server. If not `enabled`, no family can be made.
    """

    def __init__(self, is_reserved: Callable[[str], bool] = lambda name: False, *, enabled: bool = True) -> None:
        self._is_reserved = is_reserved
        self._enabled = enabled
        self._lock = threading.Lock()
        self._families: dict[str, _Family] = {}

    def owner(self) -> OwnMetrics:
        return OwnMetrics(self, self._lock)

    def snapshot(self) -> tuple[CustomFamilyMetrics, ...]:
        with self._lock:
            return tuple(
                CustomFamilyMetrics(
                    name=family.name,
                    type=family.kind.value,
                    description=family.description,
                    series=tuple(series.metrics() for series in family.series.values()),
                )
                for _, family in sorted(self._families.items())
                if family.series
            )

    def _use(self, name: str, description: str, kind: MetricKind) -> _Family:
        """The family of that name, one owner more of it. The first description stays. Under the lock."""
        family = self._families.get(name)
        if family is None:
            if not self._enabled:
                raise Unsupported("metrics are disabled", hint="the server was started with --allow-metrics=false")
            if not _NAME.fullmatch(name) or name.startswith("__"):
                raise InvalidRequest(
                    f"Invalid metric name '{name}'",
                    hint="a name has letters, digits, '_' and ':', and does not begin with a digit or '__'",
                )
            names = _Family(name, "", kind).names()
            for taken in sorted(names):
                if self._is_reserved(taken):
                    raise InvalidRequest(f"Family name already exists: '{taken}' is a metric of the server")
            for other in self._families.values():
                if other.names() & names:
                    raise InvalidRequest(f"Family name already exists: '{name}' would have a series of '{other.name}'")
            family = self._families[name] = _Family(name, description, kind)
        elif family.kind is not kind:
            raise InvalidRequest(
                "Family name already exists with different type",
                hint=f"'{name}' is a {family.kind.value} of a model, and cannot be a {kind.value} as well",
            )
        family.users += 1
        return family

    def _release(self, family: _Family) -> None:
        """One owner less. Under the lock."""
        family.users -= 1
        if not family.users:
            del self._families[family.name]


class OwnMetrics:
    """The families and metrics of one process of a model. Any thread; methods raise a ServerError with Triton's text.

    The numbers are its own: those of another owner mean something else. `close` takes away what no other owner uses.
    """

    def __init__(self, metrics: CustomMetrics, lock: threading.Lock) -> None:
        self._all = metrics
        self._lock = lock
        self._numbers = count(1)
        self._families: dict[int, _Family] = {}
        self._metrics: dict[int, tuple[_Family, _Labels]] = {}

    def create_family(self, name: str, description: str, kind: MetricKind) -> int:
        """The number of the family of that name; the same one for the same name."""
        with self._lock:
            for number, family in self._families.items():
                if family.name == name and family.kind is kind:
                    return number
            family = self._all._use(name, description, kind)
            number = next(self._numbers)
            self._families[number] = family
            return number

    def create_metric(self, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None = None) -> int:
        """The number of a new metric. Metrics with the same labels, of all owners, have one value.

        A histogram has `buckets`, the upper bounds, strictly ascending; the others have none.
        """
        with self._lock:
            found = self._families.get(family)
            if found is None:
                raise InvalidRequest(f"there is no metric family {family}")
            for name in labels:
                is_bound = name == "le" and found.kind is MetricKind.HISTOGRAM
                if is_bound or not _LABEL.fullmatch(name) or name.startswith("__"):
                    raise InvalidRequest(
                        f"Invalid label name '{name}'",
                        hint="a name has letters, digits and '_', and does not begin with a digit or '__'; 'le' is "
                        "the label of a histogram's bounds",
                    )
            bounds = _checked_bounds(buckets, found.kind)
            key = tuple(sorted(labels.items()))
            series = found.series.setdefault(key, _Series(labels, bounds))
            series.users += 1
            number = next(self._numbers)
            self._metrics[number] = found, key
            return number

    def increment(self, metric: int, value: float) -> None:
        """Add `value`, which is negative only for a gauge."""
        with self._lock:
            kind, series = self._find(metric)
            if kind is MetricKind.HISTOGRAM:
                raise kind.refuse("Increment")
            if kind is MetricKind.COUNTER and value < 0:
                raise InvalidRequest(
                    "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
                )
            series.value += value

    def set(self, metric: int, value: float) -> None:
        with self._lock:
            kind, series = self._find(metric)
            if kind is not MetricKind.GAUGE:
                raise kind.refuse("Set")
            series.value = value

    def observe(self, metric: int, value: float) -> None:
        with self._lock:
            kind, series = self._find(metric)
            if kind is not MetricKind.HISTOGRAM:
                raise kind.refuse("Observe")
            series.counts[bisect_left(series.bounds, value)] += 1
            series.value += value

    def value(self, metric: int) -> float:
        with self._lock:
            kind, series = self._find(metric)
            if kind is MetricKind.HISTOGRAM:
                raise kind.refuse("Value")
            return series.value

    def delete(self, metric: int) -> None:
        """Forget a metric; its series leaves the page with the last one. Does nothing if it is forgotten already."""
        with self._lock:
            self._delete(metric)

    def close(self) -> None:
        with self._lock:
            for metric in list(self._metrics):
                self._delete(metric)
            for family in self._families.values():
                self._all._release(family)
            self._families = {}

    def _find(self, metric: int) -> tuple[MetricKind, _Series]:
        found = self._metrics.get(metric)
        if found is None:
            raise InvalidRequest(f"there is no metric {metric}")
        family, key = found
        return family.kind, family.series[key]

    def _delete(self, metric: int) -> None:
        found = self._metrics.pop(metric, None)
        if found is not None:
            family, key = found
            family.series[key].users -= 1
            if not family.series[key].users:
                del family.series[key]


def _checked_bounds(buckets: Sequence[float] | None, kind: MetricKind) -> Sequence[float]:
    if kind is not MetricKind.HISTOGRAM:
        if buckets:
            raise InvalidRequest("Failed to create metric. Unexpected buckets found.")
        return ()
    if buckets is None:
        raise InvalidRequest("Failed to create metric. Missing required buckets.")
    ascending = all(low < high for low, high in pairwise(buckets))
    if not ascending or not all(isfinite(bound) for bound in buckets):
        raise InvalidRequest(
            "Bucket Boundaries must be strictly sorted", hint=f"they are: {', '.join(map(str, buckets))}"
        )
    return buckets
