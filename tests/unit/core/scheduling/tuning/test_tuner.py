from __future__ import annotations

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.config.spec import BatchingSpec, ModelSpec
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import BatchTuning
from trident.core.scheduling.latency_target import BatchSetting, BatchTuner
from trident.core.scheduling.limits import LimitsInForce, limits_of

MS = 1_000_000
SPEC = ModelSpec(
    name="m",
    version=1,
    platform="",
    backend="stub",
    max_batch_size=64,
    inputs={},
    outputs={},
    batching=BatchingSpec(preferred_batch_sizes=(), target_p99_ns=20 * MS),
)


class Bench:
    """A tuner, and executions of 2 ms and some more for each of 1 and 3 items by turns."""

    def __init__(self) -> None:
        self.limits = LimitsInForce(limits_of(SPEC))
        self.statistics = ModelStatistics()
        self.tuner = BatchTuner(SPEC, self.limits, self.statistics)
        self.now_ns = MS

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


def test_the_first_setting_is_shown_and_in_force_at_once(bench: Bench) -> None:
    assert bench.shown == BatchTuning(target_p99_ns=20 * MS, delay_ns=0, max_size=64)
    assert bench.limits.current == BatchSetting(0, 64).limits()


def test_a_window_of_half_a_second_changes_the_limits(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trident.scheduling")
    bench.execute(99, period_ms=5)
    assert bench.limits.current.max_batch_size == 64
    bench.execute(3, period_ms=5)
    assert bench.limits.current == BatchSetting(0, 12).limits()
    assert bench.shown == BatchTuning(target_p99_ns=20 * MS, delay_ns=0, max_size=12)
    assert caplog.messages == [
        "model 'm': batches now wait for up to 0.0 ms and have up to 12 items; the 99th percentile was 3.5 ms, "
        "the target is 20 ms"
    ]
    bench.execute(250, period_ms=5)
    assert len(caplog.messages) == 1


def test_the_log_has_at_most_a_line_in_ten_seconds(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trident.scheduling")
    settings = set()
    for _ in range(3):  # 5 s each, in which items become dearer and cheaper
        for item_ns in (MS // 2, 2 * MS):
            bench.execute(250, period_ms=10, item_ns=item_ns)
            settings.add(bench.limits.current.max_batch_size)
    assert len(settings) > 1
    assert len(caplog.messages) == 2


def test_a_window_with_few_requests_lasts_five_seconds(bench: Bench) -> None:
    bench.execute(49, period_ms=100)
    assert bench.limits.current.max_batch_size == 64
    bench.execute(2, period_ms=100)
    assert bench.limits.current.max_batch_size == 12


def test_a_pause_of_the_traffic_is_no_part_of_a_window(bench: Bench) -> None:
    bench.execute(50, period_ms=5)
    bench.now_ns += 60_000 * MS
    bench.execute(99, period_ms=5)
    assert bench.limits.current.max_batch_size == 64
    bench.execute(3, period_ms=5)
    assert bench.limits.current.max_batch_size == 12


def test_limits_that_were_stopped_wait_no_more_whatever_the_tuner_sets(bench: Bench) -> None:
    bench.limits.stop()
    bench.limits.change(BatchSetting(7 * MS, 5).limits())
    assert bench.limits.current == BatchSetting(0, 5).limits()
