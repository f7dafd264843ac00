"""The scheduler that answers from the response cache, with caches in this process and in another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.core.scheduling.scheduler_bench import IdleScheduler
from tests.unit.packed_tensors import TWO, spec
from tests.waiting import until
from trident.core.config.spec import BatchingSpec, QueuePolicy
from trident.core.errors import QueueFull, RequestCancelled, ServerError, ServerStopping
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import layout_of
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.switches import SWITCHES
from trident.core.response_cache.response_cache import CachedResponse, FaultOf, GiveUp, LocalCache, OnFound
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.response_cache import LARGE, CachingScheduler


class Executor(IdleScheduler):
    """The scheduler behind the cache: holds submitted requests until the test answers them."""

    def __init__(self) -> None:
        self.submitted: list[PendingRequest] = []
        self.refusal: ServerError | None = None

    def submit(self, pending: PendingRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(pending)

    def stop(self, *, accept_nested: bool = False) -> None:
        self.refusal = ServerStopping("stopped")

    def answer(self, value: int = 0, **fields: object) -> None:
        """Answer the oldest request that was submitted."""
        pending = self.submitted.pop(0)
        array = np.array([value], np.int32)
        outputs = [OutputTensor("OUT", "INT32", (1,), array)]
        pending.on_response(InferenceResponse("m", 1, outputs, id=pending.request.id, **fields))  # type: ignore[arg-type]


class ElsewhereCache(LocalCache):
    """A cache in another process: holds look-ups until the test answers them."""

    answers_later = True

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.asked: list[Asked] = []

    def get(self, key: bytes) -> CachedResponse | None:
        return None

    def look_up(self, key: bytes, fault_of: FaultOf, on_found: OnFound) -> GiveUp:  # type: ignore[override]
        self.asked.append(Asked(fault_of, on_found))
        return self.asked[-1].give_up

    def answer(self, value: int | None) -> None:
        """Answer the oldest look-up."""
        found = None
        if value is not None:
            outputs = [OutputTensor("OUT", "INT32", (1,), np.array([value], np.int32))]
            found = CachedResponse.of(InferenceResponse("m", 1, outputs))
        self.asked.pop(0).end(found)


class Asked:
    def __init__(self, fault_of: FaultOf, on_found: OnFound) -> None:
        self.fault_of = fault_of
        self._on_found: OnFound | None = on_found

    def give_up(self) -> None:
        self.end(None)

    def end(self, found: CachedResponse | None) -> None:
        on_found, self._on_found = self._on_found, None
        if on_found is not None:
            on_found(found)


def request_of(id: str, value: int = 0, size: int = 1, **fields: Any) -> InferenceRequest:
    tensor = InputTensor("IN", "INT32", (size,), np.full(size, value, np.int32))
    return InferenceRequest("m", [tensor], id=id, **fields)


class Bench:
    def __init__(self, cache: LocalCache | None = None) -> None:
        self.executor = Executor()
        self.spec = spec()
        self.statistics = ModelStatistics()
        self.cache = cache or LocalCache(1 << 20)
        self.resubmitted: list[str] = []
        self.answers: dict[str, list[InferenceResponse]] = {}
        self.scheduler = self.open()

    def open(self) -> CachingScheduler:
        """The scheduler of another load."""
        scope = self.cache.open_scope("m", 1, lambda: None)
        context = SchedulingContext(self.spec, self.statistics)
        return CachingScheduler(context, self.executor, self.cache, scope, Resubmitting(self))

    def submit(self, id: str, value: int = 0, size: int = 1, timeout_us: int = 0) -> PendingRequest:
        request = request_of(id, value, size)
        request.timeout_us = timeout_us
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


class Resubmitting:
    """The model version: notes which requests are submitted again."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def submit(self, pending: PendingRequest) -> None:
        self._bench.resubmitted.append(pending.request.id)
        self._bench.scheduler.submit(pending)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.scheduler.close()
    assert made.cache.metrics().entries == 0


def test_a_request_with_a_timeout_does_not_wait_for_another(bench: Bench) -> None:
    bench.submit("a", 1)
    bench.submit("b", 1, timeout_us=1000)
    assert len(bench.executor.submitted) == 2
    policy = QueuePolicy(default_timeout_ns=1000)
    bench.spec = replace(bench.spec, batching=BatchingSpec(preferred_batch_sizes=(1,), default_policy=policy))
    bench.scheduler = bench.open()
    bench.submit("c", 2)
    bench.submit("d", 2)
    assert len(bench.executor.submitted) == 4


def test_an_empty_final_response_does_not_hide_the_one_before(bench: Bench) -> None:
    bench.submit("a", 1)
    (pending,) = bench.executor.submitted
    bench.executor.answer(10, final=False)
    pending.on_response(InferenceResponse("m", 1, [], id="a"))
    assert [answer.final for answer in bench.answers["a"]] == [False, True]
    bench.submit("b", 1)
    assert bench.value("b") == 10


def test_several_responses_are_not_cached(bench: Bench) -> None:
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


def test_cached_responses_wait_for_earlier_requests(bench: Bench) -> None:
    bench.spec = replace(bench.spec, batching=BatchingSpec(preferred_batch_sizes=(1,), preserve_ordering=True))
    bench.scheduler = bench.open()
    assert bench.scheduler.answers_at_once is None
    bench.submit("a", 1)
    bench.executor.answer(10)
    bench.submit("b", 2)
    bench.submit("c", 1)
    bench.submit("d", 1, size=LARGE)
    bench.submit("e", 1)
    assert [len(bench.answers[id]) for id in "abcde"] == [1, 0, 0, 0, 0]
    bench.executor.answer(20)
    assert [len(bench.answers[id]) for id in "abcde"] == [1, 1, 1, 0, 0]
    until(lambda: len(bench.executor.submitted) == 1)
    bench.executor.answer(30)
    assert [bench.value(id) for id in "abcde"] == [10, 20, 10, 30, 10]


