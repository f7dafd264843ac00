"""A thread that submits runs short executions itself, in the place of an instance's thread that rests."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from core.backends.base import BackendInstance, Execution
from core.config.model_spec import BatchingSpec, InputSpec, ModelSpec
from core.inference.deferred import Deferred
from core.inference.pending_request import PendingRequest
from core.inference.request import InferenceRequest, InputTensor
from core.inference.tensors import BY_NAME
from core.scheduling.inline_execution import TURN_NS, InlineExecution
from tests.unit.core.scheduling.scheduler_bench import (
    LIMIT_S,
    Bench,
    MakeBench,
    Stub,
    batching,
    instance_threads,
    noted_threads,
    resting,
    resting_bench,
)
from tests.unit.pending_requests import ignore
from tests.waiting import until


@pytest.fixture
def now() -> list[int]:
    """What the clock says, in nanoseconds: it stands, so that executions are short on a busy machine too."""
    return [1]


@pytest.fixture
def bench(make_bench: MakeBench, now: list[int]) -> Bench:
    return resting_bench(make_bench, now)


class Caller:
    """Who submits requests, and makes the calls that are deferred for them when it is told to."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.deferred = Deferred()

    def submit(self, *ids: str) -> None:
        for id in ids:
            request = self._bench.request(id)
            request.defer = self.deferred.add
            self._bench.scheduler.submit(request)

    def run(self) -> None:
        self.deferred.run()

    @property
    def is_asked(self) -> bool:
        return bool(self.deferred._calls)


class AlwaysShort(InlineExecution):
    lasting = True  # type: ignore[assignment]

    def expected(self, batch: Sequence[PendingRequest]) -> bool:
        return True


def test_all_that_was_submitted_runs_on_the_thread_that_submits(bench: Bench) -> None:
    threads = noted_threads(bench)
    caller = Caller(bench)
    caller.submit("a", "b", "c")
    assert bench.backend.batches == []
    caller.run()
    assert bench.backend.batches == [["a", "b", "c"]]
    assert threads == [threading.current_thread().name]
    assert [answer.id for answer in bench.answers] == ["a", "b", "c"]
    assert (bench.scheduler.queued, bench.scheduler.in_flight) == (0, 0)


def test_what_is_left_runs_there_as_well(bench: Bench) -> None:
    threads = noted_threads(bench)
    caller = Caller(bench)
    ids = [str(number) for number in range(11)]
    caller.submit(*ids)
    caller.run()
    assert [answer.id for answer in bench.answers] == ids
    assert bench.backend.batches == [ids[:8], ids[8:]]
    assert threads == [threading.current_thread().name] * 2


def test_another_instance_that_rests_takes_a_part_of_what_is_left(bench: Bench) -> None:
    second = Stub(1)
    bench.backends.append(second)
    bench.scheduler.add(second)
    resting(bench, 2)
    second.gate.clear()
    bench.scheduler._idle.reverse()
    caller = Caller(bench)
    ids = [str(number) for number in range(16)]
    caller.submit(*ids)

    def runs_once_the_other_has_begun(requests: Sequence[InferenceRequest], batch_sizes: Sequence[int]) -> Execution:
        bench.begun(1)
        second.gate.set()
        return execute(requests, batch_sizes)

    execute, bench.backend.execute = bench.backend.execute, runs_once_the_other_has_begun  # type: ignore[method-assign]
    caller.run()
    assert sorted(bench.wait(16), key=int) == ids
    assert (bench.backend.batches, second.batches) == ([ids[:8]], [ids[8:]])


