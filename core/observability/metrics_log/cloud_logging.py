"""The structured lines that Google's Cloud Logging takes from a container's output.

Source: docs/spec/metrics-log.md section 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from core.observability.metrics_log.report import Report

LOGGER = "trident.metrics"


class CloudLogging:
    """Writes reports as lines, with `labels` beside those of the report."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = dict(labels)

    def line(self, report: Report, time_ns: int) -> str:
        """The entry on one line; `time_ns` is the wall clock's time."""
        labels = dict(self._labels)
        if report.model is not None:
            labels |= {"model": report.model}
        if report.namespace:
            labels |= {"namespace": report.namespace}
        when = datetime.fromtimestamp(time_ns // 1000 / 1_000_000, UTC)
        figures = {figure.name: figure.value for figure in report.figures}
        of = "the server" if report.model is None else f"model '{report.model}'"
        message = f"{of}: {figures['request_success']} requests answered, {figures['request_failure']} failed"
        return json.dumps(
            {
                "severity": "INFO",
                "time": f"{when:%Y-%m-%dT%H:%M:%S.%fZ}",
                "message": message,
                "logger": LOGGER,
                "scope": "server" if report.model is None else "model",
                "logging.googleapis.com/labels": labels,
                "metrics": figures,
            },
            separators=(",", ":"),
        )
