"""The latency target of a batcher: windows, the cost of executions, the controller, and the tuner."""

from __future__ import annotations

import itertools
import random
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.unit.core.scheduling.scheduler_bench import model_spec
from tests.unit.pending_requests import pending_request
from trident.core.config.spec import BatchingSpec
from trident.core.inference.pending_request import PendingRequest
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import BatchTuning
from trident.core.scheduling.batch_forming import (
    BatchController,
    BatchLimits,
    BatchSetting,
    BatchTuner,
    Wait,
    Window,
    Work,
    limits_of,
    may_end,
    take_work,
)
from trident.core.scheduling.queue import RequestQueue


def window_with(latencies: list[int]) -> Window:
    window = Window(0)
    for latency in latencies:
        window.note([pending_request(enqueue_ns=1)], 1, latency + 1)
    return window


@pytest.mark.parametrize("scale", [1, 50, 1000, 10**6, 10**10])
def test_a_percentile_is_at_most_a_32nd_too_much(scale: int) -> None:
    source = random.Random(scale)
    latencies = [source.randrange(1, 100 * scale) for _ in range(1000)]
    window = window_with(latencies)
    for share, rank in ((0.99, 990), (0.5, 500)):
        exact = sorted(latencies)[rank - 1]
        assert exact <= window.percentile_ns(share) <= max(sorted(latencies)[rank], exact) * 33 / 32
    assert window.percentile_ns(1) >= max(latencies)


MS = 1_000_000
WINDOW_NS = 500 * MS


def window_of(sizes: Sequence[int], *, fixed_ms: float, item_ms: float, latency_ms: float = 0) -> Window:
    """Half a second in which executions of these `sizes` ended, spread evenly."""
    window = Window(0)
    for index, size in enumerate(sizes, 1):
        end_ns = WINDOW_NS * index // len(sizes)
        duration_ns = int((fixed_ms + item_ms * size) * MS)
        requests = [pending_request(enqueue_ns=end_ns - int(latency_ms * MS) or end_ns - duration_ns)] * size
        window.note(requests, end_ns - duration_ns, end_ns)
    return window


@pytest.fixture
def controller() -> BatchController:
    return BatchController(20 * MS, 64)


def test_no_delay_helps_if_the_items_alone_take_all_the_time(controller: BatchController) -> None:
    for _ in range(10):
        setting = controller.update(window_of([1, 3] * 200, fixed_ms=0.3, item_ms=1), 1)
    assert setting.delay_ns == 0


def test_a_delay_in_which_nobody_comes_is_given_up_for_longer_and_longer(controller: BatchController) -> None:
    """One client that waits for its answer keeps an instance busy, and would wait for nobody."""
    waits = []
    for _ in range(40):
        setting = controller.setting
        count = int(500 / (4 + setting.delay_ns / MS))
        waits.append(controller.update(window_of([1] * count, fixed_ms=4, item_ms=0), 1).delay_ns > 0)
    assert any(waits[:3])
    assert sum(waits[:20]) > sum(waits[20:])
    assert sum(waits) < 10


def test_the_size_fits_twice_into_the_budget_saves_work_and_keeps_up(controller: BatchController) -> None:
    setting = controller.update(window_of([1, 3] * 20, fixed_ms=2, item_ms=0.5), 1)
    assert setting.max_size == 12  # half of 0.8 * 20 ms
    setting = BatchController(1000 * MS, 64).update(window_of([1, 3] * 20, fixed_ms=0.2, item_ms=1), 1)
    assert setting.max_size == 13  # 64 times the fixed cost


def test_latencies_over_the_target_shrink_the_budget_which_grows_back(controller: BatchController) -> None:
    calm = window_of([1, 3] * 20, fixed_ms=2, item_ms=0.5, latency_ms=5)
    full = controller.update(calm, 1).max_size
    sizes = [
        controller.update(window_of([1, 3] * 20, fixed_ms=2, item_ms=0.5, latency_ms=17), 1).max_size for _ in range(3)
    ]
    assert full > sizes[0] > sizes[1] > sizes[2]
    for _ in range(20):
        setting = controller.update(calm, 1)
    assert setting.max_size == full