def test_after_a_while_the_rest_goes_to_the_instance_s_own_thread(
    bench: Bench, now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = noted_threads(bench)
    caller = Caller(bench)
    ids = [str(number) for number in range(24)]
    caller.submit(*ids)
    execute = bench.backend.execute

    def taking_long(requests: Sequence[InferenceRequest], batch_sizes: Sequence[int]) -> Execution:
        now[0] += TURN_NS // 2 + 1
        return execute(requests, batch_sizes)

    bench.backend.execute = taking_long  # type: ignore[method-assign]
    monkeypatch.setattr(bench.scheduler, "_short_runs", AlwaysShort(bench.scheduler._spec))
    caller.run()
    assert bench.wait(24) == ids
    assert threads == [threading.current_thread().name] * 2 + ["trident-m_0_0"]


def test_a_request_whose_thread_defers_nothing_does_not_wait(bench: Bench) -> None:
    caller = Caller(bench)
    caller.submit("a")
    bench.submit("b")
    assert bench.wait(2) == ["a", "b"]
    caller.run()
    assert len(bench.answers) == 2


def test_nothing_is_deferred_while_the_instance_runs(bench: Bench) -> None:
    bench.backend.begun = threading.Semaphore(0)
    bench.backend.gate.clear()
    bench.submit("a")
    bench.begun()
    caller = Caller(bench)
    caller.submit("b")
    assert not caller.is_asked
    bench.backend.gate.set()
    assert bench.wait(2) == ["a", "b"]


def test_an_error_is_an_answer(bench: Bench) -> None:
    caller = Caller(bench)
    caller.submit("a", "x", "b")
    caller.run()
    assert sorted(bench.wait(3)) == ["a", "b", "x"]
    assert bench.error("a") is None
    assert str(bench.error("x")) == "bad input"


@pytest.mark.parametrize("end", ["close", "remove"])
def test_the_instance_goes_while_another_thread_runs_in_its_place(bench: Bench, end: str) -> None:
    scheduler = bench.scheduler
    if end == "remove":
        successor = Stub(1)
        bench.backends.append(successor)
        scheduler.add(successor)
        resting(bench, 2)
        scheduler._idle.reverse()  # the last one is taken
    bench.backend.begun = threading.Semaphore(0)
    bench.backend.gate.clear()
    caller = Caller(bench)
    caller.submit("a")
    helping = threading.Thread(target=caller.run)
    helping.start()
    bench.begun()
    ending = threading.Thread(target=scheduler.close if end == "close" else lambda: scheduler.remove(bench.backend))
    ending.start()
    until(lambda: scheduler._threads[0].retired or scheduler._closed)
    assert not bench.answers
    bench.backend.gate.set()
    for thread in (helping, ending):
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert bench.wait(1) == ["a"]
    assert bench.error("a") is None
    assert instance_threads() == ([] if end == "close" else ["trident-m_0_1"])


def test_an_instance_that_was_lent_may_go_later(bench: Bench) -> None:
    caller = Caller(bench)
    caller.submit("a")
    caller.run()
    bench.scheduler.add(Stub(1))
    removing = threading.Thread(target=bench.scheduler.remove, args=(bench.backend,))
    removing.start()
    removing.join(LIMIT_S)
    assert instance_threads() == ["trident-m_0_1"]


def test_instances_come_and_go_while_callers_run(make_bench: MakeBench) -> None:
    bench = make_bench(batching(8), instances=2, clock=lambda: 1)
    bench.scheduler.start()
    done = threading.Event()
    counts: list[int] = []

    def submit_bursts(number: int) -> None:
        source = random.Random(number)
        caller = Caller(bench)
        sent = 0
        while not done.is_set():
            burst = [f"{number}-{sent + index}" for index in range(source.randint(1, 12))]
            sent += len(burst)
            (caller.submit if source.random() < 0.8 else bench.submit)(*burst)
            caller.run()
            if sent % 7 == 0:
                bench.scheduler.drain(LIMIT_S)
        counts.append(sent)

    callers = [threading.Thread(target=submit_bursts, args=(number,)) for number in range(3)]
    for caller in callers:
        caller.start()
    serving: list[BackendInstance] = list(bench.backends)
    source = random.Random(1)
    for number in range(200):
        serving.append(Stub(2 + number))
        bench.scheduler.add(serving[-1])
        if len(serving) > source.randint(1, 4):
            bench.scheduler.remove(serving.pop(source.randrange(len(serving))))
    done.set()
    for caller in callers:
        caller.join(LIMIT_S)
        assert not caller.is_alive()
    assert bench.scheduler.drain(LIMIT_S)
    answered = [answer.id for answer in bench.answers]
    assert len(answered) == len(set(answered)) == sum(counts)
    assert all(answer.error is None for answer in bench.answers)
    assert (bench.scheduler.queued, bench.scheduler.in_flight) == (0, 0)
    until(lambda: bench.scheduler._waking == 0)  # one may be on its way to a queue that another has emptied


def test_a_batch_much_larger_than_those_that_were_short_runs_on_the_instance_s_own_thread(
    make_bench: MakeBench,
) -> None:
    bench = resting_bench(make_bench, items=3)
    threads = noted_threads(bench)
    caller = Caller(bench)
    caller.submit("a", "b", "c", "d", "e", "f", "g")
    caller.run()
    assert bench.wait(7) == list("abcdefg")
    assert set(threads) == {"trident-m_0_0"}


def test_an_instance_that_may_not_run_inline_executes_on_its_own_thread(bench: Bench) -> None:
    bench.backend.may_run_inline = False
    caller = Caller(bench)
    caller.submit("a")
    assert not caller.is_asked
    assert bench.wait(1) == ["a"]


def spec(dims: tuple[int, ...], batching: BatchingSpec | None = None, datatype: str = "FP32") -> ModelSpec:
    return ModelSpec(
        name="m",
        version=1,
        platform="",
        backend="stub",
        max_batch_size=8,
        inputs={"IN": InputSpec(name="IN", datatype=BY_NAME[datatype], dims=dims)},
        outputs={},
        batching=batching,
    )


def batch(items: int = 1) -> list[PendingRequest]:
    tensor = InputTensor("IN", "FP32", (items, 3), np.zeros(3 * items, np.float32))
    return [PendingRequest(InferenceRequest("m", [tensor]), ignore)]


def test_short_are_those_that_have_been_for_a_while() -> None:
    runs = InlineExecution(spec((3, 4)))
    for _ in range(15):
        runs.note(batch(), 100_000)
    assert not runs.lasting
    runs.note(batch(), 100_000)
    assert runs.lasting
    assert runs.expected(batch())
    runs.note(batch(), 2_000_000)
    assert not runs.lasting


def test_many_requests_may_take_longer_than_one() -> None:
    runs = InlineExecution(spec((3, 4)))
    for _ in range(16):
        runs.note(batch() * 64, 2_000_000)
    assert runs.lasting


def test_a_short_one_says_nothing_of_one_much_larger() -> None:
    runs = InlineExecution(spec((3, 4)))
    for _ in range(16):
        runs.note(batch(4), 100_000)
    assert [runs.expected(batch(items)) for items in (1, 8, 9)] == [True, True, False]
    runs.note(batch(8), 100_000)
    assert runs.expected(batch(9))


def test_one_that_computes_for_longer_is_left_to_its_thread_and_tried_again_later() -> None:
    runs = InlineExecution(spec((3, 4)))
    for _ in range(16):
        runs.note(batch(), 100_000)
    runs.note(batch(), 900_000, lent=True)  # once says nothing: others use the machine as well
    assert runs.lasting
    lent = 0
    while runs.lasting:
        runs.note(batch(), 500_000, lent=True)
        lent += 1
    assert 1 < lent < 32
    waited = 0
    while not runs.lasting:
        runs.note(batch(), 500_000)
        waited += 1
    assert waited > 500


def test_one_that_takes_little_stays_where_it_is() -> None:
    runs = InlineExecution(spec((3, 4)))
    for _ in range(16):
        runs.note(batch() * 16, 600_000)
    for _ in range(1000):
        runs.note(batch() * 16, 300_000, lent=True)
    assert runs.lasting


@pytest.mark.parametrize("model", [spec((3,), batching(4, delay_ns=1000)), spec((3,), datatype="BYTES")])
def test_what_cannot_be_known_to_be_short(model: ModelSpec) -> None:
    runs = InlineExecution(model)
    for _ in range(100):
        runs.note(batch(), 1)
    assert not runs.lasting
