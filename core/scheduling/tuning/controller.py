"""The controller: from what was observed in a window to the setting for the next one. It knows no clock and no thread.

A batch that waits does not make an instance faster that is free: it would have executed at once, and requests that
arrive meanwhile would be the next batch. Waiting pays where executions take so much of the time that fewer of them are
needed. So:

* The size is as large as it saves work (a fixed cost that is spread over more items), but so small that a request which
  just missed an execution gets its own within the budget. It is larger where that is needed to keep up with the
  arrivals, or to work off a queue that has grown, which misses every target.
* The delay is 0 until the instances are busy for most of the time. Then it is as long as it takes for batches to grow
  so much that they are not, as far as the budget allows. Where nobody comes while a batch waits, it does not wait.
* The budget is a part of the target. It shrinks when the 99th percentile comes near the target, and grows slowly back.

Source: docs/spec/schedulers.md section 3.2, "A target instead of a delay".
"""

from __future__ import annotations

from math import ceil

from core.scheduling.tuning.execution_cost import ExecutionCost
from core.scheduling.tuning.setting import BatchSetting
from core.scheduling.tuning.window import Window

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
        self._learn_share(window.percentile_ns(0.99))
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

    def _learn_share(self, p99_ns: int) -> None:
        """Smaller batches cure the latency that waits and executions make, not that of a queue which has grown."""
        aim_ns = _AIM * self._target_ns
        self._backlog = max(0, self._backlog - 1)
        if p99_ns > max(aim_ns, _BACKLOG * (self.setting.delay_ns + 2 * self._cost.of(self.setting.max_size))):
            self._backlog = _BACKLOG_WINDOWS
        elif p99_ns > aim_ns:
            self._share = max(_LEAST_SHARE, self._share * max(0.5, aim_ns / p99_ns))
        elif p99_ns < _COMFORT * aim_ns:
            self._share = min(1.0, self._share + _GROWTH)

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
        """The time in which batches grow so much that the instances have time to spare; 0 if they have, or never do."""
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
        if window.mean_size - 1 < _VAIN * promised:
            self._pause = self._next_pause
            self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)
        else:
            self._next_pause = 2
