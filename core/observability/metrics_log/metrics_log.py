"""Writes the metrics of each interval to stdout.

Source: docs/spec/metrics-log.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from core.observability.console import print_line, stdout
from core.observability.metrics.snapshot import MetricsSnapshot
from core.observability.metrics_log.intervals import Intervals
from core.observability.metrics_log.report import Report

_log = logging.getLogger("trident.observability")

_CLOSE_WITHIN_S = 2.0


class Format(Protocol):
    def line(self, report: Report, time_ns: int) -> str:
        """The report on one line without its end; `time_ns` is the wall clock's time."""


class MetricsLog:
    """Writes from `start` to `close`, on one native daemon thread. Made in the process that has the engine.

    While nobody reads stdout, the thread waits, and nothing else; the next interval is as long as it has waited.
    """

    def __init__(
        self,
        read: Callable[[], MetricsSnapshot],
        is_ready: Callable[[], bool],
        format: Format,
        interval_s: float,
        *,
        out: TextIO | None = None,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`read` and `is_ready` are called on the thread. `out` is in place of stdout."""
        self._read = read
        self._is_ready = is_ready
        self._format = format
        self._interval_s = interval_s
        self._out = out
        self._wall_clock = wall_clock
        self._intervals = Intervals()
        self._is_broken = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trident-metrics-log", daemon=True)

    def start(self) -> None:
        """Begin the first interval; once only."""
        self._thread.start()

    def close(self) -> None:
        """End the last interval and write it. Call it while the models still have their counts; a second call, or one
        without a start, does nothing.
        """
        if not self._closing.is_set() and self._thread.is_alive():
            self._closing.set()
            # A reader of stdout that has stopped to read would hold the thread up for ever.
            self._thread.join(_CLOSE_WITHIN_S)

    def _run(self) -> None:
        due = time.monotonic() + self._interval_s
        while not self._closing.wait(max(0.0, due - time.monotonic())):
            self._write()
            # Without a drift, and without the intervals for which the process was stopped.
            due = max(due + self._interval_s, time.monotonic())
        self._write()

    def _write(self) -> None:
        reports = self._intervals.reports(self._read(), is_ready=self._is_ready())
        now_ns = self._wall_clock()
        try:
            for report in reports:
                print_line(self._format.line(report, now_ns), self._out or stdout())
        except (OSError, ValueError) as error:  # a closed pipe, a full disk; a closed stream
            if not self._is_broken:
                _log.error("the metrics cannot be written to stdout: %s; they are lost until they can", error)
            self._is_broken = True
        else:
            self._is_broken = False
