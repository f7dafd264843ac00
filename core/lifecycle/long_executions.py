"""Logs the executions that run for long: a model in an endless loop is READY, and nothing else would say so.

Source: docs/spec/statistics-and-metrics.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from trident.core.lifecycle.version import ModelVersion
from trident.core.observability.statistics import RunningExecution

_log = logging.getLogger("trident.lifecycle")

FIRST_S = 10.0
_LOOK_EVERY_S = 1.0
_SHOWN_IDS = 8


class LongExecutions:
    """Looks on a thread of its own, from `start` to `stop`. `versions` are those that serve or leave, at any moment."""

    def __init__(self, versions: Callable[[], Iterable[ModelVersion]]) -> None:
        self._versions = versions
        # By version, instance and begin: after how many seconds the execution is logged next.
        self._next: dict[tuple[int, str, int], float] = {}
        self._stopping = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="trident-long-executions", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_EVERY_S):
            self.look(time.monotonic_ns())

    def look(self, now_ns: int) -> None:
        """Log the executions that have run for 10 s, or twice as long as when they were logged before."""
        running: dict[tuple[int, str, int], float] = {}
        for version in self._versions():
            for execution in version.statistics.executions():
                key = id(version), execution.instance, execution.begin_ns
                due_s, age_s = self._next.get(key, FIRST_S), (now_ns - execution.begin_ns) / 1e9
                if age_s >= due_s:
                    _log_execution(version, execution, age_s)
                    while due_s <= age_s:
                        due_s *= 2
                running[key] = due_s
        self._next = running


def _log_execution(version: ModelVersion, execution: RunningExecution, age_s: float) -> None:
    process = next((each.process_id for each in version.processes() if each.instance == execution.instance), 0)
    ids = [f"'{each}'" for each in execution.ids if each]
    more = f" and {len(ids) - _SHOWN_IDS} others" if len(ids) > _SHOWN_IDS else ""
    _log.warning(
        "model '%s' version %d: an execution on instance '%s'%s has run for %d s; its batch has %d, request ids: %s%s",
        version.name,
        version.version,
        execution.instance,
        f" (process {process})" if process else "",
        age_s,
        execution.batch_size,
        ", ".join(ids[:_SHOWN_IDS]) or "none",
        more,
        extra={"model": version.name},
    )
