"""CloudWatch's embedded metric format: a JSON document from which CloudWatch Logs makes metrics.

Source: docs/spec/metrics-log.md section 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from core.observability.metrics_log.report import Report


class EmbeddedMetrics:
    """Writes reports as lines for `namespace`, with `dimensions` beside those of the report."""

    def __init__(self, namespace: str, dimensions: Mapping[str, str]) -> None:
        self._namespace = namespace
        self._dimensions = dict(dimensions)

    def line(self, report: Report, time_ns: int) -> str:
        """The document on one line; `time_ns` is the wall clock's time."""
        dimensions = dict(self._dimensions)
        if report.model is not None:
            dimensions |= {"model": report.model}
        if report.namespace:
            dimensions |= {"namespace": report.namespace}
        directive = {
            "Namespace": self._namespace,
            "Dimensions": [list(dimensions)],
            "Metrics": [{"Name": figure.name, "Unit": figure.unit.value} for figure in report.figures],
        }
        return json.dumps(
            {
                "_aws": {"Timestamp": time_ns // 1_000_000, "CloudWatchMetrics": [directive]},
                **{name: _ascii(value) for name, value in dimensions.items()},
                **{figure.name: figure.value for figure in report.figures},
            },
            separators=(",", ":"),
        )


def _ascii(value: str) -> str:
    """A value of a dimension is printable ASCII."""
    return "".join(each if " " <= each <= "~" else each.encode("unicode_escape").decode() for each in value)
