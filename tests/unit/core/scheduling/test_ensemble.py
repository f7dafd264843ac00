"""The scheduler of ensembles."""

from __future__ import annotations

import threading
from collections import deque
from itertools import product
from random import Random
from typing import Any

import pytest

from tests.unit.core.scheduling.ensemble_bench import Bench, Step
from trident.core.errors import BackendFailed, ErrorCode, InvalidRequest, RequestCancelled, ServerError, ServerStopping
from trident.core.inference.pending_request import StreamedRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import Origin
from trident.core.observability.statistics import FailureReason

CHAIN = "a(X=i:Y=t)", "b(X=t:Y=o)"


def failure(bench: Bench) -> ServerError:
    error = bench.responses[-1].error
    assert error is not None
    return error


def test_only_steps_of_requested_outputs_run() -> None:
    bench = Bench("i", "op", "b(X=t:Y=o)", "a(X=i:Y=t,Z=p)")
    bench.submit(("p",), i=1)
    bench.a.answer(Y=2, Z=3)
    assert bench.outputs == {"p": [3]}
    assert not bench.b.pending
    bench.submit(("o",), i=1)
    bench.a.answer(Y=2, Z=3)
    bench.b.answer(Y=4)
    assert bench.outputs == {"o": [4]}


def test_request_properties_reach_each_step() -> None:
    bench = Bench("i", "o", *CHAIN)
    request = InferenceRequest(
        "e",
        [],
        id="x",
        parameters={"p": 1},
        priority=2,
        timeout_us=3,
        correlation_id=4,
        sequence_start=True,
        sequence_end=True,
    )
    bench.submit(request=request, i=1)
    bench.a.answer(Y=2)
    for step in (bench.a, bench.b):
        (found,) = step.requests
        assert (found.model_name, found.model_version, found.id, found.parameters) == (step.name, -1, "x", {"p": 1})
        assert (found.priority, found.timeout_us, found.correlation_id) == (2, 3, 4)
        assert (found.sequence_start, found.sequence_end) == (True, True)


def test_response_may_set_the_sequence_of_later_steps() -> None:
    bench = Bench("i", "op", *CHAIN, "c(X=i:Y=p)")
    bench.submit(i=1)
    bench.a.answer(Y=2, parameters={"sequence_id": "s", "sequence_start": True})
    found = bench.b.requests[-1]
    assert (found.correlation_id, found.sequence_start, found.sequence_end) == ("s", True, False)
    assert bench.c.requests[-1].correlation_id == 0
    bench.c.answer(Y=1)
    bench.b.answer(Y=3)
    assert bench.responses[-1].parameters == {"sequence_id": "s", "sequence_start": True, "sequence_end": False}
    bench.submit(i=1)
    bench.a.answer(Y=2, parameters={"sequence_id": "s", "sequence_start": True})
    bench.c.answer(Y=1)
    bench.b.answer(Y=3, parameters={"sequence_end": True})
    assert bench.responses[-1].parameters == {"sequence_id": "s", "sequence_start": False, "sequence_end": True}


@pytest.mark.parametrize("parameters", [{"sequence_id": 1.5}, {"sequence_id": True}, {"sequence_end": 1}])
def test_invalid_sequence_of_a_response_fails_the_request(parameters: dict[str, int | float]) -> None:
    bench = Bench("i", "o", *CHAIN)
    bench.submit(i=1)
    bench.a.answer(Y=2, parameters=dict(parameters))
    assert isinstance(failure(bench), InvalidRequest)
    assert not bench.b.pending


@pytest.mark.parametrize("decoupled", ["", "a"])
@pytest.mark.parametrize("code", ErrorCode)
def test_step_error_of_any_code_is_not_a_cancellation(code: ErrorCode, decoupled: str) -> None:
    bench = Bench("i", "o", *CHAIN, decoupled=decoupled)
    bench.submit(i=1)
    bench.a.answer(error=BackendFailed("no", code=code))
    error = failure(bench)
    assert (type(error), error.code, error.message) == (BackendFailed, code, "in ensemble 'e', no")
    assert bench.responses[0].origin is Origin.FAILED
    counted = bench.counted
    assert {reason: counted.failures(reason) for reason in FailureReason} == {
        FailureReason.REJECTED: 0,
        FailureReason.CANCELED: 0,
        FailureReason.BACKEND: 0,
        FailureReason.OTHER: 2,  # the step and the request, as Triton documents it
    }
    assert counted.request_failures[FailureReason.OTHER] == 1


def test_a_request_that_its_client_cancelled_is_counted_as_cancelled() -> None:
    bench = Bench("i", "o", *CHAIN)
    pending = bench.submit(i=1)
    pending.cancel()
    bench.a.answer(error=BackendFailed("I was told", code=ErrorCode.CANCELLED))
    assert bench.responses[0].origin is Origin.CANCELLED
    assert bench.counted.failures(FailureReason.CANCELED) == 1
    assert bench.counted.failures(FailureReason.OTHER) == 0


