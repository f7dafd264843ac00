"""Iterative sequences: requests that their model gives back, to be executed again."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from tests.unit.core.scheduling.scheduler_bench import LIMIT_S
from tests.unit.core.scheduling.sequence.sequence_bench import CONTROLS, HOUR, Bench, MakeBench
from tests.waiting import until
from trident.core.backends.backend import Execution
from trident.core.config.placement import DeviceKind, Placement
from trident.core.errors import BackendFailed, InvalidRequest, RequestCancelled, ServerStopping
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import Outputs, OutputTensor
from trident.core.inference.streaming import AGAIN, LATER, DeferredOutcome, ResponseSender, StreamedRequest
from trident.core.inference.window_limits import DEFAULT_WINDOW
from trident.core.observability.statistics import FailureReason

OLDEST = HOUR + "iterative_sequence: true oldest { max_candidate_sequences: 2 } "
DIRECT = HOUR + "iterative_sequence: true direct {} "
WINDOW = DEFAULT_WINDOW.responses


class Counting:
    """Sends as many tokens to a request as its X says, one in each iteration. Waits for a step before each iteration.

    `kept` are the senders of iterations that are over, if `keeps`.
    """

    placement = Placement("m_0_0", DeviceKind.CPU)
    poisoned = False
    may_run_inline = False
    answers_later = True

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.given: list[dict[str, object]] = []
        self.keeps = False
        self.kept: list[ResponseSender] = []
        self.raises = False
        self.during: Callable[[], None] = lambda: None
        self._left: dict[object, int] = {}
        self._steps = threading.Semaphore(0)

    def step(self, count: int = 1) -> None:
        """Let `count` more executions begin."""
        self._steps.release(count)

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        assert self._steps.acquire(timeout=LIMIT_S)
        self.batches.append([request.id for request in requests])
        self.during()
        if self.raises:
            raise RuntimeError("no more")
        now_ns = time.monotonic_ns()
        return Execution([self._outcome(*pair) for pair in zip(requests, senders, strict=True)], now_ns, now_ns)

    def _outcome(self, request: InferenceRequest, sender: ResponseSender) -> Outputs | DeferredOutcome:
        if not request.id:  # of an empty slot
            return []
        given = {tensor.name: tensor.array.reshape(-1).tolist()[0] for tensor in request.inputs}
        self.given.append({**given, "flags": (request.sequence_start, request.sequence_end)})
        key = request.correlation_id
        if request.sequence_start:
            self._left[key] = given["X"]
        self._left[key] -= 1
        token = np.full((1, 1), self._left[key], np.int32)
        sender.send([OutputTensor("OUT", "INT32", token.shape, token)], final=not self._left[key])
        if self.keeps:
            self.kept.append(sender)
        return AGAIN if self._left[key] else LATER

    def close(self) -> None: ...


@pytest.fixture
def model() -> Iterator[Counting]:
    """At the end it executes whatever comes."""
    counting = Counting()
    yield counting
    counting.step(10_000)


@pytest.fixture
def bench(model: Counting, make_bench: MakeBench) -> Iterator[Bench]:
    """With two slots."""
    made = make_bench(OLDEST + CONTROLS, instances=[model])
    made.scheduler.start()
    yield made
    model.step(10_000)


def submit(bench: Bench, id: str, count: int) -> PendingRequest:
    """A request for `count` tokens, without correlation id."""
    return bench.submit(id, 0, value=count)


def streamed(bench: Bench, id: str, count: int) -> StreamedRequest:
    """The same, from a client that says what it has taken."""
    plain = bench.request(id, 0, value=count)
    pending = StreamedRequest(plain.request, plain.on_response)
    bench.scheduler.submit(pending)
    return pending


def said(bench: Bench, id: str) -> list[int]:
    return [int(answer.outputs[0].array[0, 0]) for answer in bench.answers if answer.id == id and answer.outputs]


def test_a_request_is_executed_until_its_model_is_done(bench: Bench, model: Counting) -> None:
    model.step(5)
    submit(bench, "a", 3)
    bench.wait(3)
    submit(bench, "b", 2)
    bench.wait(5)
    assert (said(bench, "a"), said(bench, "b")) == ([2, 1, 0], [1, 0])
    assert [answer.final for answer in bench.answers] == [False, False, True, False, True]
    assert [(each["ID"], each["START"], each["flags"]) for each in model.given] == [
        (1, 1, (True, False)),
        (1, 0, (False, False)),
        (1, 0, (False, False)),
        (2, 1, (True, False)),
        (2, 0, (False, False)),
    ]
    assert bench.scheduler.drain(LIMIT_S)
    snapshot = bench.statistics.snapshot(0)
    assert (snapshot.request_success, snapshot.inference_count, snapshot.execution_count) == (2, 2, 5)


@pytest.mark.parametrize("strategy", [OLDEST, DIRECT])
def test_new_requests_join_the_next_iteration(make_bench: MakeBench, model: Counting, strategy: str) -> None:
    bench = make_bench(strategy, instances=[model], max_batch_size=2)
    bench.scheduler.start()
    arriving = iter([("b", 2), ("c", 1)])  # c waits in the backlog
    model.during = lambda: [submit(bench, *each) for each in arriving]  # type: ignore[assignment, return-value]
    model.step(4)
    submit(bench, "a", 4)
    bench.wait(7)
    names = [sorted(id for id in batch if id) for batch in model.batches]
    assert names == [["a"], ["a", "b"], ["a", "b"], ["a", "c"]]


def test_a_text_control_gets_a_text(make_bench: MakeBench, model: Counting) -> None:
    control = 'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }'
    bench = make_bench(OLDEST + control, instances=[model])
    bench.scheduler.start()
    model.step()
    submit(bench, "a", 1)
    bench.wait(1)
    assert model.given[0]["ID"] == b"1"


def test_a_client_may_name_its_request_but_must_begin_it(bench: Bench, model: Counting) -> None:
    model.step(2)
    bench.submit("a", 77, "s", value=2)
    bench.wait(2)
    assert [each["ID"] for each in model.given] == [77, 77]
    with pytest.raises(InvalidRequest, match="START"):
        bench.submit("b", 77)


def test_a_cancelled_request_is_not_executed_again(bench: Bench, model: Counting) -> None:
    pending = submit(bench, "a", 1000)
    model.during = pending.cancel
    model.step()
    until(lambda: any(answer.final for answer in bench.answers))
    assert isinstance(bench.answers[-1].error, RequestCancelled)
    assert bench.scheduler.drain(LIMIT_S)
    assert len(model.batches) == 1
    assert bench.statistics.snapshot(0).request_failures[FailureReason.CANCELED] == 1


def test_an_execution_that_fails_ends_the_request(bench: Bench, model: Counting) -> None:
    model.step()
    submit(bench, "a", 9)
    bench.wait(1)
    model.raises = True
    model.step()
    bench.wait(2)
    model.raises = False
    assert bench.answers[-1].error is not None
    model.step()
    submit(bench, "b", 1)
    bench.wait(3)
    assert said(bench, "b") == [0]


def test_a_client_that_reads_slowly_holds_back_its_own_request_only(bench: Bench, model: Counting) -> None:
    slow = streamed(bench, "slow", WINDOW + 2)
    model.step(WINDOW)
    bench.wait(WINDOW)
    submit(bench, "other", 3)
    model.step(5)
    until(lambda: len(said(bench, "other")) == 3)
    assert len(said(bench, "slow")) == WINDOW
    until(lambda: (bench.scheduler.queued, bench.scheduler.in_flight) == (0, 1))
    slow.take(2)
    until(lambda: len(said(bench, "slow")) == WINDOW + 2)
    assert bench.scheduler.drain(LIMIT_S)


def test_a_request_that_waits_for_its_client_can_be_cancelled(bench: Bench, model: Counting) -> None:
    slow = streamed(bench, "slow", 2 * WINDOW)
    model.step(WINDOW)
    bench.wait(WINDOW)
    slow.cancel()
    bench.wait(WINDOW + 1)
    assert isinstance(bench.answers[-1].error, RequestCancelled)
    assert bench.scheduler.drain(LIMIT_S)


def test_what_was_given_back_is_lost_with_what_the_instance_knew(make_bench: MakeBench, model: Counting) -> None:
    """One waits in the queue, one for its client, and one is executed meanwhile. A new one is executed."""
    delay = "preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 3600000000 "
    bench = make_bench(OLDEST.replace("}", delay + "}"), instances=[model])
    bench.scheduler.start()
    model.step()
    submit(bench, "queued", 3)
    submit(bench, "short", 1)
    until(lambda: (bench.scheduler.queued, bench.scheduler.in_flight) == (1, 0))
    bench.scheduler.forget(model)
    bench.wait(3)
    streamed(bench, "slow", WINDOW + 2)
    submit(bench, "beside", WINDOW + 9)
    model.step(WINDOW)
    until(lambda: len(said(bench, "slow")) == WINDOW)
    until(lambda: (bench.scheduler.queued, bench.scheduler.in_flight) == (1, 1))
    bench.scheduler.forget(model)
    model.during = lambda: bench.scheduler.forget(model)
    model.step()
    submit(bench, "inside", 2)
    submit(bench, "last", 1)
    names = ("queued", "slow", "beside", "inside")
    until(lambda: {answer.id for answer in bench.answers if answer.final} == {*names, "short", "last"})
    errors = {answer.id: answer.error for answer in bench.answers if answer.final}
    assert {id for id, error in errors.items() if error is not None} == set(names)
    for name in names:
        assert isinstance(errors[name], BackendFailed)
        assert "between two iterations of the request" in str(errors[name])
    assert bench.scheduler.drain(LIMIT_S)


def test_a_scheduler_that_closes_answers_what_was_given_back(bench: Bench, model: Counting) -> None:
    """One waits for its client, another one for its next iteration."""
    streamed(bench, "slow", 2 * WINDOW)
    model.step(WINDOW)
    bench.wait(WINDOW)
    submit(bench, "other", 9)
    closing = threading.Thread(target=bench.scheduler.close)

    def close() -> None:
        closing.start()
        until(lambda: len(bench.answers) > WINDOW)

    model.during = close
    model.step()
    until(lambda: closing.ident is not None)
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    ends = {answer.id: answer.error for answer in bench.answers if answer.final}
    assert {id: type(error) for id, error in ends.items()} == {"slow": ServerStopping, "other": ServerStopping}


def test_the_sender_of_an_iteration_that_is_over_says_nothing(bench: Bench, model: Counting) -> None:
    model.keeps = True
    model.step()
    submit(bench, "a", 2)
    bench.wait(1)
    until(lambda: bench.scheduler.queued + bench.scheduler.in_flight == 1)
    model.kept[0].send(None, final=True)
    model.keeps = False
    model.kept.clear()
    gc.collect()
    model.step()
    bench.wait(2)
    assert said(bench, "a") == [1, 0]
    assert len(bench.answers) == 2
