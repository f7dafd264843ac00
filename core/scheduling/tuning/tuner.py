"""Observes the executions of one model and sets the limits of its batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from core.config.model_spec import ModelSpec
from core.inference.pending_request import PendingRequest
from core.observability.model_statistics import ModelStatistics
from core.observability.statistics import BatchTuning
from core.scheduling.limits_in_force import LimitsInForce
from core.scheduling.tuning.controller import BatchController
from core.scheduling.tuning.setting import BatchSetting
from core.scheduling.tuning.window import Window

_log = logging.getLogger("trident.scheduling")

# A window has enough requests for a 99th percentile, or ends anyway.
_WINDOW_NS = 500_000_000
_ENOUGH = 200
_LONGEST_WINDOW_NS = 5_000_000_000
# A window that began before a pause in the traffic says nothing about the time after it.
_STALE_NS = 2 * _LONGEST_WINDOW_NS
# The log has no more lines than that of a load that changes all the time.
_LOG_PERIOD_NS = 10_000_000_000


class BatchTuner:
    """Any thread may call `note`; the one whose execution ends a window changes `limits`, at once.

    `instances` is how many instances there are; set it when that changes. The log has a line when a setting changes
    notably, at most one in ten seconds.
    """

    def __init__(self, spec: ModelSpec, limits: LimitsInForce, statistics: ModelStatistics) -> None:
        """`spec` has a target."""
        assert spec.batching is not None
        self._model = spec.name
        self._target_ns = spec.batching.target_p99_ns
        self._limits = limits
        self._statistics = statistics
        self._controller = BatchController(self._target_ns, limits.current.max_batch_size)
        self._lock = threading.Lock()
        self.instances = 1
        # --- guarded by the lock
        self._window: Window | None = None
        self._logged = self._controller.setting
        self._log_from_ns = 0
        self._apply(self._controller.setting)

    def note(self, requests: Sequence[PendingRequest], begin_ns: int, end_ns: int) -> None:
        """Note that an execution of `requests` took from `begin_ns` to `end_ns`, monotonic nanoseconds."""
        with self._lock:
            window = self._window
            if window is None or end_ns - window.begin_ns > _STALE_NS:
                window = self._window = Window(begin_ns)
            window.note(requests, begin_ns, end_ns)
            age_ns = end_ns - window.begin_ns
            if age_ns < _WINDOW_NS or (window.requests < _ENOUGH and age_ns < _LONGEST_WINDOW_NS):
                return
            self._window = Window(end_ns)
            before = self._controller.setting
            setting = self._controller.update(window, self.instances)
            if setting != before:
                self._apply(setting)
            if end_ns >= self._log_from_ns and setting.differs_notably(self._logged):
                self._logged = setting
                self._log_from_ns = end_ns + _LOG_PERIOD_NS
                _log.info(
                    "model '%s': batches now wait for up to %.1f ms and have up to %d items; the 99th percentile was "
                    "%.1f ms, the target is %g ms",
                    self._model,
                    setting.delay_ns / 1e6,
                    setting.max_size,
                    window.percentile_ns(0.99) / 1e6,
                    self._target_ns / 1e6,
                )

    def _apply(self, setting: BatchSetting) -> None:
        self._limits.change(setting.limits())
        tuning = BatchTuning(target_p99_ns=self._target_ns, delay_ns=setting.delay_ns, max_size=setting.max_size)
        self._statistics.note_tuning(tuning)
