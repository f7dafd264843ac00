"""A thread that submits runs short executions itself, in place of an instance's thread that rests."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from core.backends.base import BackendInstance, Execution, Placement
from core.config.model_spec import BatchingSpec, InputSpec, ModelSpec
from core.inference import InferenceRequest
from core.scheduling.short_runs import ShortRuns
from core.tensors import BY_NAME
from tests.unit.scheduler_bench import LIMIT_S, Bench, MakeBench, Stub, batching, benches, instance_threads, until


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    with benches() as make:
        yield make


def resting(bench: Bench, number: int = 1) -> None:
    until(lambda: len(bench.scheduler._idle) == number)


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    """Its one instance rests, and its executions have been short: on a clock that stands, so that they always are."""
    bench = make_bench(batching(8), clock=lambda: 1)
    bench.scheduler.start()
    resting(bench)
    for number in range(16):
        bench.scheduler.submit(bench.request(str(number), batch_size=8))
        bench.wait(number + 1)
        resting(bench)
    bench.answers.clear()
    bench.backend.batches.clear()
    return bench


class Helper:
    """A thread that helps: what it is asked to call, and whether it is asked at all."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.asked: set[Callable[[], None]] = set()

    def submit(self, *ids: str) -> None:
        for id in ids:
            request = self._bench.request(id)
            request.helper = self.asked.add
            self._bench.scheduler.submit(request)

    def help(self) -> None:
        while self.asked:
            self.asked.pop()()


def noted_threads(bench: Bench) -> list[str]:
    """The names of the threads that execute from now on."""
    threads: list[str] = []
    execute = bench.backend.execute

    def noting(requests: Sequence[InferenceRequest]) -> Execution:
        threads.append(threading.current_thread().name)
        return execute(requests)

    bench.backend.execute = noting  # type: ignore[method-assign]
    return threads


def test_all_that_was_submitted_runs_on_the_thread_that_helps(bench: Bench) -> None:
    threads = noted_threads(bench)
    helper = Helper(bench)
    helper.submit("a", "b", "c")
    assert bench.backend.batches == []
    helper.help()
    assert bench.backend.batches == [["a", "b", "c"]]
    assert threads == [threading.current_thread().name]
    assert [answer.id for answer in bench.answers] == ["a", "b", "c"]
    assert (bench.scheduler.queued, bench.scheduler.in_flight) == (0, 0)


def test_what_is_left_wakes_the_instance_s_own_thread(bench: Bench) -> None:
    helper = Helper(bench)
    ids = [str(number) for number in range(11)]
    helper.submit(*ids)
    helper.help()
    assert bench.wait(11) == ids
    assert bench.backend.batches == [ids[:8], ids[8:]]


def test_a_request_without_a_helper_does_not_wait_for_one(bench: Bench) -> None:
    helper = Helper(bench)
    helper.submit("a")
    bench.submit("b")
    assert bench.wait(2) == ["a", "b"]
    helper.help()
    assert len(bench.answers) == 2


def test_nobody_helps_while_the_instance_runs(bench: Bench) -> None:
    bench.backend.begun = threading.Semaphore(0)
    bench.backend.gate.clear()
    bench.submit("a")
    bench.begun()
    helper = Helper(bench)
    helper.submit("b")
    assert not helper.asked
    bench.backend.gate.set()
    assert bench.wait(2) == ["a", "b"]


def test_an_error_is_an_answer(bench: Bench) -> None:
    helper = Helper(bench)
    helper.submit("a", "x", "b")
    helper.help()
    assert sorted(bench.wait(3)) == ["a", "b", "x"]
    assert bench.error("a") is None
    assert str(bench.error("x")) == "bad input"


@pytest.mark.parametrize("end", ["close", "remove"])
def test_the_instance_goes_while_somebody_helps(bench: Bench, end: str) -> None:
    scheduler = bench.scheduler
    if end == "remove":
        successor = Stub(1)
        bench.backends.append(successor)
        scheduler.add(successor)
        resting(bench, 2)
        scheduler._idle.reverse()  # the last one is taken
    bench.backend.begun = threading.Semaphore(0)
    bench.backend.gate.clear()
    helper = Helper(bench)
    helper.submit("a")
    helping = threading.Thread(target=helper.help)
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
    helper = Helper(bench)
    helper.submit("a")
    helper.help()
    bench.scheduler.add(Stub(1))
    removing = threading.Thread(target=bench.scheduler.remove, args=(bench.backend,))
    removing.start()
    removing.join(LIMIT_S)
    assert instance_threads() == ["trident-m_0_1"]


def test_instances_come_and_go_while_many_help(make_bench: MakeBench) -> None:
    bench = make_bench(batching(8), instances=2, clock=lambda: 1)
    bench.scheduler.start()
    done = threading.Event()
    counts: list[int] = []

    def submit_bursts(number: int) -> None:
        source = random.Random(number)
        helper = Helper(bench)
        sent = 0
        while not done.is_set():
            burst = [f"{number}-{sent + index}" for index in range(source.randint(1, 12))]
            sent += len(burst)
            (helper.submit if source.random() < 0.8 else bench.submit)(*burst)
            helper.help()
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


def test_a_batch_much_larger_than_those_that_were_short_runs_on_the_instance_s_own_thread(bench: Bench) -> None:
    threads = noted_threads(bench)
    helper = Helper(bench)
    ids = [str(number) for number in range(17)]
    helper.submit(*ids)
    helper.help()
    assert bench.wait(17) == ids
    assert set(threads) == {"trident-m_0_0"}


def test_an_instance_on_a_gpu_runs_on_its_own_thread(bench: Bench) -> None:
    bench.backend.placement = Placement("m_0_0", "GPU")
    helper = Helper(bench)
    helper.submit("a")
    assert not helper.asked
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


def batch(items: int = 1) -> list[InferenceRequest]:
    request = InferenceRequest("m", [])
    request.batch_size = items
    return [request]


def test_short_are_those_that_have_been_for_a_while() -> None:
    runs = ShortRuns(spec((3, 4)))
    for _ in range(15):
        runs.note(batch(), 100_000)
    assert not runs.expected(1)
    runs.note(batch(), 100_000)
    assert runs.expected(1)
    runs.note(batch(), 2_000_000)
    assert not runs.expected(1)


def test_a_short_one_says_nothing_of_one_much_larger() -> None:
    runs = ShortRuns(spec((3, 4)))
    for _ in range(16):
        runs.note(batch(4), 100_000)
    assert [runs.expected(items) for items in (1, 8, 9)] == [True, True, False]
    runs.note(batch(8), 100_000)
    assert runs.expected(9)


@pytest.mark.parametrize("model", [spec((3, -1)), spec((3,), batching(4, delay_ns=1000)), spec((3,), datatype="BYTES")])
def test_what_cannot_be_known_to_be_short(model: ModelSpec) -> None:
    runs = ShortRuns(model)
    for _ in range(100):
        runs.note(batch(), 1)
    assert not runs.expected(1)