def test_immediate_answer_of_a_step_needs_no_flush() -> None:
    bench = Bench("i", "o", *CHAIN)

    def answer(step: Step) -> None:
        pending = step.pending[-1]
        pending.flush = None
        step.answer(Y=5)

    bench.a.at_once = bench.b.at_once = answer
    bench.submit(i=1)
    assert bench.outputs == {"o": [5]}
    bench.b.at_once = lambda step: step.answer(error=BackendFailed("no"))
    bench.submit(i=1)
    assert failure(bench).message == "in ensemble 'e', no"


class Raced(deque[Any]):
    """Another thread takes the last element just before this one does."""

    def popleft(self) -> Any:
        if len(self) > 1:
            return super().popleft()
        self.clear()
        raise IndexError


def test_deferred_calls_are_made_even_if_another_thread_runs_the_last_step() -> None:
    """A step that is executed by the thread that submits it asks for that by a call."""
    bench = Bench("i", "o", *CHAIN)
    calls: list[str] = []
    bench.b.at_once = lambda step: step.pending[-1].defer(lambda: calls.append("first"))  # type: ignore[misc]
    for _ in range(2):
        bench.submit(i=1)
    flush = bench.a.pending[0].flush
    assert flush is not None
    for index, pending in enumerate(bench.a.pending):
        pending.flush = None
        bench.a.answer(index, Y=2)
    bench.scheduler._ready = Raced(bench.scheduler._ready)
    flush()
    assert calls == ["first"]


def test_a_step_with_one_response_must_not_have_two() -> None:
    bench = Bench("i", "o", *CHAIN)
    bench.submit(i=1)
    bench.a.answer(Y=2, final=False)
    assert bench.b.inputs() == {"X": [2]}
    bench.a.answer(Y=3, final=False)
    bench.a.answer()
    bench.b.answer(Y=1)
    assert failure(bench).message == "in ensemble 'e', expected a single response, got 2"


def test_cancelling_cancels_the_steps_that_run() -> None:
    bench = Bench("i", "o", *CHAIN)
    pending = bench.submit(i=1)
    pending.cancel()
    assert bench.a.pending[-1].cancelled
    assert not bench.responses
    bench.a.answer(Y=2)
    assert type(failure(bench)) is RequestCancelled
    assert not bench.b.pending
    assert bench.counted.request_failures[FailureReason.CANCELED] == 1
    pending.cancel()
    assert len(bench.responses) == 1


def test_stopped_scheduler_finishes_open_requests() -> None:
    bench = Bench("i", "o", *CHAIN)
    bench.submit(i=1)
    bench.scheduler.stop()
    with pytest.raises(ServerStopping):
        bench.submit(i=1)
    assert not bench.scheduler.drain(0)
    drained = threading.Thread(target=bench.scheduler.close)
    drained.start()
    bench.a.answer(Y=2)
    bench.b.answer(Y=3)
    drained.join(60)
    assert not drained.is_alive()
    assert bench.outputs == {"o": [3]}


def test_nested_requests_are_accepted_until_the_end() -> None:
    outer = Bench("i", "o", "a(X=i:Y=o)")
    inner = Bench("i", "o", "b(X=i:Y=o)")
    inner.scheduler.stop(accept_nested=True)
    outer.submit(i=1)
    nested = outer.a.pending[-1]
    nested.request.inputs[0].name = "i"
    nested.request.outputs = ()
    inner.scheduler.submit(nested)
    inner.scheduler.stop()
    inner.b.answer(Y=4)
    assert outer.responses, "the answer of an inner ensemble is that of the step"


# --- decoupled steps


def test_a_decoupled_step_waits_for_a_client_that_reads_slowly() -> None:
    bench = Bench("i", "o", *CHAIN, decoupled="a")
    client = bench.submit(i=1, stream=True)
    taken: list[int] = []
    part = bench.a.pending[0]
    part.on_take = lambda _, count: taken.append(count)  # type: ignore[attr-defined]
    bench.a.answer(0, Y=1, final=False)
    assert not taken
    bench.b.answer(Y=2)
    assert not taken, "the client has not taken the response yet"
    client.take()  # type: ignore[attr-defined]
    assert taken == [1]
    bench.a.answer(0, Y=3, final=False)
    bench.b.answer(Y=4)
    client.take()  # type: ignore[attr-defined]
    assert taken == [1, 1]
    bench.a.answer(0)
    assert bench.responses[-1].final


# --- the order of the responses of a decoupled step


def values(bench: Bench) -> list[int | str]:
    """The values of the responses so far; of an error, its text."""
    return [
        r.error.message.removeprefix("in ensemble 'e', ") if r.error else int(r.outputs[0].array[0])
        for r in bench.responses
        if r.error or r.outputs
    ]


