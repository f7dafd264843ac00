"""Stub instances, and dynamic batchers on them, for tests: they record batches and responses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from tests.threads import server_threads
from tests.waiting import until
from trident.core.backends.backend import Execution
from trident.core.config.placement import NO_LIMIT, DeviceKind, InstanceLimit, Placement, ResourceNeed
from trident.core.config.spec import BatchingSpec, ModelSpec, QueuePolicy
from trident.core.errors import InvalidRequest
from trident.core.inference.pending_request import (
    LATER,
    DeferredOutcome,
    PendingRequest,
    ResponseSender,
    StreamedRequest,
)
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse, Outputs, OutputTensor
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.options import DEFAULT_WINDOW, WindowLimits
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.dynamic_batcher import DynamicBatcher
from trident.core.scheduling.rate_limiter import InstanceReservations, RateLimiter
from trident.core.scheduling.scheduler import Scheduler

LIMIT_S = 60.0
"""The time that a test waits for an event before it fails, in seconds."""

LONG_NS = 3_600_000_000_000
"""A queue delay that is longer than any test."""


Outcomes = list[Outputs | Exception | DeferredOutcome]


class StubInstance:
    """A backend instance without a framework. An execution has the `outcomes` of its requests."""

    poisoned = False
    may_run_inline = True
    answers_later = False

    def __init__(self, number: int = 0, limit: InstanceLimit = NO_LIMIT) -> None:
        self.placement = Placement(f"m_0_{number}", DeviceKind.CPU, limit=limit)

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        outcomes = self.outcomes(requests, senders)
        now_ns = time.monotonic_ns()
        return Execution(outcomes, now_ns, now_ns)

    def outcomes(self, requests: Sequence[InferenceRequest], senders: Sequence[ResponseSender]) -> Outcomes:
        raise NotImplementedError

    def let_go(self) -> None:
        """Answer the remaining requests at the end of the test."""

    def close(self) -> None: ...


class Stub(StubInstance):
    """Records its batches. While `gate` is clear, executions begin but do not end. Id `x…` makes its batch raise."""

    def __init__(self, number: int = 0, limit: InstanceLimit = NO_LIMIT) -> None:
        super().__init__(number, limit)
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)
        self.batches: list[list[str]] = []

    def outcomes(self, requests: Sequence[InferenceRequest], senders: Sequence[ResponseSender]) -> Outcomes:
        self.batches.append([request.id for request in requests])
        self.begun.release()
        assert self.gate.wait(LIMIT_S)
        if any(request.id.startswith("x") for request in requests):
            raise RuntimeError("bad input")
        return [self.outputs(request) for request in requests]

    def outputs(self, request: InferenceRequest) -> Outputs:
        return []

    def let_go(self) -> None:
        self.gate.set()


class EchoInstance(StubInstance):
    """Returns each request's id. Id `x…` makes the whole batch raise, `e…` is an error of that request alone."""

    def __init__(self, error: type[Exception] = RuntimeError, *, poison: bool = False) -> None:
        super().__init__()
        self.error = error
        self.poison = poison
        self.batches: list[str] = []

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        return Execution(self.outcomes(requests, senders), 20, 30)

    def outcomes(self, requests: Sequence[InferenceRequest], senders: Sequence[ResponseSender]) -> Outcomes:
        self.batches.append("".join(request.id for request in requests))
        if any(request.id == "x" for request in requests):
            self.poisoned = self.poison
            raise self.error("no such gather")
        return [InvalidRequest("its own fault") if request.id == "e" else text(request.id) for request in requests]


def text(value: str) -> list[OutputTensor]:
    """Outputs that say `value`."""
    return [OutputTensor("OUT", "BYTES", (1,), np.array([value.encode()], dtype=object))]


class IdleScheduler:
    """Implements every method of Scheduler except `submit`."""

    queued = in_flight = 0

    def start(self) -> None: ...

    def stop(self, *, accept_nested: bool = False) -> None: ...

    def drain(self, timeout_s: float | None = None) -> bool:
        return True

    def close(self, timeout_s: float | None = None, because: str = "") -> bool:
        self.stop()
        return True

    def forget(self, instance: object) -> None: ...

    add = forget

    def remove(self, instance: object) -> Callable[[], None]:
        raise NotImplementedError


