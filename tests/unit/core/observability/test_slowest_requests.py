from __future__ import annotations

from tests.unit.pending_requests import pending_request
from trident.core.inference.request import CloseReason
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.slowest_requests import KEPT_MS, MOST, NotedRequest, merged_requests
from trident.core.observability.statistics import FailureReason

MS = 1_000_000


class Version:
    """The statistics of a version, whose wall clock stands at `now_ms`."""

    def __init__(self) -> None:
        self.now_ms = 10 * KEPT_MS
        self.statistics = ModelStatistics(wall_clock=lambda: self.now_ms * MS)

    def execute(self, *durations_ms: int) -> None:
        """One execution, which ends at 1,000 ms, of requests of these durations. Each has its duration as id."""
        end = 1000 * MS
        requests = [pending_request(str(ms), start_ns=end - ms * MS, enqueue_ns=end - ms * MS) for ms in durations_ms]
        self.statistics.record_batch(requests, len(requests), end - 4, end - 3, end - 1, end, CloseReason.FULL)

    def fail(self, id: str) -> None:
        self.statistics.record_failure(pending_request(id, start_ns=5), FailureReason.BACKEND, 12, "no")

    @property
    def slowest(self) -> list[str]:
        return [each.id for each in self.statistics.requests("m", 1).slowest]

    @property
    def failed(self) -> list[str]:
        return [each.id for each in self.statistics.requests("m", 1).failed]


def test_the_slowest_are_kept_whatever_their_order_and_batch() -> None:
    version = Version()
    for ms in range(1, 101):
        version.execute(ms, 900 - ms)
    for _ in range(100):
        version.execute(1, 2)
    assert version.slowest == [str(ms) for ms in range(899, 899 - MOST, -1)]


def test_a_request_has_its_times() -> None:
    version = Version()
    version.execute(7)
    version.fail("bad")
    found = version.statistics.requests("m", 1)
    assert found.slowest == (
        NotedRequest(
            id="7",
            ended_ms=version.now_ms,
            duration_ns=7 * MS,
            queue_ns=7 * MS - 4,
            compute_input_ns=1,
            compute_infer_ns=2,
            compute_output_ns=1,
            batch_size=1,
            batch_close="full",
        ),
    )
    assert found.failed == (
        NotedRequest(id="bad", ended_ms=version.now_ms, duration_ns=7, failure="BACKEND", error="no"),
    )


def test_requests_are_forgotten_after_an_hour_and_faster_ones_take_their_place() -> None:
    version = Version()
    version.execute(*range(500, 500 + MOST))
    version.fail("bad")
    version.now_ms += KEPT_MS // 2
    version.execute(3)
    assert version.slowest == [str(ms) for ms in range(499 + MOST, 499, -1)]
    version.now_ms += KEPT_MS // 2 + 1
    assert (version.slowest, version.failed) == (["3"], [])
    version.now_ms += KEPT_MS
    assert version.slowest == []


def test_only_the_last_failed_requests_are_kept() -> None:
    version = Version()
    for number in range(MOST + 10):
        version.now_ms += 1
        version.fail(str(number))
    assert version.failed == [str(number) for number in range(MOST + 9, 9, -1)]


def test_ids_and_errors_of_any_length_take_no_more_memory() -> None:
    statistics = ModelStatistics()
    statistics.record_refusal(pending_request("x" * 10_000), FailureReason.REJECTED, "y" * 10_000)
    (noted,) = statistics.requests("m", 1).failed
    assert (len(noted.id), len(noted.error)) == (256, 1024)


def test_the_requests_of_several_engines_are_those_of_one() -> None:
    first, second = Version(), Version()
    first.execute(*range(1, 60, 2))
    second.execute(*range(2, 61, 2))
    first.fail("a")
    (merged,) = merged_requests([each.statistics.requests("m", 1) for each in (first, second)])
    assert [each.id for each in merged.slowest] == [str(ms) for ms in range(60, 60 - MOST, -1)]
    assert [each.id for each in merged.failed] == ["a"]
