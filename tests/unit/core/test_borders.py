"""A fault at each border of docs/architecture.md section 10: the request concerned gets one answer, an error unless it
was answered already; every other one is answered rightly; the fault is logged once; nothing is left in flight.

Each part that raises is handed in: a model, a backend, a scheduler, a cache, a clock, statistics, callbacks.
"""

from __future__ import annotations

import gc
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.threads import server_threads
from tests.unit.core.remote.remote_parts import (
    SMALL,
    Answer,
    ServedEngine,
    ThreadLink,
    ask,
    connected,
    echo,
    numbers,
    served,
)
from tests.unit.core.scheduling.ensemble_bench import Bench as EnsembleBench
from tests.unit.core.scheduling.ensemble_bench import Step
from tests.unit.core.scheduling.scheduler_bench import (
    LIMIT_S,
    Answers,
    IdleScheduler,
    LaterStub,
    Outcomes,
    Stub,
    StubInstance,
    batching,
    limit,
    model_spec,
    text,
)
from tests.unit.core.scheduling.sequence_bench import HOUR, SUM
from tests.unit.core.scheduling.sequence_bench import Bench as SequenceBench
from tests.unit.core.scheduling.sequence_bench import benches as sequence_benches
from tests.unit.interrupted import interrupted
from tests.unit.packed_tensors import spec as packed_spec
from tests.unit.shared_memory_object import shared_memory_object
from tests.waiting import until
from trident.core.config.schema import parse_model_config
from trident.core.config.spec import InputSpec, QueuePolicy
from trident.core.errors import (
    BackendFailed,
    ErrorCode,
    InvalidRequest,
    QueueFull,
    ServerError,
    ServerStopping,
    UnexpectedError,
)
from trident.core.frontend.bridge import ResponseStream, ThreadBridge, infer_many
from trident.core.inference.pending_request import (
    LATER,
    CollectedFlushes,
    Deferred,
    LoneRequest,
    PendingRequest,
    ResponseSender,
    StreamedRequest,
    deliver,
    flush,
)
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse, Origin, OutputTensor, RegionReference, RegionRequest
from trident.core.inference.tensors import BY_NAME
from trident.core.interprocess.frames import LARGE
from trident.core.lifecycle.version import ModelVersion
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.tracing.trace import TraceOptions, TraceSettings
from trident.core.observability.tracing.tracer import Tracer
from trident.core.options import WindowLimits
from trident.core.remote.engine_client import RemoteEngine
from trident.core.response_cache.response_cache import FaultOf, LocalCache, OnFound
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.dynamic_batcher import DynamicBatcher
from trident.core.scheduling.open_requests import ResponseOrder
from trident.core.scheduling.queue import TimeoutThread
from trident.core.scheduling.rate_limiter import InstanceReservations, RateLimiter
from trident.core.scheduling.response_cache import CachingScheduler
from trident.core.scheduling.scheduler import Scheduler
from trident.core.scheduling.sequence_batcher import SequenceScheduler
from trident.core.shared_memory import RegionKind, Regions, attach


class Fault(Exception):
    """A class of which the server knows nothing."""


class Panic(BaseException):
    """Like the exceptions of libraries in Rust, and sys.exit in a function of the library's user."""


class Mute(Exception):
    """Has no text, and raises when it is asked for one."""

    def __str__(self) -> str:
        raise Fault("no text")


FAULTS: dict[str, Callable[[], Exception]] = {
    "value": lambda: ValueError("negative dimensions are not allowed"),
    "numpy": lambda: np.exceptions.AxisError(3, 2),
    "memory": lambda: MemoryError(),
    "recursion": lambda: RecursionError("maximum recursion depth exceeded"),
    "unicode": lambda: UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    "struct": lambda: struct.error("argument out of range"),
    "overflow": lambda: OverflowError("int too large to convert"),
    "key": lambda: KeyError("a"),
    "own": lambda: Fault("an own class"),
    "surrogate": lambda: Fault("half a pair: \ud800"),
    "mute": lambda: Mute(),
}
FOREIGN: dict[str, Callable[[], BaseException]] = {
    "panic": lambda: Panic("index out of bounds"),
    "exit": lambda: SystemExit(3),
}


def made(request: pytest.FixtureRequest) -> Exception:
    found: Any = {**FAULTS, **FOREIGN}[request.param]()
    return found


# Of every class where its text is used, or where it may meet a narrower `except`; elsewhere of some.
any_fault = pytest.fixture(params=FAULTS)(made)
foreign_fault = pytest.fixture(params=[*FAULTS, *FOREIGN])(made)
fault = pytest.fixture(params=["value", "memory", "mute"])(made)


class Faulty:
    """Makes the calls of `call`, but raises `fault` in those for which `when` is true, before or after the call."""

    def __init__(
        self,
        fault: Exception,
        call: Callable[..., Any] = lambda *args, **options: None,
        *,
        when: Callable[..., bool] = lambda *args, **options: True,
        after: bool = False,
    ) -> None:
        self._fault = fault
        self._call = call
        self._when = when
        self._after = after
        self.raised = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        is_due = self._when(*args, **options)
        if is_due and not self._after:
            self._raise()
        result = self._call(*args, **options)
        if is_due:
            self._raise()
        return result

    def _raise(self) -> None:
        self.raised += 1
        raise self._fault.with_traceback(None)


def nth(*numbers: int) -> Callable[..., bool]:
    """True for the calls with these numbers, from 1 on."""
    calls = iter(range(1, 1 << 30))
    return lambda *args, **options: next(calls) in numbers


def tracebacks(caplog: pytest.LogCaptureFixture, fault: BaseException) -> int:
    """How many lines of the log have the fault with its traceback."""
    found = [record.exc_info[1] for record in caplog.records if record.exc_info]
    return sum(error is fault for error in found)


class Caller(Answers):
    """Makes requests, and collects their responses."""

    def request(self, id: str, *, kind: type[PendingRequest] = PendingRequest, value: int = 0, **options: Any) -> Any:
        tensor = InputTensor("IN", "INT32", (1,), np.full(1, value, np.int32))
        pending = kind(InferenceRequest("m", [tensor], id=id), self.on_response, **options)
        pending.batch_size = 1
        return pending

    def send(self, model: Any, *ids: str, **options: Any) -> list[PendingRequest]:
        requests = [self.request(id, **options) for id in ids]
        for request in requests:
            request.submit_to(model)
        return requests


def ok(ids: str, **others: str) -> dict[str, str]:
    return {**dict.fromkeys(ids, "ok"), **others}


# --- statistics


class FaultyStatistics(ModelStatistics):
    """Raise in the calls of one method."""

    def __init__(self, fault: Exception, method: str, *, after: bool = False) -> None:
        super().__init__()
        self.faulty = Faulty(fault, getattr(self, method), after=after)
        setattr(self, method, self.faulty)


# --- the dynamic batcher


