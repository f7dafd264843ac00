"""The latency target of a batcher: windows, the cost of executions, the controller, and the tuner."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.unit.core.scheduling.scheduler_bench import model_spec
from tests.unit.pending_requests import pending_request
from trident.core.config.spec import BatchingSpec
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import BatchTuning
from trident.core.scheduling.batch_forming import BatchLimits, limits_of
from trident.core.scheduling.latency_target import BatchController, BatchSetting, BatchTuner, Window


def window_with(latencies: list[int]) -> Window:
    window = Window(0)
    for latency in latencies:
        window.note([pending_request(enqueue_ns=1)], 1, latency + 1)
    return window


@pytest.mark.parametrize("scale", [1, 50, 1000, 10**6, 10**10])
def test_percentile_error_is_at_most_one_32nd(scale: int) -> None:
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


def test_delay_is_zero_if_the_items_alone_use_all_capacity(controller: BatchController) -> None:
    for _ in range(10):
        setting = controller.update(window_of([1, 3] * 200, fixed_ms=0.3, item_ms=1), 1)
    assert setting.delay_ns == 0


def test_useless_delay_is_retried_less_and_less_often(controller: BatchController) -> None:
    """One client that waits for its answer keeps an instance busy, so that a delay would gain nothing."""
    waits = []
    for _ in range(40):
        setting = controller.setting
        count = int(500 / (4 + setting.delay_ns / MS))
        waits.append(controller.update(window_of([1] * count, fixed_ms=4, item_ms=0), 1).delay_ns > 0)
    assert any(waits[:3])
    assert sum(waits[:20]) > sum(waits[20:])
    assert sum(waits) < 10


def test_batch_size_fits_the_budget_twice_and_keeps_up(controller: BatchController) -> None:
    setting = controller.update(window_of([1, 3] * 20, fixed_ms=2, item_ms=0.5), 1)
    assert setting.max_size == 12  # half of 0.8 * 20 ms
    setting = BatchController(1000 * MS, 64).update(window_of([1, 3] * 20, fixed_ms=0.2, item_ms=1), 1)
    assert setting.max_size == 13  # 64 times the fixed cost


def test_grown_queue_is_drained_with_the_most_efficient_size(controller: BatchController) -> None:
    def size(latency_ms: float) -> int:
        return controller.update(window_of([1, 3] * 20, fixed_ms=2, item_ms=0.5, latency_ms=latency_ms), 1).max_size

    assert size(150) == 64
    assert [size(14) for _ in range(11)] == [64] * 9 + [12] * 2


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