class Answers:
    """The responses to the requests of a bench, as they arrive."""

    def __init__(self) -> None:
        self.answers: list[InferenceResponse] = []
        self._answered = threading.Condition()

    def on_response(self, response: InferenceResponse) -> None:
        with self._answered:
            self.answers.append(response)
            self._answered.notify_all()

    def wait(self, count: int) -> list[str]:
        """Wait for `count` responses; returns their ids in order."""
        with self._answered:
            assert self._answered.wait_for(lambda: len(self.answers) >= count, LIMIT_S), self.answers
            return [answer.id for answer in self.answers]

    def answer(self, id: str) -> InferenceResponse:
        (answer,) = [answer for answer in self.answers if answer.id == id]
        return answer

    def error(self, id: str) -> Exception | None:
        return self.answer(id).error

    def outcomes(self) -> dict[str, str]:
        """Each request with `ok` or the class of its error; raises if one has not exactly one final response."""
        finals = [answer for answer in self.answers if answer.final]
        assert len({answer.id for answer in finals}) == len(finals), "answered twice"
        return {answer.id: "ok" if answer.error is None else type(answer.error).__name__ for answer in finals}


def model_spec(max_batch_size: int = 8, batching: BatchingSpec | None = None) -> ModelSpec:
    return ModelSpec(
        name="m",
        version=1,
        platform="",
        backend="stub",
        max_batch_size=max_batch_size,
        inputs={},
        outputs={},
        batching=batching,
    )


class Bench(Answers):
    """A scheduler with stub instances, and the responses to its requests."""

    def __init__(
        self,
        batching: BatchingSpec | None = None,
        *,
        max_batch_size: int = 8,
        instances: int = 1,
        delay_until: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
        limiter: RateLimiter | None = None,
        limits: Sequence[InstanceLimit] = (),
    ) -> None:
        """`limits` are those of the first instances, for the `limiter`."""
        super().__init__()
        spec = model_spec(max_batch_size, batching)
        given = [*limits, *[NO_LIMIT] * instances]
        self.backends = [Stub(number, given[number]) for number in range(instances)]
        self.backend = self.backends[0]
        self.statistics = ModelStatistics()
        self.reservations = InstanceReservations(limiter)
        for backend in self.backends:
            self.reservations.add(backend, "m")
        context = SchedulingContext(
            spec, self.statistics, clock=clock, delay_until=delay_until, reservations=self.reservations
        )
        self.scheduler = DynamicBatcher(context, self.backends)

    def request(self, id: str, *, batch_size: int = 1, start_ns: int = 0, **fields: int) -> PendingRequest:
        tensor = InputTensor("IN", "UINT8", (batch_size,), np.zeros(batch_size, np.uint8))
        pending = PendingRequest(InferenceRequest("m", [tensor], id=id, **fields), self.on_response)
        pending.batch_size = batch_size
        pending.start_ns = start_ns
        return pending

    def submit(self, *ids: str) -> list[PendingRequest]:
        requests = [self.request(id) for id in ids]
        for request in requests:
            self.scheduler.submit(request)
        return requests

    def begun(self, number: int = 0) -> None:
        """Wait until instance `number` has begun one more execution."""
        assert self.backends[number].begun.acquire(timeout=LIMIT_S)


MakeBench = Callable[..., Bench]
Made = TypeVar("Made", bound="HasScheduler")


class HasScheduler(Protocol):
    """A bench: a scheduler on stub instances."""

    @property
    def backends(self) -> Sequence[StubInstance]: ...

    @property
    def scheduler(self) -> Scheduler: ...


@contextmanager
def closing(kind: Callable[..., Made]) -> Iterator[Callable[..., Made]]:
    """Makes benches. At the end their schedulers are closed, every request is answered, and no thread is left."""
    made: list[Made] = []

    def make(*args: object, **options: object) -> Made:
        made.append(kind(*args, **options))
        return made[-1]

    try:
        yield make
    finally:
        for bench in made:
            for backend in bench.backends:
                backend.let_go()
            assert bench.scheduler.close(LIMIT_S)
            assert bench.scheduler.in_flight == 0
    assert server_threads() == []


def benches() -> AbstractContextManager[MakeBench]:
    return closing(Bench)


def batching(
    *preferred: int, delay_ns: int = 0, policy: QueuePolicy | None = None, ordered: bool = False
) -> BatchingSpec:
    return BatchingSpec(
        preferred_batch_sizes=preferred,
        max_queue_delay_ns=delay_ns,
        preserve_ordering=ordered,
        default_policy=policy or QueuePolicy(),
    )


def resting(bench: Bench, number: int = 1) -> None:
    """Wait until `number` instances are idle."""
    until(lambda: len(bench.scheduler._pool.idle) == number)