@contextmanager
def batcher(
    backends: Sequence[StubInstance], statistics: ModelStatistics | None = None, spec: Any = None, **options: Any
) -> Iterator[DynamicBatcher]:
    """A batcher that at the end has nothing in flight, whose threads live until then, and which closes in time."""
    spec = spec or model_spec(8, batching(8))
    scheduler = DynamicBatcher(SchedulingContext(spec, statistics or ModelStatistics(), **options), backends)
    scheduler.start()
    alive = server_threads()
    try:
        yield scheduler
        assert scheduler.drain(LIMIT_S)
        assert (scheduler.queued, scheduler.in_flight) == (0, 0)
        assert server_threads() == alive
    finally:
        for backend in backends:
            backend.let_go()
        assert scheduler.close(LIMIT_S)
    assert server_threads() == []


@pytest.fixture
def caller() -> Caller:
    return Caller()


class FaultyInstance(Stub):
    """Raises for batches with request x."""

    def __init__(self, fault: Exception, number: int = 0, **options: Any) -> None:
        super().__init__(number, **options)
        self.fault = fault

    def outcomes(self, requests: Sequence[InferenceRequest], senders: Sequence[ResponseSender]) -> Outcomes:
        self.batches.append([request.id for request in requests])
        self.begun.release()
        assert self.gate.wait(LIMIT_S)
        if any(request.id == "x" for request in requests):
            raise self.fault
        return [text(request.id) for request in requests]


