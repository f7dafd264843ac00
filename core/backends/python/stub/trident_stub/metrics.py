"""MetricFamily and Metric: metrics of the model on the server's page.

The server's calls are `metric_family`, `metric_create`, `metric_increment`, `metric_set`, `metric_observe`,
`metric_value` and `metric_delete`; families and metrics have the numbers that the server answers.
Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from contextlib import suppress
from enum import Enum
from typing import Any

from . import server
from .errors import TritonModelException, text_of


class MetricKind(Enum):
    """The kinds of metrics, which the server knows by these names."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


# The numbers of metrics whose objects are gone. The garbage collector may delete them inside any call, where the server
# cannot be called.
_gone: deque[int] = deque()


def drop_unused() -> None:
    """Tell the server which metrics are no longer used. Called after each execution, and before other calls."""
    while _gone:
        with suppress(TritonModelException):
            server.current().call("metric_delete", {"metric": _gone.popleft()})


class Metric:
    """One time series. Made by `MetricFamily.Metric`. Any thread."""

    def __init__(self, number: int, family: MetricFamily) -> None:
        self._number = number
        # A metric keeps its family alive.
        self._family = family
        weakref.finalize(self, _gone.append, number).atexit = False

    def increment(self, value: float) -> None:
        """Add `value`, which may be negative for a gauge. Raises TritonModelException."""
        self._call("increment", "metric_increment", {"value": _number(value)})

    def set(self, value: float) -> None:
        """Set a gauge. Raises TritonModelException."""
        self._call("set", "metric_set", {"value": _number(value)})

    def observe(self, value: float) -> None:
        """Count `value` in a histogram. Raises TritonModelException."""
        self._call("observe", "metric_observe", {"value": _number(value)})

    def value(self) -> float:
        """The value at the server. Raises TritonModelException."""
        return float(self._call("get", "metric_value", {})["value"])

    def _call(self, verb: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        try:
            return server.current().call(name, {"metric": self._number, **fields})
        except TritonModelException as error:
            raise TritonModelException(f"Failed to {verb} metric value: {error}") from error


class MetricFamily:
    """Metrics of one name, which differ by their labels. Any thread."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str | bytes, description: str | bytes, kind: MetricKind) -> None:
        """Register the family, or find the one of that name. Raises TritonModelException if that is of another kind."""
        name = text_of(name, "MetricFamily(): the name")
        description = text_of(description, "MetricFamily(): the description")
        if not isinstance(kind, MetricKind):
            raise TypeError("MetricFamily(): the kind must be one of MetricFamily.COUNTER, GAUGE and HISTOGRAM")
        drop_unused()
        answer = server.current().call("metric_family", {"name": name, "description": description, "kind": kind.name})
        self._number: int = answer["family"]

    def Metric(
        self, labels: dict[str | bytes, str | bytes] | None = None, buckets: list[float] | None = None
    ) -> Metric:
        """The metric with those labels; several may be the same time series. Raises TritonModelException."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        where = "MetricFamily.Metric(): the {} of a label".format
        texts = {text_of(name, where("name")): text_of(of, where("value")) for name, of in (labels or {}).items()}
        drop_unused()
        bounds = None if buckets is None else [_number(bound) for bound in buckets]
        answer = server.current().call("metric_create", {"family": self._number, "labels": texts, "buckets": bounds})
        return Metric(answer["metric"], self)


def _number(value: float) -> float:
    """`value` as a float: numbers of Python and numpy. Raises TypeError for others, and for what JSON does not have."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"the value of a metric must be a number, not {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number):
        raise TypeError(f"the value of a metric must be finite, not {number}")
    return number