def resting_bench(make_bench: MakeBench, now: Sequence[int] = (1,), items: int = 8, delay_ns: int = 0) -> Bench:
    """A bench whose one instance is idle, and whose executions of `items` items have been short."""
    bench = make_bench(batching(8, delay_ns=delay_ns), clock=lambda: now[0])
    bench.scheduler.start()
    resting(bench)
    for number in range(16):
        bench.scheduler.submit(bench.request(str(number), batch_size=items))
        bench.wait(number + 1)
        resting(bench)
    bench.answers.clear()
    bench.backend.batches.clear()
    return bench


def noted_threads(bench: Bench) -> list[str]:
    """A list that gets the name of the thread of each execution from now on."""
    threads: list[str] = []
    execute = bench.backend.execute

    def noting(requests: Sequence[InferenceRequest], batch_sizes: Sequence[int]) -> Execution:
        threads.append(threading.current_thread().name)
        return execute(requests, batch_sizes)

    bench.backend.execute = noting  # type: ignore[method-assign]
    return threads


def limit(priority: int = 1, *, everywhere: bool = False, **needs: int) -> InstanceLimit:
    """`needs` are counts by the name of the resource; `everywhere` makes them global."""
    return InstanceLimit(tuple(ResourceNeed(name, count, everywhere) for name, count in needs.items()), priority)


def placed(name: str, of: InstanceLimit, gpu: int | None = None) -> Placement:
    """On a GPU with a number, on the CPU without."""
    return Placement(name, DeviceKind.CPU if gpu is None else DeviceKind.GPU, gpu or 0, of)


# --- an instance that answers through senders


Answer = Callable[[InferenceRequest, ResponseSender], Outputs | Exception | DeferredOutcome]


class LaterStub(StubInstance):
    """Answers each request as `answer` says, by default later. `senders` keeps those of requests answered later."""

    may_run_inline = False
    answers_later = True

    def __init__(self, number: int = 0, answer: Answer | None = None) -> None:
        super().__init__(number)
        self.answer = answer
        self.senders: dict[str, ResponseSender] = {}
        self._kept = threading.Condition()

    def outcomes(self, requests: Sequence[InferenceRequest], senders: Sequence[ResponseSender]) -> Outcomes:
        return [self._outcome(*pair) for pair in zip(requests, senders, strict=True)]

    def _outcome(self, request: InferenceRequest, sender: ResponseSender) -> Outputs | Exception | DeferredOutcome:
        if self.answer is not None:
            return self.answer(request, sender)
        with self._kept:
            self.senders[request.id] = sender
            self._kept.notify_all()
        return LATER

    def sender(self, id: str) -> ResponseSender:
        """Wait until request `id` is executed; the instance keeps its sender no longer."""
        with self._kept:
            assert self._kept.wait_for(lambda: id in self.senders, LIMIT_S)
            return self.senders.pop(id)

    def let_go(self) -> None:
        self.senders.clear()


class LaterBench(Answers):
    """A scheduler that runs on LaterStubs, and what its requests were answered."""

    def __init__(
        self,
        batching: BatchingSpec | None = None,
        *,
        instances: int = 1,
        answer: Answer | None = None,
        window: WindowLimits = DEFAULT_WINDOW,
    ) -> None:
        super().__init__()
        spec = replace(model_spec(8, batching), decoupled=True)
        self.backends = [LaterStub(number, answer) for number in range(instances)]
        self.backend = self.backends[0]
        self.statistics = ModelStatistics()
        context = SchedulingContext(spec, self.statistics, window=window)
        self.scheduler = DynamicBatcher(context, self.backends)
        self.scheduler.start()

    def submit(self, id: str) -> StreamedRequest:
        """A request whose caller takes responses."""
        pending = StreamedRequest(InferenceRequest("m", [], id=id), self.on_response)
        self.scheduler.submit(pending)
        return pending

    def wait(self, count: int) -> list[str]:
        """Wait for `count` responses; each as ID:TEXT, `-` for an empty one, `!` for an error, `.` after the final."""
        super().wait(count)
        return [described(response) for response in self.answers]


def described(response: InferenceResponse) -> str:
    said = response.outputs[0].array[0].decode() if response.outputs else "-"
    return f"{response.id}:{said if response.error is None else '!'}{'.' if response.final else ''}"


MakeLaterBench = Callable[..., LaterBench]


def later_benches() -> AbstractContextManager[MakeLaterBench]:
    return closing(LaterBench)