SPEC = model_spec(64, BatchingSpec(preferred_batch_sizes=(), target_p99_ns=20 * MS))


class Bench:
    """A tuner, and executions of 2 ms and some more for each of 1 and 3 items by turns."""

    def __init__(self) -> None:
        self.limits = limits_of(SPEC)
        self.statistics = ModelStatistics()
        self.tuner = BatchTuner(SPEC, self.limits, self.change_limits, self.statistics)
        self.now_ns = MS

    def change_limits(self, limits: BatchLimits) -> None:
        self.limits = limits

    @property
    def shown(self) -> BatchTuning | None:
        return self.statistics.snapshot().tuning

    def execute(self, count: int, period_ms: int, item_ns: int = MS // 2) -> None:
        """`count` executions, one in each period."""
        for index in range(count):
            size = 1 + index % 2 * 2
            self.now_ns += period_ms * MS
            requests = [pending_request(enqueue_ns=self.now_ns)] * size
            self.tuner.note(requests, self.now_ns, self.now_ns + 2 * MS + size * item_ns)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_window_of_half_a_second_changes_the_limits(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trident.scheduling")
    bench.execute(99, period_ms=5)
    assert bench.limits.max_batch_size == 64
    bench.execute(3, period_ms=5)
    assert bench.limits == BatchSetting(0, 12).limits()
    assert bench.shown == BatchTuning(target_p99_ns=20 * MS, delay_ns=0, max_size=12)
    assert caplog.messages == [
        "model 'm': batches now wait for up to 0.0 ms and have up to 12 items; the 99th percentile was 3.5 ms, "
        "the target is 20 ms"
    ]
    bench.execute(250, period_ms=5)
    assert len(caplog.messages) == 1


def test_a_pause_of_the_traffic_is_no_part_of_a_window(bench: Bench) -> None:
    bench.execute(50, period_ms=5)
    bench.now_ns += 60_000 * MS
    bench.execute(99, period_ms=5)
    assert bench.limits.max_batch_size == 64
    bench.execute(3, period_ms=5)
    assert bench.limits.max_batch_size == 12


# --- a batcher with a target, in simulated time, beside the best of the fixed settings


def poisson(rate: float, seconds: float, factor: float = 1.0) -> list[int]:
    """`rate` requests per second on average (Poisson), `factor` times as many during a fifth of each second."""
    source = random.Random(1)
    base = rate / (0.8 + 0.2 * factor)
    found: list[int] = []
    at = 0.0
    while (at := at + source.expovariate(base * factor)) < seconds:
        if at % 1 < 0.2 or source.random() * factor < 1:
            found.append(int(at * 1000 * MS))
    return found


@dataclass(frozen=True, slots=True)
class Machine:
    """An instance whose executions take `fixed_ms`, and `item_ms` for each item, give or take `noise` of it."""

    fixed_ms: float
    item_ms: float
    noise: float = 0.1


Served = list[tuple[int, int]]
"""For each request when it arrived and when its execution ended, in ns."""


class Simulation:
    """A batcher in simulated time: a minute of traffic takes a second, whatever the machine of the test does."""

    def __init__(self, machine: Machine, max_batch_size: int, target_ms: float, setting: BatchSetting | None) -> None:
        spec = model_spec(max_batch_size, BatchingSpec(preferred_batch_sizes=(), target_p99_ns=int(target_ms * MS)))
        self._machine = machine
        self._limits = limits_of(spec) if setting is None else setting.limits()
        self._tuner = BatchTuner(spec, self._limits, self._change, ModelStatistics()) if setting is None else None
        self._source = random.Random(1)
        self._queue = RequestQueue()
        self._running: tuple[int, int, list[PendingRequest]] | None = None
        self._wait: Wait | None = None
        self._served: Served = []

    def _change(self, limits: BatchLimits) -> None:
        self._limits = limits

    def run(self, arrivals: Sequence[int]) -> Served:
        waiting = deque(arrivals)
        while waiting or self._running or self._queue.size:
            end_ns = self._running[0] if self._running else sys.maxsize
            arrival_ns = waiting[0] if waiting else sys.maxsize
            now_ns = min(end_ns, arrival_ns, self._wait.until_ns if self._wait else sys.maxsize)
            if end_ns <= now_ns:
                self._end()
            elif arrival_ns <= now_ns:
                pending = pending_request(enqueue_ns=waiting.popleft())
                self._queue.push(pending)
                if self._wait is not None and may_end(self._wait, pending, self._queue.items):
                    self._wait = None
            else:
                self._wait = None
            if self._wait is None and self._running is None:
                self._begin(now_ns)
        return self._served

    def _begin(self, now_ns: int) -> None:
        work = take_work(self._queue, self._limits, now_ns)
        self._wait = work if isinstance(work, Wait) else None
        if isinstance(work, Work):
            duration_ms = self._machine.fixed_ms + self._machine.item_ms * len(work.batch)
            noise = 1 + self._machine.noise * (2 * self._source.random() - 1)
            self._running = now_ns + int(duration_ms * MS * noise), now_ns, work.batch

    def _end(self) -> None:
        assert self._running is not None
        end_ns, begin_ns, batch = self._running
        self._running = self._wait = None
        self._served.extend((pending.enqueue_ns, end_ns) for pending in batch)
        if self._tuner is not None:
            self._tuner.note(batch, begin_ns, end_ns)


def simulate(
    arrivals: Sequence[int], machine: Machine, size: int, target_ms: float = 0, setting: BatchSetting | None = None
) -> Served:
    """Serve `arrivals` with a target, or with a fixed setting."""
    return Simulation(machine, size, target_ms, setting).run(arrivals)


def in_time(served: Served, target_ms: float) -> int:
    return sum(end_ns - arrived_ns <= target_ms * MS for arrived_ns, end_ns in served)


def within(served: Served, target_ms: float) -> float:
    """The share of the windows, after the first second, whose 99th percentile is under the target."""
    windows: dict[int, list[int]] = {}
    for arrived_ns, end_ns in served:
        windows.setdefault(arrived_ns // WINDOW_NS, []).append(end_ns - arrived_ns)
    settled = [sorted(windows[index]) for index in sorted(windows)[2:]]
    return sum(window[int(0.99 * (len(window) - 1))] <= target_ms * MS for window in settled) / len(settled)


LARGEST = 64
SETTINGS = [BatchSetting(delay * MS, size) for delay, size in itertools.product((0, 1, 5), (4, 16, 64))]
ACCELERATOR, CORE = Machine(fixed_ms=4, item_ms=0.05), Machine(fixed_ms=0.3, item_ms=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1, 4], ids=["steady", "bursts"])
@pytest.mark.parametrize(
    ("machine", "target_ms", "rate"),
    [(ACCELERATOR, 25, 1500), (ACCELERATOR, 25, 5500), (CORE, 20, 700), (CORE, 20, 1500)],
    ids=["accelerator", "busy accelerator", "core", "more than a core can do"],
)
def test_as_many_answers_are_in_time_as_with_the_best_fixed_setting(
    machine: Machine, target_ms: float, rate: float, factor: float
) -> None:
    trace = poisson(rate, min(6, 10_000 / rate), factor)
    tuned = simulate(trace, machine, LARGEST, target_ms)
    assert len(tuned) == len(trace)
    fixed = [simulate(trace, machine, LARGEST, setting=setting) for setting in SETTINGS]
    assert in_time(tuned, target_ms) >= 0.9 * max(in_time(served, target_ms) for served in fixed)
    if max(within(served, target_ms) for served in fixed) >= 0.95:
        assert within(tuned, target_ms) >= 0.95


def test_executions_wait_for_the_delay_a_full_batch_or_the_instance() -> None:
    served = simulate([0, 1000 * MS], Machine(2, 0, noise=0), 4, setting=BatchSetting(3 * MS, 4))
    assert served == [(0, 5 * MS), (1000 * MS, 1005 * MS)]
    served = simulate([0, 0, 0], Machine(2, 0, noise=0), 2, setting=BatchSetting(0, 2))
    assert sorted(end for _, end in served) == [2 * MS, 4 * MS, 4 * MS]