@pytest.mark.parametrize(("preserves_order", "expected"), [(True, [11, 12, 13]), (False, [12, 13, 11])])
def test_responses_keep_the_order_of_the_sending_step(preserves_order: bool, expected: list[int]) -> None:
    bench = Bench("i", "o", *CHAIN, decoupled="a", preserves_order=preserves_order)
    bench.submit(i=1)
    for value in (1, 2, 3):
        bench.a.answer(0, Y=value, final=value == 3)
    bench.b.answer(1, Y=12)
    bench.b.answer(2, Y=13)
    assert values(bench) == expected[:-1] * (not preserves_order)
    bench.b.answer(0, Y=11)
    assert values(bench) == expected
    assert [r.final for r in bench.responses] == [False, False, True]


def test_an_error_of_the_decoupled_step_comes_after_its_responses() -> None:
    bench = Bench("i", "o", *CHAIN, decoupled="a")
    bench.submit(i=1)
    bench.a.answer(0, Y=1, final=False)
    bench.a.answer(0, error=BackendFailed("no"), final=False)
    bench.a.answer(0, Y=3)
    bench.b.answer(0, Y=11)
    assert values(bench) == [11, "no"]
    assert len(bench.b.pending) == 1


def test_cancelling_drops_responses_that_wait_for_their_order() -> None:
    bench = Bench("i", "o", "a(X=i:Y=t)", "b(X=t:Y=u)", "c(X=u:Y=o)", decoupled="a")
    client = bench.submit(i=1)
    for value in (1, 2):
        bench.a.answer(0, Y=value, final=value == 2)
    bench.b.answer(1, Y=12)
    client.cancel()
    assert not bench.responses
    bench.b.answer(0, Y=11)
    assert [type(r.error) for r in bench.responses] == [RequestCancelled]
    assert bench.scheduler.in_flight == 0


@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_answers_gives_the_same_responses(seed: int) -> None:
    """Two decoupled steps, with others beside, between and after them, and an error of any request."""
    random = Random(seed)
    steps = ("a(X=i:Y=t)", "b(X=t:Y=u)", "c(X=t:Y=v)", "d(X=u,Z=v:Y=w)", "e(X=w:Y=x)", "f(X=x:Y=o)")
    bench = Bench("i", "o", *steps, decoupled="ad", max_in_flight=random.choice([0, 2]))
    sends = {"a": 4, "d": 3}
    failing = random.choice([None, ("a", 0), *product("bcd", range(4)), *product("ef", range(12))])
    # How often each request was answered, by step, and the responses of the decoupled ones that were not taken.
    answered: dict[str, list[int]] = {name: [] for name in bench.models}
    untaken = 0

    def note_taken(_: StreamedRequest, count: int) -> None:
        nonlocal untaken
        untaken -= count

    bench.submit(i=0)
    while bench.scheduler.in_flight:
        for name, counts in answered.items():
            for pending in bench.models[name].pending[len(counts) :]:
                pending.on_take = note_taken  # type: ignore[attr-defined]
                counts.append(0)
        name, index, count = random.choice(
            [
                (name, index, count)
                for name, counts in answered.items()
                for index, count in enumerate(counts)
                if count <= sends.get(name, 0)
            ]
        )
        answered[name][index] += 1
        step, is_last = bench.models[name], count == sends.get(name, 0)
        untaken += not is_last
        if (name, index) == failing and not count:
            step.answer(index, error=BackendFailed("no"), final=is_last)
        elif name not in sends:
            step.answer(index, Y=step.inputs(index)["X"])
        elif is_last:
            step.answer(index)
        else:
            step.answer(index, Y=step.inputs(index)["X"][0] * 10 + count, final=False)
    whole = [n * 10 + m for n in range(4) for m in range(3)]
    if failing is None:
        assert values(bench) == whole
    else:
        name, index = failing
        assert values(bench) == [*whole[: index if name in "ef" else index * 3], "no"]
    assert untaken == 0


def test_a_step_has_at_most_its_limit_in_flight() -> None:
    bench = Bench("i", "o", *CHAIN, max_in_flight=2)
    for number in range(4):
        bench.submit(i=number)
    assert len(bench.a.pending) == 2
    bench.a.answer(0, Y=0)
    assert [bytes(each.request.inputs[0].data)[0] for each in bench.a.pending] == [0, 1, 2]
    assert len(bench.b.pending) == 1
    bench.a.answer(1, Y=1)
    bench.a.answer(2, Y=2)
    bench.a.answer(3, Y=3)
    assert len(bench.b.pending) == 2
    for index in range(4):
        bench.b.answer(index, Y=index)
    assert [int(r.outputs[0].array[0]) for r in bench.responses] == [0, 1, 2, 3]


def test_request_waiting_for_a_step_limit_can_be_cancelled() -> None:
    bench = Bench("i", "o", *CHAIN, max_in_flight=1)
    bench.submit(i=1)
    gone = bench.submit(i=2)
    bench.submit(i=3)
    gone.cancel()
    assert type(failure(bench)) is RequestCancelled
    bench.a.answer(0, Y=1)
    assert [bytes(each.request.inputs[0].data)[0] for each in bench.a.pending] == [1, 3]
    bench.b.answer(0, Y=1)
    assert bench.scheduler.in_flight == 1


# --- the limit of requests in flight
