"""How many traces were written, and how many were lost."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Loss(Enum):
    """Why a trace, or with OpenTelemetry a span, was lost; the value is the label of the metric."""

    QUEUE_FULL = "queue_full"
    NOT_WRITTEN = "not_written"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMetrics:
    """In traces, with OpenTelemetry in spans."""

    written: int
    lost: Mapping[Loss, int]


class TraceCounts:
    """Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written = 0
        self._lost = dict.fromkeys(Loss, 0)

    def add_written(self, count: int) -> None:
        with self._lock:
            self._written += count

    def add_lost(self, loss: Loss, count: int = 1) -> None:
        with self._lock:
            self._lost[loss] += count

    def metrics(self) -> TraceMetrics:
        with self._lock:
            return TraceMetrics(written=self._written, lost=dict(self._lost))
