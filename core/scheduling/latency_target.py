"""A latency target instead of a queue delay: the batcher sets the delay and the size of its batches itself.

The executions of a window are observed, and the setting for the next one follows from them. A batch that waits does not
make an instance faster that is free: it would have executed at once, and requests that arrive meanwhile would be the
next batch. Waiting pays where executions take so much of the time that fewer of them are needed. So:

* The size is as large as it saves work (a fixed cost that is spread over more items), but so small that a request which
  just missed an execution gets its own within the budget. It is larger where that is needed to keep up with the
  arrivals, or to work off a queue that has grown, which misses every target.
* The delay is 0 until the instances are busy for most of the time. Then it is as long as it takes for batches to grow
  so much that they are not, as far as the budget allows. Where no request comes while a batch waits, it does not wait.
* The budget is a part of the target. It shrinks when the 99th percentile comes near the target, and grows slowly back.

Source: docs/spec/schedulers.md section 3.2, "A target instead of a delay".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from trident.core.config.spec import ModelSpec
from trident.core.inference.pending_request import PendingRequest
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import BatchTuning
from trident.core.scheduling.batch_forming import BatchLimits

_log = logging.getLogger("trident.scheduling")

# A batch of a tuned model is closed this long before one of its requests would outlive its queue timeout: the thread
# that waits with it wakes later than it asked for.
_BEFORE_TIMEOUT_NS = 2_000_000


class BatchSetting(NamedTuple):
    """How long a batch may wait for requests, in nanoseconds, and how many items it may have."""

    delay_ns: int
    max_size: int

    def limits(self) -> BatchLimits:
        size = self.max_size
        return BatchLimits(size, frozenset((size,)), size, self.delay_ns, _BEFORE_TIMEOUT_NS)

    def differs_notably(self, other: BatchSetting) -> bool:
        """Return whether a person should hear of the change: a quarter and 0.2 ms of the delay, or a quarter of the
        size."""
        delays = sorted((self.delay_ns, other.delay_ns))
        sizes = sorted((self.max_size, other.max_size))
        return delays[1] > max(1.25 * delays[0], delays[0] + 200_000) or sizes[1] > 1.25 * sizes[0]


# Latencies are counted in buckets that are a 32nd of their value wide.
_BITS = 5


@dataclass(slots=True)
class Window:
    """Sums over the executions that ended in it. Durations are nanoseconds.

    `sizes` are items, `squares` those of the sizes of executions, `products` each size times its duration: enough to
    tell what an execution costs and what an item costs. `latencies` counts requests by bucket: from their arrival to
    the end of their execution.
    """

    begin_ns: int
    end_ns: int = 0
    requests: int = 0
    executions: int = 0
    sizes: int = 0
    squares: int = 0
    busy_ns: int = 0
    products: int = 0
    latencies: dict[int, int] = field(default_factory=dict)

    def note(self, requests: Sequence[PendingRequest], begin_ns: int, end_ns: int) -> None:
        size = 0
        latencies = self.latencies
        for pending in requests:
            size += pending.batch_size or 1
            latency_ns = end_ns - (pending.request.arrived_ns or pending.enqueue_ns)
            shift = max(0, latency_ns.bit_length() - _BITS - 1)
            bucket = (shift << _BITS) + (latency_ns >> shift)
            latencies[bucket] = latencies.get(bucket, 0) + 1
        duration_ns = end_ns - begin_ns
        self.end_ns = max(self.end_ns, end_ns)
        self.requests += len(requests)
        self.executions += 1
        self.sizes += size
        self.squares += size * size
        self.busy_ns += duration_ns
        self.products += size * duration_ns

    @property
    def duration_ns(self) -> int:
        return max(1, self.end_ns - self.begin_ns)

    def percentile_ns(self, share: float) -> int:
        """The latency that at most 1 - `share` of the requests exceed, up to a 32nd too much; 0 without requests."""
        beyond = self.requests * (1 - share)
        for bucket in sorted(self.latencies, reverse=True):
            beyond -= self.latencies[bucket]
            if beyond < 0:
                shift = max(0, (bucket >> _BITS) - 1)
                return (bucket - (shift << _BITS) + 1 << shift) - 1
        return 0


# After a window the earlier ones count this much less: a change is learnt within some windows.
_KEEPS = 0.7
# Sizes with less variance than this do not show the cost of one more item.
_LEAST_VARIANCE = 0.25


class ExecutionCost:
    """A line through the observed sizes and durations: `fixed_ns` for an execution and `item_ns` for each of its items.

    As long as all executions had nearly the same size, an item counts as free: larger batches are tried, then known.
    """

    __slots__ = ("_count", "_durations", "_products", "_sizes", "_squares", "fixed_ns", "item_ns")

    def __init__(self) -> None:
        self._count = self._sizes = self._squares = self._durations = self._products = 0.0
        self.fixed_ns = 0.0
        self.item_ns = 0.0

    def learn(self, window: Window) -> None:
        """Add the executions of `window`, which has at least one."""
        self._count = _KEEPS * self._count + window.executions
        self._sizes = _KEEPS * self._sizes + window.sizes
        self._squares = _KEEPS * self._squares + window.squares
        self._durations = _KEEPS * self._durations + window.busy_ns
        self._products = _KEEPS * self._products + window.products
        size, duration = self._sizes / self._count, self._durations / self._count
        variance = self._squares / self._count - size * size
        covariance = self._products / self._count - size * duration
        slope = covariance / variance if variance > _LEAST_VARIANCE else 0.0
        self.item_ns = min(max(slope, 0.0), duration / size)
        self.fixed_ns = duration - self.item_ns * size

    def of(self, size: float) -> float:
        return self.fixed_ns + self.item_ns * size


# The part of the target to which the 99th percentile is held: the rest is for what the server does not see, such as
# the network, and for the next window, which may be worse.
_AIM = 0.8
# Below this part of it the budget grows back.
_COMFORT = 0.75
_GROWTH = 0.05
_LEAST_SHARE = 0.1
# A size at which the fixed cost is this part of the cost of the items gains little by growing.
_KNEE = 1 / 64
# A latency that is so many times that of a wait and two executions is that of a queue which had grown. It is worked off
# as fast as possible, for so many windows: bursts come again.
_BACKLOG = 1.5
_BACKLOG_WINDOWS = 10
# Room for arrivals that come faster than in the window observed.
_HEADROOM = 1.3
# An instance that is busy for less of its time than this has nothing to gain from larger batches.
_BUSY = 0.75
# If batches grow by less than this part of what the arrivals promise, waiting is in vain, and is not tried again for
# a number of windows that doubles each time.
_VAIN = 0.5
# Requests that should have joined waiting batches, from which on it tells something if they did not.
_TELLING = 10
_LONGEST_PAUSE = 64
_ROUNDING = 1e-6


class BatchController:
    """Call `update` after each window. `target_ns` is for the 99th percentile from arrival to the end of execution."""

    def __init__(self, target_ns: int, max_batch_size: int) -> None:
        self._target_ns = target_ns
        self._max_batch_size = max_batch_size
        self._cost = ExecutionCost()
        self._share = 1.0
        self._backlog = 0
        self._pause = 0
        self._next_pause = 2
        self.setting = BatchSetting(0, max_batch_size)

    def update(self, window: Window, instances: int) -> BatchSetting:
        """The setting for the time after `window`, in which `instances` executed at least once."""
        self._cost.learn(window)
        rate = window.sizes / window.duration_ns
        p99_ns = window.percentile_ns(0.99)
        aim_ns = _AIM * self._target_ns
        self._backlog = max(0, self._backlog - 1)
        if p99_ns > max(aim_ns, _BACKLOG * (self.setting.delay_ns + 2 * self._cost.of(self.setting.max_size))):
            self._backlog = _BACKLOG_WINDOWS
        elif p99_ns > aim_ns:
            self._share = max(_LEAST_SHARE, self._share * max(0.5, aim_ns / p99_ns))
        elif p99_ns < _COMFORT * aim_ns:
            self._share = min(1.0, self._share + _GROWTH)
        budget_ns = self._share * _AIM * self._target_ns
        size = self._size(rate * _HEADROOM / instances, budget_ns)
        self._judge_wait(window, rate)
        busy = window.busy_ns / (window.duration_ns * instances)
        has_time = busy <= _BUSY and not self.setting.delay_ns
        wanted_ns = 0.0 if self._pause or has_time else self._delay(rate, instances, size, budget_ns)
        # Half the way up, so that each step is judged; at once down.
        delay_ns = min(wanted_ns, (self.setting.delay_ns + wanted_ns) / 2 + 50_000)
        self.setting = BatchSetting(int(delay_ns), size)
        return self.setting

    def _size(self, rate: float, budget_ns: float) -> int:
        """`rate` is that of one instance, in items per nanosecond."""
        fixed, item = self._cost.fixed_ns, self._cost.item_ns
        largest = float(self._max_batch_size)
        knee = min(largest, fixed / item / _KNEE) if item else largest
        affordable = min(largest, (budget_ns / 2 - fixed) / item) if item else largest
        free = 1 - item * rate
        needed = fixed * rate / free if free > 0 and not self._backlog else knee
        size = min(max(int(affordable + _ROUNDING), ceil(needed - _ROUNDING)), ceil(knee))
        return max(size, 1)

    def _delay(self, rate: float, instances: int, size: int, budget_ns: float) -> float:
        """Return the shortest delay that brings utilization below the limit; 0 if none is needed or none suffices."""
        fixed, item = self._cost.fixed_ns, self._cost.item_ns
        free = _BUSY * instances - item * rate
        if free <= 0:
            return 0.0
        wanted = min(ceil(fixed * rate / free), size)
        if wanted <= 1:
            return 0.0
        return max(0.0, min((wanted - 1) / rate, budget_ns - 2 * self._cost.of(wanted)))

    def _judge_wait(self, window: Window, rate: float) -> None:
        """Pause the delay if batches did not grow while they waited: a client that waits for its answer sends none."""
        if self._pause:
            self._pause -= 1
            return
        promised = min(rate * self.setting.delay_ns, self.setting.max_size - 1)
        if promised * window.executions < _TELLING:
            return
        if window.sizes / window.executions - 1 < _VAIN * promised:
            self._pause = self._next_pause
            self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)
        else:
            self._next_pause = 2


# A window has enough requests for a 99th percentile, or ends anyway.
_WINDOW_NS = 500_000_000
_ENOUGH = 200
_LONGEST_WINDOW_NS = 5_000_000_000
# A window that began before a pause in the traffic says nothing about the time after it.
_STALE_NS = 2 * _LONGEST_WINDOW_NS
# The log has no more lines than that of a load that changes all the time.
_LOG_PERIOD_NS = 10_000_000_000


class BatchTuner:
    """Any thread may call `note`; the one whose execution ends a window calls `change_limits`, at once.

    `instances` is how many instances there are; set it when that changes. The log has a line when a setting changes
    notably, at most one in ten seconds.
    """

    def __init__(
        self,
        spec: ModelSpec,
        limits: BatchLimits,
        change_limits: Callable[[BatchLimits], None],
        statistics: ModelStatistics,
    ) -> None:
        """`spec` has a target; `limits` are those of its configuration."""
        assert spec.batching is not None
        self._model = spec.name
        self._target_ns = spec.batching.target_p99_ns
        self._change_limits = change_limits
        self._statistics = statistics
        self._controller = BatchController(self._target_ns, limits.max_batch_size)
        self._lock = threading.Lock()
        self.instances = 1
        # --- guarded by the lock
        self._window: Window | None = None
        self._logged = self._controller.setting
        self._log_from_ns = 0
        self._apply(self._controller.setting)

    def note(self, requests: Sequence[PendingRequest], begin_ns: int, end_ns: int) -> None:
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
        self._change_limits(setting.limits())
        tuning = BatchTuning(target_p99_ns=self._target_ns, delay_ns=setting.delay_ns, max_size=setting.max_size)
        self._statistics.note_tuning(tuning)