def test_stopped_scheduler_does_not_answer_from_the_cache(bench: Bench) -> None:
    bench.submit("a", 1)
    bench.executor.answer(10)
    assert bench.scheduler.answers_at_once is not None
    assert bench.scheduler.answers_at_once(request_of("b", 1), 1) is not None
    bench.scheduler.stop()
    assert bench.scheduler.answers_at_once(request_of("b", 1), 1) is None
    with pytest.raises(ServerStopping):
        bench.submit("b", 1)
    with pytest.raises(ServerStopping):
        bench.submit("large", 1, size=LARGE)


# --- answers at hand


def test_cache_hits_have_times_on_demand(bench: Bench) -> None:
    asking = {"timing": True}
    SWITCHES.set(timing=True)
    pending = PendingRequest(request_of("a", parameters=asking), bench.answers.setdefault("a", []).append)
    bench.scheduler.submit(pending)
    bench.executor.answer(10)
    answer = bench.scheduler.answers_at_once(request_of("b", parameters=asking), 4)
    assert answer is not None
    assert answer.times is not None
    assert answer.times.batch_size == 4
    assert answer.parameters == answer.times.parameters()


# --- a cache in another process


@pytest.fixture
def elsewhere() -> ElsewhereCache:
    return ElsewhereCache()


@pytest.fixture
def asking(elsewhere: ElsewhereCache) -> Iterator[Bench]:
    made = Bench(elsewhere)
    yield made
    made.scheduler.close()


def test_remote_cache_hit_answers_all_equal_requests(asking: Bench, elsewhere: ElsewhereCache) -> None:
    for id in "abc":
        asking.submit(id, 1)
    assert len(elsewhere.asked) == 1
    assert asking.scheduler.queued == 3
    elsewhere.answer(10)
    assert [asking.value(id) for id in "abc"] == [10, 10, 10]
    assert (asking.scheduler.queued, asking.executor.submitted) == (0, [])
    counted = asking.statistics.snapshot()
    assert (counted.cache_hit_count, counted.cache_miss_count) == (3, 0)


@pytest.mark.parametrize(
    ("outputs", "fault"),
    [
        ([("A", "INT32", (2, 3), 24)], ""),
        ([("A", "INT32", (2, 3), 24), ("B", "FP64", (2, 1), 16)], ""),
        ([("C", "INT32", (2, 3), 24)], "it has an output that was not asked for"),
        ([("A", "FP32", (2, 3), 24)], "output 'A' is not of the model's datatype and shape"),
        ([("A", "INT32", (2, 4), 32)], "output 'A' is not of the model's datatype and shape"),
        ([("A", "INT32", (6,), 24)], "output 'A' is not of the model's datatype and shape"),
    ],
    ids=range(6),
)
def test_remote_cache_answer_that_does_not_fit_the_model_is_ignored(
    asking: Bench, elsewhere: ElsewhereCache, outputs: list[tuple[str, str, tuple[int, ...], int]], fault: str
) -> None:
    asking.spec = TWO
    asking.scheduler = asking.open()
    asking.submit("a", 1)
    asking.scheduler.submit(PendingRequest(request_of("b", outputs=("A",)), asking.answers.setdefault("b", []).append))
    of_all, of_one = (asked.fault_of(layout_of(outputs)) for asked in elsewhere.asked)
    assert of_all == fault
    assert of_one == ("it has an output that was not asked for" if len(outputs) > 1 else fault)


def test_remote_cache_miss_is_executed_once_and_cached(asking: Bench, elsewhere: ElsewhereCache) -> None:
    for id in "ab":
        asking.submit(id, 1)
    elsewhere.answer(None)
    (executed,) = asking.executor.submitted
    assert executed.request.id == "a"
    assert executed.start_ns > 0
    asking.executor.answer(10)
    assert [asking.value(id) for id in "ab"] == [10, 10]
    assert elsewhere.metrics().entries == 1
    counted = asking.statistics.snapshot()
    assert (counted.cache_hit_count, counted.cache_miss_count) == (1, 1)


def test_refusal_after_a_lookup_ends_the_shared_execution(asking: Bench, elsewhere: ElsewhereCache) -> None:
    for id in "ab":
        asking.submit(id, 1)
    asking.executor.refusal = QueueFull("full", model="m")
    elsewhere.answer(None)
    assert isinstance(asking.error("a"), QueueFull)
    asking.executor.refusal = None
    elsewhere.answer(None)  # of "b", which asks for itself now
    asking.executor.answer(10)
    assert asking.value("b") == 10


def test_lookup_pending_at_the_stop_is_executed(asking: Bench, elsewhere: ElsewhereCache) -> None:
    asking.submit("a", 1)
    asking.scheduler.stop()
    assert [pending.request.id for pending in asking.executor.submitted] == ["a"]
    asking.executor.answer(10)
    assert asking.value("a") == 10
    elsewhere.answer(20)
    assert len(asking.answers["a"]) == 1


def test_request_cancelled_during_its_lookup_is_answered_cancelled(asking: Bench, elsewhere: ElsewhereCache) -> None:
    asking.submit("a", 1).cancel()
    elsewhere.answer(10)
    assert isinstance(asking.error("a"), RequestCancelled)
