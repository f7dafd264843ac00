from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from core.errors import BackendFailed, QueueFull, RequestCancelled, ServerError, ServerStopping
from core.inference.pending_request import PendingRequest
from core.inference.request import InferenceRequest, InputTensor
from core.inference.response import InferenceResponse, OutputTensor
from core.observability.statistics import FailureReason, ModelStatistics
from core.response_cache.local_cache import LocalCache
from core.scheduling.caching_scheduler import LARGE, CachingScheduler
from tests.unit.packed_tensors import spec
from tests.waiting import until


class Executor:
    """The scheduler behind the cache: keeps what is submitted, until the test answers it."""

    queued = in_flight = 0

    def __init__(self) -> None:
        self.submitted: list[PendingRequest] = []
        self.refusal: ServerError | None = None

    def start(self) -> None: ...

    def add(self, instance: object) -> None: ...

    def remove(self, instance: object) -> None: ...

    def submit(self, pending: PendingRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(pending)

    def stop(self, *, accept_nested: bool = False) -> None:
        self.refusal = ServerStopping("stopped")

    def drain(self, timeout_s: float | None = None) -> bool:
        return True

    def close(self, timeout_s: float | None = None) -> bool:
        self.stop()
        return True

    def answer(self, value: int = 0, **fields: object) -> None:
        """Answer the oldest request that was submitted."""
        pending = self.submitted.pop(0)
        array = np.array([value], np.int32)
        outputs = [OutputTensor("OUT", "INT32", (1,), array)]
        pending.on_response(InferenceResponse("m", 1, outputs, id=pending.request.id, **fields))  # type: ignore[arg-type]

    def fail(self, error: ServerError) -> None:
        pending = self.submitted.pop(0)
        pending.on_response(InferenceResponse.failed(pending.request, error))


class Bench:
    def __init__(self) -> None:
        self.executor = Executor()
        self.statistics = ModelStatistics()
        self.cache = LocalCache(1 << 20)
        self.resubmitted: list[str] = []
        self.answers: dict[str, list[InferenceResponse]] = {}
        self.scheduler = CachingScheduler(self.executor, self.cache, spec(), self.statistics, self._resubmit)

    def _resubmit(self, pending: PendingRequest) -> None:
        self.resubmitted.append(pending.request.id)
        try:
            self.scheduler.submit(pending)
        except ServerError as error:
            pending.refuse(error)

    def submit(self, id: str, value: int = 0, size: int = 1, timeout_us: int = 0) -> PendingRequest:
        tensor = InputTensor("IN", "INT32", (size,), np.full(size, value, np.int32))
        request = InferenceRequest("m", [tensor], id=id, timeout_us=timeout_us)
        pending = PendingRequest(request, self.answers.setdefault(id, []).append)
        self.scheduler.submit(pending)
        return pending

    def value(self, id: str) -> int:
        """The one answer's value."""
        (answer,) = self.answers[id]
        assert answer.error is None
        assert answer.id == id
        return int(answer.outputs[0].array[0])

    def error(self, id: str) -> Exception | None:
        (answer,) = self.answers[id]
        return answer.error


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.scheduler.close()
    assert made.cache.metrics().entries == 0


def test_the_second_of_two_equal_requests_is_not_executed(bench: Bench) -> None:
    bench.submit("a", 1)
    bench.executor.answer(10)
    bench.submit("b", 1)
    assert (bench.value("a"), bench.value("b")) == (10, 10)
    assert bench.executor.submitted == []
    counted = bench.statistics.snapshot()
    assert (counted.cache_hit_count, counted.cache_miss_count) == (1, 1)
    # The executor of this test counts nothing.
    assert (counted.request_success, counted.executed_count, counted.execution_count) == (1, 0, 0)


def test_other_values_are_executed(bench: Bench) -> None:
    bench.submit("a", 1)
    bench.submit("b", 2)
    assert [pending.request.id for pending in bench.executor.submitted] == ["a", "b"]


def test_equal_requests_at_the_same_time_are_executed_once(bench: Bench) -> None:
    for id in "abc":
        bench.submit(id, 1)
    assert len(bench.executor.submitted) == 1
    assert bench.scheduler.queued == 2
    bench.executor.answer(10)
    assert [bench.value(id) for id in "abc"] == [10, 10, 10]
    assert bench.scheduler.queued == 0


def test_what_waits_gets_its_answer_even_if_it_is_too_large_for_the_cache(bench: Bench) -> None:
    bench.scheduler.close()
    bench.cache = LocalCache(10)
    bench.scheduler = CachingScheduler(bench.executor, bench.cache, spec(), bench.statistics, bench._resubmit)
    bench.executor.refusal = None
    bench.submit("a", 1)
    bench.submit("b", 1)
    bench.executor.answer(10)
    assert (bench.value("a"), bench.value("b")) == (10, 10)
    bench.submit("c", 1)
    assert len(bench.executor.submitted) == 1


def test_a_failure_is_shared_by_those_that_wait_and_not_kept(bench: Bench) -> None:
    for id in "ab":
        bench.submit(id, 1)
    bench.executor.fail(BackendFailed("broken"))
    assert str(bench.error("a")) == str(bench.error("b")) == "broken"
    assert bench.statistics.snapshot().request_failures[FailureReason.BACKEND] == 1  # that of "b"
    bench.submit("c", 1)
    assert len(bench.executor.submitted) == 1


@pytest.mark.parametrize("error", [RequestCancelled("left"), QueueFull("full", model="m")])
def test_when_the_executed_request_alone_fails_another_one_is_executed(bench: Bench, error: ServerError) -> None:
    for id in "abc":
        bench.submit(id, 1)
    bench.executor.fail(error)
    assert bench.error("a") is error
    assert bench.resubmitted == ["b", "c"]
    assert [pending.request.id for pending in bench.executor.submitted] == ["b"]
    bench.executor.answer(10)
    assert (bench.value("b"), bench.value("c")) == (10, 10)


def test_a_refused_request_leaves_no_flight(bench: Bench) -> None:
    bench.executor.refusal = QueueFull("full", model="m")
    with pytest.raises(QueueFull):
        bench.submit("a", 1)
    bench.executor.refusal = None
    bench.submit("b", 1)
    bench.executor.answer(10)
    assert bench.value("b") == 10
    assert bench.answers["a"] == []


def test_a_cancelled_request_does_not_wait_any_longer(bench: Bench) -> None:
    bench.submit("a", 1)
    bench.submit("b", 1).cancel()
    assert isinstance(bench.error("b"), RequestCancelled)
    bench.executor.answer(10)
    assert bench.value("a") == 10
    assert len(bench.answers["b"]) == 1


def test_a_request_with_a_timeout_does_not_wait_for_another(bench: Bench) -> None:
    bench.submit("a", 1)
    bench.submit("b", 1, timeout_us=1000)
    assert len(bench.executor.submitted) == 2


def test_an_empty_final_response_does_not_hide_the_one_before(bench: Bench) -> None:
    bench.submit("a", 1)
    (pending,) = bench.executor.submitted
    bench.executor.answer(10, final=False)
    pending.on_response(InferenceResponse("m", 1, [], id="a"))
    assert [answer.final for answer in bench.answers["a"]] == [False, True]
    bench.submit("b", 1)
    assert bench.value("b") == 10


def test_more_responses_than_one_are_not_kept(bench: Bench) -> None:
    bench.submit("a", 1)
    (pending,) = bench.executor.submitted
    pending.on_response(InferenceResponse("m", 1, [], id="a", final=False))
    bench.executor.answer(10, final=False)
    pending.on_response(InferenceResponse("m", 1, [], id="a"))
    bench.submit("b", 1)
    assert [each.request.id for each in bench.executor.submitted] == ["b"]


def test_the_key_of_a_large_request_is_made_on_another_thread(bench: Bench) -> None:
    for id in "ab":
        bench.submit(id, 1, size=LARGE)
    until(lambda: bench.resubmitted == ["a", "b"] and bench.scheduler.queued == 1)
    assert len(bench.executor.submitted) == 1
    bench.executor.answer(10)
    assert (bench.value("a"), bench.value("b")) == (10, 10)


def test_a_stopped_scheduler_answers_nothing_from_the_cache(bench: Bench) -> None:
    bench.submit("a", 1)
    bench.executor.answer(10)
    bench.scheduler.stop()
    with pytest.raises(ServerStopping):
        bench.submit("b", 1)
    with pytest.raises(ServerStopping):
        bench.submit("large", 1, size=LARGE)


def test_each_load_has_its_own_answers(bench: Bench) -> None:
    bench.submit("a", 1)
    bench.executor.answer(10)
    other = CachingScheduler(bench.executor, bench.cache, spec(), bench.statistics, bench._resubmit)
    bench.scheduler, first = other, bench.scheduler
    bench.submit("b", 1)
    assert len(bench.executor.submitted) == 1
    first.close()