def test_a_backend_that_raises_fails_the_one_request(
    foreign_fault: Exception, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    backend = FaultyInstance(foreign_fault)
    with batcher([backend]) as scheduler:
        backend.gate.clear()
        caller.send(scheduler, "a")
        assert backend.begun.acquire(timeout=LIMIT_S)
        caller.send(scheduler, *"bcxdef")
        backend.gate.set()
        caller.wait(7)
        caller.send(scheduler, "g")
        caller.wait(8)
    assert caller.outcomes() == ok("abcdefg", x="BackendFailed")
    assert all(answer.error or answer.outputs[0].array[0].decode() == answer.id for answer in caller.answers)
    assert tracebacks(caplog, foreign_fault) == 1
    assert "Logging error" not in caplog.text


@pytest.mark.parametrize("name", FOREIGN)
def test_a_backend_of_many_responses_that_raises(caller: Caller, caplog: pytest.LogCaptureFixture, name: str) -> None:
    fault = FOREIGN[name]()

    def answer(request: InferenceRequest, sender: ResponseSender) -> Any:
        sender.send(text(request.id))
        if request.id == "x":
            raise fault
        sender.send(None, final=True)
        return LATER

    with batcher([LaterStub(answer=answer)], spec=replace(model_spec(1), decoupled=True)) as scheduler:
        for id in "axb":
            caller.send(scheduler, id, kind=StreamedRequest)
        caller.wait(6)
    assert caller.outcomes() == ok("ab", x="BackendFailed")
    assert tracebacks(caplog, fault) == 1


@pytest.mark.parametrize("later", [False, True])
def test_backend_whose_poisoned_state_raises_continues_to_serve(
    fault: Exception, caller: Caller, caplog: pytest.LogCaptureFixture, later: bool
) -> None:
    asked = Faulty(fault, lambda: False, when=nth(1))

    class Unknown(LaterStub if later else FaultyInstance):  # type: ignore[misc]
        poisoned = property(lambda self: asked())

    backend = Unknown(answer=answered_now) if later else Unknown(Fault())
    with batcher([backend], on_poisoned=lambda instance: None) as scheduler:
        caller.send(scheduler, "a")
        caller.wait(1)
        caller.send(scheduler, "b")
        caller.wait(2)
    assert caller.outcomes() == ok("ab")
    assert tracebacks(caplog, fault) == 1


def answered_now(request: InferenceRequest, sender: ResponseSender) -> Any:
    return text(request.id)


def test_callback_about_a_poisoned_instance_that_raises(
    fault: Exception, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    backend = FaultyInstance(Fault())
    backend.poisoned = True
    with batcher([backend], on_poisoned=Faulty(fault)) as scheduler:
        caller.send(scheduler, *"ab")
        caller.wait(2)
    assert caller.outcomes() == ok("ab")
    assert tracebacks(caplog, fault) == 1


COUNTED = ["begin_execution", "end_execution", "record_batch"]


@pytest.mark.parametrize("method", [*COUNTED, "record_failure"])
def test_statistics_that_raise_fail_no_request(
    fault: Exception, caller: Caller, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    backend = FaultyInstance(BackendFailed("its own"))
    statistics = FaultyStatistics(fault, method)
    reservations = InstanceReservations(RateLimiter())
    limited = FaultyInstance(BackendFailed("its own"), limit=limit(r=1))
    reservations.add(limited, "m")
    for each, options in ((backend, {}), (limited, {"reservations": reservations})):
        with batcher([each], statistics, **options) as scheduler:
            for id in "abx":
                caller.send(scheduler, id)
            caller.wait(3)
        assert caller.outcomes() == ok("ab", x="BackendFailed")
        caller.answers.clear()
    assert statistics.faulty.raised >= 2
    assert tracebacks(caplog, fault) == statistics.faulty.raised


@pytest.mark.parametrize("number", range(1, 16))
def test_clock_that_raises_once(caller: Caller, caplog: pytest.LogCaptureFixture, number: int) -> None:
    """Wherever that is, each request has one answer, and the batcher serves on."""
    fault = OverflowError("the clock")
    clock = Faulty(fault, time.monotonic_ns, when=nth(number))
    policy = QueuePolicy(default_timeout_ns=3_600_000_000_000)
    reservations = InstanceReservations(RateLimiter())
    backend = FaultyInstance(BackendFailed("its own"), limit=limit(r=1))
    reservations.add(backend, "m")
    spec = model_spec(4, batching(4, policy=policy, ordered=bool(number % 2)))
    with batcher([backend], spec=spec, clock=clock, reservations=reservations) as scheduler:
        for index, id in enumerate("abxcd"):
            caller.send(scheduler, id)
            caller.wait(index + 1)
        caller.send(scheduler, "e")
        caller.wait(6)
    found = caller.outcomes()
    assert found.pop("x") in ("BackendFailed", "UnexpectedError")
    assert sorted(found) == list("abcde")
    assert sum(outcome != "ok" for outcome in found.values()) <= 1
    assert tracebacks(caplog, fault) == clock.raised


class Odd:
    """Cannot be compared: no batch can be formed with it."""

    def __init__(self, fault: Exception) -> None:
        self._fault = fault

    def __ne__(self, other: object) -> bool:
        raise self._fault

    __hash__ = None  # type: ignore[assignment]


def test_batch_forming_that_raises(fault: Exception, caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    backend = FaultyInstance(Fault())
    with batcher([backend]) as scheduler:
        backend.gate.clear()
        caller.send(scheduler, "a")
        assert backend.begun.acquire(timeout=LIMIT_S)
        gone = caller.request("gone")
        odd = [caller.request(id) for id in "xy"]
        for each in odd:
            each.batch_key = Odd(fault)
        for each in (gone, *odd):
            each.submit_to(scheduler)
        gone.cancel()
        backend.gate.set()
        caller.wait(4)
        caller.send(scheduler, "b")
        caller.wait(5)
    assert caller.outcomes() == ok("ab", gone="RequestCancelled", x="UnexpectedError", y="UnexpectedError")
    assert tracebacks(caplog, fault) == 1


class Immense(InferenceRequest):
    """Does not know its size."""

    fault: Exception

    @property
    def nbytes(self) -> int:
        raise self.fault


def inline_batcher(caller: Caller, scheduler: DynamicBatcher) -> None:
    """Execute until the submitting thread may execute, too."""
    for number in range(16):
        until(lambda: scheduler._pool.idle)
        caller.send(scheduler, f"short{number}")
        caller.wait(number + 1)
    until(lambda: scheduler._pool.idle and scheduler._short.lasting)
    caller.answers.clear()


def test_borrowed_instance_is_returned(fault: Exception, caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    backend = FaultyInstance(Fault())
    with batcher([backend], clock=lambda: 1) as scheduler:
        inline_batcher(caller, scheduler)
        deferred = Deferred()
        request = Immense("m", [], id="z")
        request.fault = fault
        PendingRequest(request, caller.on_response, defer=deferred.add).submit_to(scheduler)
        deferred.run()
        caller.wait(1)
        caller.send(scheduler, "a", defer=deferred.add)
        deferred.run()
        alone = caller.request("b", kind=LoneRequest, defer=deferred.add)
        alone.submit_to(scheduler)
        deferred.run()
        caller.wait(3)
    assert caller.outcomes() == ok("zab")
    assert tracebacks(caplog, fault) >= 1


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("at", range(1, 7))
def test_a_clock_that_raises_on_the_submitting_thread(
    caller: Caller, caplog: pytest.LogCaptureFixture, at: int, alone: bool
) -> None:
    fault, calls, armed = OverflowError("the clock"), iter(range(1, 100)), threading.Event()
    clock = Faulty(fault, lambda: 1, when=lambda: armed.is_set() and next(calls) == at)
    with batcher([FaultyInstance(Fault())], clock=clock) as scheduler:
        inline_batcher(caller, scheduler)
        deferred = Deferred()
        armed.set()
        for id in "abc":
            kind = LoneRequest if alone else PendingRequest
            caller.send(scheduler, id, kind=kind, defer=deferred.add)
            deferred.run()
        caller.wait(3)
    assert sorted(caller.outcomes()) == list("abc")
    assert sum(outcome != "ok" for outcome in caller.outcomes().values()) <= 1
    assert tracebacks(caplog, fault) == clock.raised


def test_defer_function_that_raises(fault: Exception, caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    with batcher([FaultyInstance(Fault())], clock=lambda: 1) as scheduler:
        inline_batcher(caller, scheduler)
        caller.send(scheduler, *"ab", defer=Faulty(fault))
        caller.wait(2)
    assert caller.outcomes() == ok("ab")


@pytest.mark.parametrize("ordered", [False, True])
def test_callbacks_that_raise(
    fault: Exception, caller: Caller, caplog: pytest.LogCaptureFixture, ordered: bool
) -> None:
    """Callbacks of a response and of a flush: the other requests of the batch have their answers."""
    backend = FaultyInstance(Fault())
    flushed = threading.Event()
    with batcher([backend], spec=model_spec(8, batching(8, ordered=ordered))) as scheduler:
        backend.gate.clear()
        caller.send(scheduler, "a")
        assert backend.begun.acquire(timeout=LIMIT_S)
        broken = PendingRequest(InferenceRequest("m", [], id="x1"), Faulty(fault), flush=Faulty(fault))
        broken.submit_to(scheduler)
        caller.send(scheduler, *"bc", flush=flushed.set)
        backend.gate.set()
        caller.wait(3)
        assert flushed.wait(LIMIT_S)
        caller.send(scheduler, "d")
        caller.wait(4)
    assert caller.outcomes() == ok("abcd")
    assert tracebacks(caplog, fault) == 2 + ordered  # which flushes what it delivers by itself


def test_statistics_that_raise_for_requests_whose_timeout_passes(
    fault: Exception, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    backend = FaultyInstance(Fault())
    statistics = FaultyStatistics(fault, "record_failure")
    policy = QueuePolicy(default_timeout_ns=int(2 * LIMIT_S * 1e9), allow_timeout_override=True)
    spec = model_spec(1, batching(policy=policy))

    def send_for_a_moment(ids: str) -> None:
        for pending in [caller.request(id) for id in ids]:
            pending.request.timeout_us = 1000
            pending.submit_to(scheduler)

    with batcher([backend], statistics, spec) as scheduler:
        backend.gate.clear()
        caller.send(scheduler, "a")
        assert backend.begun.acquire(timeout=LIMIT_S)
        send_for_a_moment("uvw")
        caller.wait(3)
        send_for_a_moment("yz")
        caller.wait(5)
        backend.gate.set()
        caller.wait(6)
    assert caller.outcomes() == ok("a", **dict.fromkeys("uvwyz", "DeadlineExceeded"))
    assert tracebacks(caplog, fault) == 5


def test_timeout_thread_continues_after_an_exception(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    looked = threading.Event()
    looks = Faulty(fault, lambda: looked.set(), when=nth(1))
    thread = TimeoutThread("m", looks)
    thread.start()
    until(lambda: looks.raised)
    thread.wake()
    assert looked.wait(LIMIT_S)
    assert thread.close(LIMIT_S)
    assert tracebacks(caplog, fault) == 1


# --- requests that are answered later


@pytest.mark.parametrize("method", ["record_response", "record_request", "record_failure", *COUNTED])
def test_statistics_that_raise_hold_back_no_response(
    fault: Exception, caller: Caller, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    backend = LaterStub()
    statistics = FaultyStatistics(fault, method)
    with batcher([backend], statistics, replace(model_spec(8, batching(8)), decoupled=True)) as scheduler:
        caller.send(scheduler, *"abc", kind=StreamedRequest)
        senders = {id: backend.sender(id) for id in "abc"}
        for sender in senders.values():
            sender.send(text("1"))
        senders["a"].send(text("2"), final=True)
        senders["b"].send(None, final=True, error=BackendFailed("its own"))
        senders["c"].send(None, final=True)
        caller.wait(6)
    assert caller.outcomes() == ok("ac", b="BackendFailed")
    assert tracebacks(caplog, fault) == statistics.faulty.raised > 0


@pytest.mark.parametrize("number", range(1, 12))
def test_a_clock_that_raises_once_while_requests_are_answered_later(caller: Caller, number: int) -> None:
    clock = Faulty(OverflowError("the clock"), time.monotonic_ns, when=nth(number))

    def answer(request: InferenceRequest, sender: ResponseSender) -> Any:
        if request.id in "bd":
            return text(request.id)
        if request.id == "x":
            raise Fault("in the model")
        sender.send(text("1"))
        sender.send(None, final=True)
        return LATER

    spec = replace(model_spec(1), decoupled=True)
    with batcher([LaterStub(answer=answer)], spec=spec, clock=clock) as scheduler:
        for id in "abxcd":
            caller.send(scheduler, id, kind=StreamedRequest)
        until(lambda: len(caller.outcomes()) == 5)
    assert caller.outcomes()["x"] in ("BackendFailed", "UnexpectedError")
    assert clock.raised == 1


def test_watchers_that_raise(fault: Exception, caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    backend = LaterStub()
    spec = replace(model_spec(8), decoupled=True)
    with batcher([backend], spec=spec, window=WindowLimits(1, 1 << 20)) as scheduler:
        (pending,) = caller.send(scheduler, "a", kind=StreamedRequest)
        sender = backend.sender("a")
        told = threading.Event()
        sender.watch(Faulty(fault))
        sender.watch(told.set)
        sender.send(text("1"))
        pending.take()  # type: ignore[attr-defined]
        assert told.wait(LIMIT_S)
        told.clear()
        pending.cancel()
        assert told.wait(LIMIT_S)
        sender.send(None, final=True)
        caller.wait(2)
    assert caller.outcomes() == ok("a")
    assert tracebacks(caplog, fault) == 2


def test_invalid_strings_of_a_stream(caller: Caller) -> None:
    """They fail where they are encoded, and the window of the stream does not."""
    backend = LaterStub()
    with batcher([backend], spec=replace(model_spec(8), decoupled=True)) as scheduler:
        caller.send(scheduler, "a", kind=StreamedRequest)
        sender = backend.sender("a")
        sender.send([OutputTensor("OUT", "BYTES", (1,), np.array([1], object))])
        sender.send(None, final=True)
        caller.wait(2)


# --- callers and engines


class Model:
    """A ServedModel that answers each request with its id, except x, for which it raises before or after that."""

    cached_answer = None

    def __init__(self, fault: Exception, when: str) -> None:
        self.fault = fault
        self.when = when
        self.spec = model_spec()
        self.held: list[PendingRequest] = []

    def submit(self, pending: PendingRequest) -> None:
        is_marked = pending.request.id == "x"
        if is_marked and self.when == "before":
            raise self.fault
        if is_marked and self.when == "passed on":
            self.held.append(pending)
            raise self.fault
        deliver(pending, InferenceResponse("m", 1, text(pending.request.id), id=pending.request.id))
        if is_marked:
            raise self.fault

    def answer_held(self) -> None:
        for pending in self.held:
            deliver(pending, InferenceResponse("m", 1, text("late"), id=pending.request.id))


MOMENTS = ["before", "passed on", "answered"]


@pytest.mark.parametrize("when", MOMENTS)
def test_an_engine_that_raises_before_a_thread(fault: Exception, caplog: pytest.LogCaptureFixture, when: str) -> None:
    """ThreadBridge: one answer, a stream, and many requests of one caller."""
    model, bridge = Model(fault, when), ThreadBridge()
    expected = type(None) if when == "answered" else UnexpectedError
    response = bridge.infer(model, InferenceRequest("m", [], id="x"))  # type: ignore[arg-type]
    assert type(response.error) is expected
    assert bridge.infer(model, InferenceRequest("m", [], id="a")).error is None  # type: ignore[arg-type]
    stream: ResponseStream = bridge.stream(model, InferenceRequest("m", [], id="x"))  # type: ignore[arg-type]
    assert [type(each.error) for each in stream] == [expected]

    class Engine:
        def hold_version(self, name: str, version: int) -> int:
            return -2

        def release_version(self, name: str, number: int) -> None: ...

        def model(self, name: str, version: int) -> Model:
            return model

    requests = [InferenceRequest("m", [], id=id) for id in "abxcd"]
    if when == "answered":
        assert [each.id for each in infer_many(Engine(), requests)] == list("abxcd")  # type: ignore[arg-type]
    else:
        with pytest.raises(UnexpectedError):
            infer_many(Engine(), requests)  # type: ignore[arg-type]
    assert tracebacks(caplog, fault) == 3


def test_refusal_is_flushed(caller: Caller) -> None:
    """A front end in another process sends its collected frames only then."""
    flushed: list[int] = []
    caller.send(Model(Fault(), "before"), "x", flush=lambda: flushed.append(1))
    assert flushed == [1]
    with CollectedFlushes():
        caller.send(Model(Fault(), "before"), *"xx", flush=(count := lambda: flushed.append(2)))
        assert flushed == [1]
    assert flushed == [1, 2]
    del count


def test_deferred_and_flushed_calls_that_raise(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    made: list[str] = []
    deferred = Deferred()
    deferred.add(Faulty(fault))
    deferred.add(lambda: made.append("deferred"))
    deferred.run()
    flush([Faulty(fault), lambda: made.append("flushed")])
    with CollectedFlushes():
        flush([Faulty(fault)])
        flush([lambda: made.append("collected")])
    pending = StreamedRequest(InferenceRequest("m", []), lambda response: None)
    pending.on_cancel = pending.on_take = Faulty(fault)
    pending.cancel()
    pending.take()
    assert made == ["deferred", "flushed", "collected"]
    assert tracebacks(caplog, fault) == 5


# --- versions and schedulers


class FaultyScheduler(IdleScheduler):
    """Answers each request with its id, except x, for which it raises."""

    def __init__(self, fault: Exception, when: str) -> None:
        self.model = Model(fault, when)
        self.submit = self.model.submit


class Loaded:
    """The loaded files of a version, which describe nothing."""

    def describe(self) -> dict[str, str]:
        return {}

    def watch(self, on_change: object) -> None: ...


def serving_version(scheduler: Scheduler, statistics: ModelStatistics | None = None) -> ModelVersion:
    version = ModelVersion("m", 1, "a test", lambda name, number: version)
    if statistics is not None:
        version.statistics = statistics
    config = parse_model_config('name: "m" backend: "stub"', "config.pbtxt")
    inputs = {"IN": InputSpec(name="IN", datatype=BY_NAME["INT32"], dims=(-1,))}
    version.configure(config, replace(model_spec(0), inputs=inputs))
    loaded: Any = Loaded()
    version.serve(loaded, [], scheduler, loaded)
    return version


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("where", ["engine", "version", "version that cannot count"])
def test_what_raises_in_submit(
    any_fault: Exception, caller: Caller, caplog: pytest.LogCaptureFixture, when: str, where: str
) -> None:
    scheduler: Any = FaultyScheduler(any_fault, when)
    statistics = FaultyStatistics(Fault(), "record_refusal") if where == "version that cannot count" else None
    caller.send(scheduler.model if where == "engine" else serving_version(scheduler, statistics), *"axb")
    scheduler.model.answer_held()
    assert caller.outcomes() == ok("ab", x="ok" if when == "answered" else "UnexpectedError")
    assert len(caller.answers) == 3
    assert tracebacks(caplog, any_fault) == 1


def test_a_refusal_that_cannot_be_counted(fault: Exception, caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    statistics = FaultyStatistics(fault, "record_refusal")
    full: Any = FaultyScheduler(QueueFull("full"), "before")
    caller.send(serving_version(full, statistics), *"axb")
    assert caller.outcomes() == ok("ab", x="QueueFull")
    stopped: Any = FaultyScheduler(ServerStopping("stopped"), "before")
    caller.answers.clear()
    caller.send(serving_version(stopped, statistics), *"axb")
    assert caller.outcomes() == ok("ab", x="ServerStopping")
    assert tracebacks(caplog, fault) == 2


# --- sequences

OLDEST = HOUR + "oldest { max_candidate_sequences: 2 } "


class FaultyBatcher(DynamicBatcher):
    """Raises for request x, before or after it was submitted."""

    fault: Exception
    after = False

    def submit(self, pending: PendingRequest) -> None:
        is_marked = pending.request.id == "x"
        if is_marked and not self.after:
            raise self.fault
        super().submit(pending)
        if is_marked:
            raise self.fault


@contextmanager
def sequences(
    strategy: str, make_batcher: Callable[..., DynamicBatcher] = DynamicBatcher, **options: Any
) -> Iterator[tuple[SequenceScheduler, Callable[..., PendingRequest], SequenceBench]]:
    """A scheduler of sequences, and a function that submits a request of one. All requests must end."""
    with sequence_benches() as make:
        bench = make(strategy, make_batcher=make_batcher, **options)
        bench.scheduler.start()

        def submit(*request: Any) -> PendingRequest:
            pending = bench.request(*request)
            pending.submit_to(bench.scheduler)
            return pending

        yield bench.scheduler, submit, bench
        assert bench.scheduler.drain(LIMIT_S)
        assert (bench.scheduler.queued, bench.scheduler.in_flight) == (0, 0)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_batcher_that_raises_fails_one_request_of_a_sequence(
    fault: Exception, caplog: pytest.LogCaptureFixture, after: bool, ordered: bool
) -> None:
    fault = fault.with_traceback(None)
    kind = type("Made", (FaultyBatcher,), {"fault": fault, "after": after})
    oldest = HOUR + f"oldest {{ max_candidate_sequences: 2 preserve_ordering: {str(ordered).lower()} }} "
    with sequences(oldest, kind) as (_, submit, caller):
        submit("a", 1, "s")
        submit("b", 2, "s")
        submit("x", 1)
        submit("c", 1)
        submit("d", 2, "e")
        submit("e", 1, "e")
        caller.wait(6)
        submit("f", 1, "s")
        submit("g", 1, "e")
        caller.wait(8)
    found = caller.outcomes()
    # One that was passed on may be answered before that raises.
    assert found.pop("x") in (("ok", "UnexpectedError") if after else ("UnexpectedError",))
    assert found == ok("abcdefg")
    assert tracebacks(caplog, fault) == 1


def test_a_callback_of_a_sequence_that_raises(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with sequences(OLDEST + SUM) as (scheduler, submit, caller):
        broken = submit("w", 1, "s")
        submit("a", 1)
        submit("b", 1, "e")
        tensor = InputTensor("X", "INT32", (1, 1), np.ones((1, 1), np.int32))
        request = InferenceRequest("m", [tensor], id="y", correlation_id=2, sequence_start=True)
        PendingRequest(request, Faulty(fault), flush=Faulty(fault)).submit_to(scheduler)
        submit("c", 2, "e")
        caller.wait(4)
        assert not broken.callbacks
    assert caller.outcomes() == ok("wabc")
    assert tracebacks(caplog, fault) == 2


def test_request_that_fails_on_entering_its_sequence_is_answered_once() -> None:
    """The submitting thread raises after the scheduler accepted the request, and another thread continues with it."""
    held: dict[str, Callable[[], None]] = {}
    has_entered = threading.Event()
    answers: list[InferenceResponse] = []

    class Holding(DynamicBatcher):
        def submit(self, pending: PendingRequest) -> None:
            if pending.request.id in "ab":
                held[pending.request.id] = partial(super().submit, pending)
            else:
                super().submit(pending)
            if pending.request.id == "b":
                has_entered.set()

    def respond(response: InferenceResponse) -> None:
        answers.append(response)
        held["a"]()
        assert has_entered.wait(LIMIT_S)

    with sequences(OLDEST, Holding) as (scheduler, submit, caller):
        submit("a", 1, "s")
        tensor = InputTensor("X", "INT32", (1, 1), np.ones((1, 1), np.int32))
        failed = PendingRequest(InferenceRequest("m", [tensor], id="b", correlation_id=1), respond)
        failed.submit_to(scheduler)
        submit("c", 1, "e")
        failed.fail(Fault("after it was accepted"))
        held["b"]()
        caller.wait(2)
    assert caller.outcomes() == ok("ac")
    assert [type(answer.error).__name__ for answer in answers] == ["UnexpectedError"]


@pytest.mark.parametrize("number", range(1, 30, 2))
def test_a_clock_that_raises_once_beside_sequences(number: int) -> None:
    clock = Faulty(OverflowError("the clock"), time.monotonic_ns, when=nth(number))
    with sequences(OLDEST, clock=clock) as (_, submit, caller):
        for id, sequence, flags in (("a", 1, "s"), ("b", 2, "s"), ("c", 1, ""), ("d", 2, "e"), ("e", 1, "e")):
            submit(id, sequence, flags)
        caller.wait(5)
        submit("f", 3, "s")
        submit("g", 3, "e")
        until(lambda: len(caller.outcomes()) == 7)
    assert sorted(caller.outcomes()) == list("abcdefg")


def test_statistics_that_raise_beside_sequences(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    statistics = FaultyStatistics(fault, "record_failure")
    with sequences(OLDEST, statistics=statistics) as (_, submit, caller):
        for sequence in (1, 2):
            submit(f"s{sequence}", sequence, "s")
        waits = [submit(f"w{number}", 3, "" if number else "s") for number in range(3)]
        waits[1].cancel()
        caller.wait(5)
        submit("a", 1, "e")
        submit("b", 2, "e")
        caller.wait(7)
    assert set(caller.outcomes().values()) == {"ok", "RequestCancelled"}
    assert tracebacks(caplog, fault) == 3


# --- ensembles


class OwnError(ServerError):
    """Has other arguments than the server's own classes."""

    code = ErrorCode.INTERNAL

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}")


CHAIN = "a(X=i:Y=t)", "b(X=t:Y=o)"


def raising_for(fault: Exception, value: int, when: str) -> Callable[[Step], None]:
    """Return a model of a step that raises for a request with `value` and answers others with one more."""

    def answer(step: Step) -> None:
        given = step.inputs()["X"]
        if given == [value] and when == "before":
            raise fault
        step.answer(Y=[each + 1 for each in given])
        if given == [value]:
            raise fault

    return answer


@pytest.mark.parametrize("decoupled", ["", "a"])
@pytest.mark.parametrize("when", ["before", "answered"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_step_that_raises(
    any_fault: Exception, caplog: pytest.LogCaptureFixture, name: str, when: str, decoupled: str
) -> None:
    bench = EnsembleBench("i", "o", *CHAIN, decoupled=decoupled, max_in_flight=2)
    for each in bench.models.values():
        each.at_once = raising_for(any_fault, 8 if each.name == name else -1, when)
    fails = {"a": 8, "b": 7}[name]
    for value in (1, fails, 2):
        bench.submit(i=value, stream=bool(decoupled))
    finals = [response for response in bench.responses if response.final]
    expected = "UnexpectedError" if when == "before" else "NoneType"
    assert [type(response.error).__name__ for response in finals] == ["NoneType", expected, "NoneType"]
    assert bench.scheduler.in_flight == 0
    assert bench.scheduler.close(0)
    assert tracebacks(caplog, any_fault) == 1


@pytest.mark.parametrize("decoupled", ["", "a"])
def test_an_error_of_a_step_of_an_unknown_class(decoupled: str) -> None:
    bench = EnsembleBench("i", "o", *CHAIN, decoupled=decoupled)
    bench.submit(i=1)
    bench.a.answer(error=OwnError(7))
    (response,) = bench.responses
    assert response.error is not None
    assert (response.error.message, response.error.code) == ("in ensemble 'e', number 7", ErrorCode.INTERNAL)
    assert bench.scheduler.close(0)


@pytest.mark.parametrize("decoupled", ["", "a"])
@pytest.mark.parametrize("method", ["record_composed", "record_failure", "record_step_failure"])
def test_statistics_of_an_ensemble_that_raise(
    fault: Exception, caplog: pytest.LogCaptureFixture, method: str, decoupled: str
) -> None:
    statistics = FaultyStatistics(fault, method)
    bench = EnsembleBench("i", "o", *CHAIN, decoupled=decoupled, statistics=statistics)
    bench.submit(i=1)
    bench.a.answer(Y=2)
    bench.b.answer(Y=3)
    bench.submit(i=1)
    bench.a.answer(error=BackendFailed("no"))
    finals = [response for response in bench.responses if response.final]
    assert [type(response.error).__name__ for response in finals] == ["NoneType", "BackendFailed"]
    assert bench.scheduler.close(0)
    assert tracebacks(caplog, fault) == 1


def test_an_ensemble_whose_request_cannot_begin(fault: Exception, caller: Caller) -> None:
    class Broken(list[InputTensor]):
        def __iter__(self) -> Iterator[InputTensor]:
            raise fault

    bench = EnsembleBench("i", "o", *CHAIN)
    pending = PendingRequest(InferenceRequest("e", Broken(), id="x"), caller.on_response)
    pending.submit_to(bench.scheduler)
    assert caller.outcomes() == {"x": "UnexpectedError"}
    assert bench.scheduler.in_flight == 0
    assert bench.scheduler.close(0)


def test_callbacks_of_an_ensemble_that_raise(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    bench = EnsembleBench("i", "o", *CHAIN)
    tensor = InputTensor("i", "INT32", (1,), np.ones(1, np.int32))
    PendingRequest(InferenceRequest("e", [tensor]), Faulty(fault), flush=Faulty(fault)).submit_to(bench.scheduler)
    bench.submit(i=1)
    for _ in range(2):
        bench.a.answer(0, Y=2)
        del bench.a.pending[0]
    for _ in range(2):
        bench.b.answer(0, Y=3)
        del bench.b.pending[0]
    assert bench.outputs == {"o": [3]}
    assert bench.scheduler.close(0)
    assert tracebacks(caplog, fault) == 2


# --- the response cache


class FaultyCache(LocalCache):
    """Raises in one method, and may be one in another process that knows nothing."""

    def __init__(self, fault: Exception, method: str = "", *, answers_later: bool = False) -> None:
        super().__init__(1 << 20)
        self.answers_later = answers_later
        self.asked: list[OnFound] = []
        if method:
            setattr(self, method, Faulty(fault, getattr(self, method), when=nth(1)))

    def look_up(self, key: bytes, fault_of: FaultOf, on_found: OnFound) -> Any:
        self.asked.append(on_found)
        return lambda: None


class Cached:
    """A caching scheduler on a scheduler that holds submitted requests until `answer`."""

    def __init__(self, cache: LocalCache, statistics: ModelStatistics | None = None) -> None:
        self.caller = Caller()
        self.cache = cache
        self.kept: list[PendingRequest] = []
        self.refusals: list[Exception] = []
        self.refuses_after = False
        inner: Any = FaultyScheduler(Fault(), "before")
        inner.submit = self._keep
        scope = cache.open_scope("m", 1, lambda: None)
        context = SchedulingContext(packed_spec(), statistics or ModelStatistics())
        self.scheduler = CachingScheduler(context, inner, cache, scope, FromCache(self))

    def _keep(self, pending: PendingRequest) -> None:
        if self.refuses_after:
            self.kept.append(pending)
        if self.refusals:
            raise self.refusals.pop()
        if not self.refuses_after:
            self.kept.append(pending)

    def answer(self, error: ServerError | None = None) -> None:
        """Answer all held requests, also those submitted meanwhile."""
        while self.kept:
            pending = self.kept.pop(0)
            outputs = [] if error else [OutputTensor("OUT", "INT32", (1,), np.ones(1, np.int32))]
            deliver(pending, InferenceResponse("m", 1, outputs, id=pending.request.id, error=error))

    def send(self, *ids: str, **options: Any) -> None:
        self.caller.send(FromCache(self), *ids, **options)

    def end(self) -> dict[str, str]:
        """The outcomes, when nothing is left."""
        assert self.scheduler.queued == 0
        assert self.scheduler._flights == {}
        self.cache.answers_later = False
        self.send("last", value=99)
        self.answer()
        found = self.caller.outcomes()
        assert found.pop("last") == "ok"
        self.scheduler.stop()
        assert self.scheduler.close(LIMIT_S)
        return found


class FromCache:
    """The model version."""

    def __init__(self, cached: Cached) -> None:
        self._cached = cached

    def submit(self, pending: PendingRequest) -> None:
        self._cached.scheduler.submit(pending)


@pytest.mark.parametrize("method", ["get", "put", "holds", "look_up"])
def test_a_cache_that_raises(fault: Exception, caplog: pytest.LogCaptureFixture, method: str) -> None:
    cached = Cached(FaultyCache(fault, method, answers_later=method == "look_up"))
    cached.send(*("x" if method == "get" else "w"), *"abc")
    cached.answer()
    assert cached.end() == (ok("abc", x="UnexpectedError") if method == "get" else ok("wabc"))
    assert tracebacks(caplog, fault) == 1


@pytest.mark.parametrize(
    "method", ["record_cache_miss", "record_cache_hit", "record_cache_insertion", "record_failure"]
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_statistics_of_the_cache_that_raise(
    fault: Exception, caplog: pytest.LogCaptureFixture, method: str, elsewhere: bool
) -> None:
    cache = FaultyCache(fault, answers_later=elsewhere)
    statistics = FaultyStatistics(fault, method)
    cached = Cached(cache, statistics)
    cached.send(*"abc")
    for on_found in cache.asked:
        on_found(None)
    cached.answer()
    cache.asked.clear()
    cached.send(*"xyz", value=5)
    for on_found in cache.asked:
        on_found(None)
    cached.answer(BackendFailed("no"))
    assert cached.end() == ok("abc", **dict.fromkeys("xyz", "BackendFailed"))
    assert tracebacks(caplog, fault) == statistics.faulty.raised > 0


def test_a_scheduler_behind_the_cache_that_raises(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    cached = Cached(FaultyCache(fault))
    cached.refusals.append(fault)
    cached.send("x", *"abc")
    cached.answer()
    assert cached.end() == ok("abc", x="UnexpectedError")
    assert tracebacks(caplog, fault) == 1


def test_a_flight_whose_followers_cannot_all_be_executed(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    cached = Cached(FaultyCache(fault))
    cached.send(*"axbc")
    first = cached.kept.pop()
    cached.refusals.append(fault)
    deliver(first, InferenceResponse.failed(first.request, QueueFull("full"), Origin.REJECTED))
    cached.answer()
    assert cached.end() == ok("bc", a="QueueFull", x="UnexpectedError")
    assert tracebacks(caplog, fault) == 1


@pytest.mark.parametrize("number", range(1, 14))
def test_a_clock_of_the_cache_that_raises_once(number: int) -> None:
    clock = Faulty(OverflowError("the clock"), time.monotonic_ns, when=nth(number))
    cached = Cached(FaultyCache(Fault()))
    cached.scheduler._clock = clock
    cached.send(*"abc")
    cached.answer()
    cached.send(*"de")
    cached.answer()
    assert sorted(cached.end()) == list("abcde")


def test_a_callback_of_a_flight_that_raises(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    cached = Cached(FaultyCache(fault))
    tensor = InputTensor("IN", "INT32", (1,), np.zeros(1, np.int32))
    PendingRequest(InferenceRequest("m", [tensor], id="y"), Faulty(fault)).submit_to(FromCache(cached))
    cached.send(*"ab")
    cached.answer()
    assert cached.end() == ok("ab")
    assert tracebacks(caplog, fault) == 1


# --- fake callers


class Unreadable(OutputTensor):
    """Its content raises."""

    fault: Exception

    def content(self) -> bytes:
        raise self.fault


def unreadable(fault: Exception, name: str = "OUT") -> OutputTensor:
    output = Unreadable(name, "INT32", (1,), np.ones(1, np.int32))
    output.fault = fault
    return output


def test_an_output_that_cannot_be_written_into_a_region(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with shared_memory_object(64) as key:
        regions, responses = Regions(), list[InferenceResponse]()
        regions.register_system("r", key, 0, 64)
        request = RegionRequest.of(InferenceRequest("m", []), {"OUT": RegionReference("r", 0, 8)})
        pending = PendingRequest(request, responses.append)
        attach(pending, request, regions)
        deliver(pending, InferenceResponse("m", 1, [unreadable(fault)]))
        assert [type(response.error) for response in responses] == [UnexpectedError]
        regions.unregister(RegionKind.SYSTEM, "r")
        assert not regions.system_regions("")
    assert tracebacks(caplog, fault) == 1


def test_a_response_that_cannot_be_traced(
    fault: Exception, caller: Caller, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    levels = TraceSettings(levels=("TIMESTAMPS", "TENSORS"), rate=1)
    tracer = Tracer(TraceOptions(start=levels, file=str(tmp_path / "trace.json")))
    pending = caller.request("a")
    tracer.begin(pending, "m", 1, is_composed=False)
    deliver(pending, InferenceResponse("m", 1, [unreadable(fault)], id="a"))
    assert caller.outcomes() == ok("a")
    tracer.close()
    assert tracebacks(caplog, fault) == 1


# --- between front end and engine


def marked(request: InferenceRequest) -> bool:
    return request.id == "x"


@pytest.mark.parametrize("when", ["model", "before", "answered"])
def test_an_engine_that_raises_behind_a_socket(
    any_fault: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    class Raising(ServedEngine):
        def model(self, name: str, version: int = -1) -> Any:
            if name == "x":
                raise any_fault
            return super().model(name, version)

        def submit(self, pending: PendingRequest) -> None:
            if marked(pending.request) and when == "before":
                raise any_fault
            super().submit(pending)
            if marked(pending.request):
                raise any_fault

    engine = Raising()
    engine.versions["x"] = (1,)
    with served(tmp_path, engine) as (path, _), connected(path) as remote:
        answers = [ask(remote, numbers(SMALL, id=id)) for id in "ab"]
        request = numbers(SMALL, id="x")
        if when == "model":
            request.model_name = "x"
        failed = ask(remote, request)
        large = ask(remote, numbers(np.arange(20_000, dtype=np.int32), id="c"))
        for answer in (*answers, large):
            assert answer.get().error is None
        assert type(failed.get().error) is (type(None) if when == "answered" else UnexpectedError)
        assert ask(remote, numbers(SMALL, id="d")).get().error is None
        assert all(len(answer.responses) == 1 for answer in (*answers, failed, large))
        assert remote.in_flight == 0
    assert tracebacks(caplog, any_fault) == 1


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_response_that_cannot_be_sent_between_processes(
    fault: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """Its large outputs do not stay in shared memory, which would be full after some."""

    def respond(request: InferenceRequest) -> InferenceResponse:
        response = echo(request)
        if marked(request):
            response.outputs = [*response.outputs, unreadable(fault)]
        return response

    values = np.arange(size, dtype=np.int32)
    with served(tmp_path, ServedEngine(respond)) as (path, server), connected(path, 1 << 24) as remote:
        for _ in range(30):
            failed = ask(remote, numbers(values, id="x"))
            fine = ask(remote, numbers(values, id="a"))
            assert type(failed.get().error) is UnexpectedError
            assert fine.get().error is None
            assert (fine.get().outputs[0].array == values).all()
        del fine, failed
        (front_end,) = server._front_ends.values()
        memory = front_end.memory
        assert memory is not None
        gc.collect()  # an Answer refers to its request, which refers to it
        until(lambda: memory.pages.used == 0)
    assert tracebacks(caplog, fault) == 30


def test_a_refusal_of_a_request_with_many_strings_is_sent(tmp_path: Path, fault: Exception) -> None:
    """Such a request is submitted on another thread, after which nothing else may come for a while."""

    class Raising(ServedEngine):
        def submit(self, pending: PendingRequest) -> None:
            raise fault

    strings = np.array([b"x" * 10] * 10_000, object)
    with served(tmp_path, Raising()) as (path, _), connected(path) as remote:
        for _ in range(3):
            assert type(ask(remote, numbers(strings, datatype="BYTES")).get().error) is UnexpectedError


@pytest.mark.parametrize("method", ["trace_answered", "release_version", "phase", "is_ready", "is_live"])
def test_other_calls_of_an_engine_that_raise(
    fault: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """The other requests of the front end, and other front ends, are served on."""
    engine = ServedEngine()
    armed = threading.Event()
    faulty = Faulty(fault, getattr(engine, method), when=lambda *args: armed.is_set())
    setattr(engine, method, faulty)
    with served(tmp_path, engine) as (path, _), connected(path) as remote:
        with connected(path) as other:
            other.hold_version("simple", -1)
            armed.set()
            other.trace_answered(1, [], [])
            if method != "trace_answered":
                engine.generation += 1
            assert ask(other, numbers(SMALL)).get().error is None
            assert ask(remote, numbers(SMALL)).get().error is None
        until(lambda: faulty.raised)
        assert ask(remote, numbers(SMALL)).get().error is None
        armed.clear()
        with connected(path) as third:
            assert ask(third, numbers(SMALL)).get().error is None
    assert tracebacks(caplog, fault) == faulty.raised


def test_a_call_that_raises_is_answered(any_fault: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = ServedEngine()
    engine.model_metadata = Faulty(any_fault)  # type: ignore[method-assign]
    engine.load_model = Faulty(any_fault)  # type: ignore[method-assign]
    with served(tmp_path, engine) as (path, _), connected(path) as remote:
        answer = ask(remote, numbers(SMALL))
        with pytest.raises(UnexpectedError):
            remote.model_metadata("simple", -1)
        with pytest.raises(UnexpectedError):
            remote.load_model("simple", {})
        assert answer.get().error is None
        assert ask(remote, numbers(SMALL)).get().error is None
    assert tracebacks(caplog, any_fault) == 2


def test_callbacks_in_a_front_end_that_raise(
    fault: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with served(tmp_path, ServedEngine()) as (path, _):
        told = Faulty(fault)
        remote = RemoteEngine(path, ThreadLink(), 1 << 20, told)
        remote.start()
        try:
            until(remote.is_ready)
            PendingRequest(numbers(SMALL), callback := Faulty(fault)).submit_to(remote.model("simple"))
            until(lambda: callback.raised)
            assert ask(remote, numbers(SMALL)).get().error is None
        finally:
            remote.close()
    assert tracebacks(caplog, fault) == told.raised + 1


def test_a_request_that_cannot_be_written(
    any_fault: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(InputTensor):
        @property
        def data(self) -> Any:
            raise any_fault

    with served(tmp_path, ServedEngine()) as (path, _), connected(path) as remote:
        request = InferenceRequest("simple", [Broken("IN", "INT32", (4,), SMALL)])
        before, failed = ask(remote, numbers(SMALL)), Answer(request)
        failed.pending.submit_to(remote.model("simple"))
        assert type(failed.get().error) is (InvalidRequest if isinstance(any_fault, TypeError) else UnexpectedError)
        assert before.get().error is None
        assert ask(remote, numbers(SMALL)).get().error is None
    assert tracebacks(caplog, any_fault) == 1


# --- two that answer at the same moment: the one runs as a whole between any two operations of the other


def answer_of(pending: PendingRequest, *, final: bool = True) -> InferenceResponse:
    response = InferenceResponse("m", 1, [], id=pending.request.id)
    response.final = final
    return response


def sent(pending: PendingRequest) -> None:
    deliver(pending, answer_of(pending, final=False))
    deliver(pending, answer_of(pending))


def entered(pending: PendingRequest) -> None:
    """As in a sequence, which must be told of the end, too."""
    ends: list[bool] = []

    def respond(response: InferenceResponse) -> None:
        ends.append(response.final)
        on_response(response)

    on_response = pending.take_callback()
    pending.on_response = respond
    deliver(pending, answer_of(pending))
    assert ends == [True]


def failed(pending: PendingRequest) -> None:
    pending.fail(InvalidRequest("after it was accepted"))


@pytest.mark.parametrize(
    ("one", "other"),
    [(sent, failed), (failed, sent), (entered, failed), (failed, entered), (failed, failed)],
    ids=lambda each: each.__name__,
)
def test_concurrent_answers_give_one_final_response(
    one: Callable[[PendingRequest], None], other: Callable[[PendingRequest], None]
) -> None:
    for step in range(10_000):
        answers: list[InferenceResponse] = []
        pending = PendingRequest(InferenceRequest("m", []), answers.append)
        is_amid = interrupted(partial(one, pending), partial(other, pending), step, lambda: True)
        assert [answer.final for answer in answers] in ([True], [False, True]), step
        if not is_amid:
            return


class Lost(DynamicBatcher):
    """Accepts request x, and raises; somebody else answers it."""

    accepted: list[PendingRequest]

    def submit(self, pending: PendingRequest) -> None:
        if pending.request.id != "x":
            super().submit(pending)
            return
        self.accepted.append(pending)
        raise Fault("after it was accepted")


@pytest.mark.parametrize("ordered", [False, True])
def test_concurrently_answered_and_failed_request_ends_once_in_its_sequence(ordered: bool) -> None:
    accepted = Lost.accepted = []
    for step in range(10_000):
        strategy = OLDEST.replace("{", "{ preserve_ordering: true") if ordered else OLDEST
        with sequences(strategy, Lost) as (scheduler, submit, caller):

            def answer() -> None:
                for pending in accepted:
                    deliver(pending, answer_of(pending))

            submit("a", 1, "s")
            caller.wait(1)
            is_amid = interrupted(
                partial(submit, "x", 1), answer, step, lambda: bool(accepted) and not scheduler._lock.locked()
            )
            answer()
            submit("b", 1, "e")
            caller.wait(3)
        assert sorted(caller.outcomes()) == ["a", "b", "x"], step
        accepted.clear()
        if not is_amid:
            return


@pytest.mark.parametrize("ordered", [False, True])
def test_concurrently_answered_and_failed_request_ends_its_flight_once(ordered: bool) -> None:
    for step in range(10_000):
        cached = Cached(FaultyCache(Fault()))
        cached.refuses_after = True
        cached.refusals = [Fault("after it was accepted")]
        if ordered:
            cached.scheduler._order = ResponseOrder(cached.scheduler._pass_on)
        kept, lock = cached.kept, cached.scheduler._lock
        is_amid = interrupted(
            partial(cached.send, "x"),
            cached.answer,
            step,
            lambda kept=kept, lock=lock: bool(kept) and not lock.locked(),
        )
        cached.send("a")
        cached.answer()
        assert sorted(cached.end()) == ["a", "x"], step
        if not is_amid:
            return
