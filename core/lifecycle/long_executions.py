"""Logs executions and steps of loads that take long: a model in an endless loop is READY.

Source: docs/spec/statistics-and-metrics.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from trident.core.lifecycle.version import ModelVersion
from trident.core.observability.statistics import LONG_S, RunningExecution

_log = logging.getLogger("trident.lifecycle")

_LOOK_EVERY_S = 1.0
_SHOWN_IDS = 8


class LongExecutions:
    """Looks on a thread of its own, from `start` to `stop`.

    `versions` are those that serve or leave, at any moment, and `loading` those that are being loaded or get other
    instances.
    """

    def __init__(
        self, versions: Callable[[], Iterable[ModelVersion]], loading: Callable[[], Iterable[ModelVersion]]
    ) -> None:
        self._versions = versions
        self._loading = loading
        # By version, instance or step, and begin: after how many seconds it is logged next.
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
        """Log the executions and steps of loads that have run for 10 s, or twice as long as when they were logged."""
        running: dict[tuple[int, str, int], float] = {}

        def note(version: ModelVersion, what: str, begin_ns: int, say: Callable[[float], None]) -> None:
            key = id(version), what, begin_ns
            due_s, age_s = self._next.get(key, LONG_S), (now_ns - begin_ns) / 1e9
            if age_s >= due_s:
                say(age_s)
                while due_s <= age_s:
                    due_s *= 2
            running[key] = due_s

        for version in self._versions():
            for execution in version.statistics.executions():
                note(version, execution.instance, execution.begin_ns, partial(_log_execution, version, execution))
        for version in self._loading():
            step, since_ns = version.attempt.step, version.attempt.since_ns
            if step:
                note(version, step, since_ns, partial(_log_step, version, step))
        self._next = running


def _log_step(version: ModelVersion, step: str, age_s: float) -> None:
    _log.warning(
        "model '%s' version %d%s is still being loaded: %s has taken %d s",
        version.name,
        version.version,
        version.origin,
        step,
        age_s,
        extra={"model": version.name},
    )


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
