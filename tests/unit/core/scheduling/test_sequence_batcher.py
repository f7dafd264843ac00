"""The sequence batcher: order, slots, backlog, states, direct batches, iterations, early ends, and the end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from tests.unit.core.scheduling.scheduler_bench import LIMIT_S, LaterStub, Outcomes, StubInstance
from tests.unit.core.scheduling.sequence_bench import CONTROLS, HOUR, SUM, Bench, MakeBench, Summing, benches, spec_of
from tests.waiting import until
from trident.core.config.spec import ModelSpec
from trident.core.errors import (
    BackendFailed,
    DeadlineExceeded,
    ErrorCode,
    InvalidRequest,
    RequestCancelled,
    ServerStopping,
)
from trident.core.inference.pending_request import (
    AGAIN,
    LATER,
    DeferredOutcome,
    PendingRequest,
    ResponseSender,
    StreamedRequest,
)
from trident.core.inference.request import InferenceRequest, Inputs, InputTensor, PackedInputs, RequestTrace
from trident.core.inference.response import Origin, Outputs, OutputTensor, PackedOutputs
from trident.core.inference.tensors import layout_of
from trident.core.observability.statistics import FailureReason
from trident.core.options import DEFAULT_WINDOW
from trident.core.scheduling.sequence_tensors import Controls, RequestBuilder, States

OLDEST = HOUR + "oldest { max_candidate_sequences: 2 } "
DIRECT = HOUR + "direct {} "


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    with benches() as make:
        yield make


def test_a_correlation_id_that_the_control_cannot_hold_is_refused() -> None:
    """Cut off, two of them would be one for the model."""
    sequence = spec_of(OLDEST + CONTROLS.replace("UINT64", "INT32")).sequence
    assert sequence is not None
    controls, request = Controls(sequence, batching=True), InferenceRequest("m", [])
    request.correlation_id = 2**32 - 1
    controls.check(request)
    request.correlation_id = 2**32
    with pytest.raises(
        InvalidRequest, match="'ID' data-type is 'INT32', which cannot hold the correlation ID 4294967296"
    ):
        controls.check(request)


def test_sequence_with_a_running_request_is_not_idle(make_bench: MakeBench) -> None:
    bench = make_bench("max_sequence_idle_microseconds: 10000 oldest { max_candidate_sequences: 2 }")
    bench.backend.gate.clear()
    bench.scheduler.start()
    bench.submit("a", 1, "s")
    bench.begun()
    first = next(iter(bench.scheduler._active))
    began_ns = first.active_ns
    until(lambda: first.active_ns > began_ns)  # the thread of timeouts has looked at it
    bench.submit("b", 1, "e")
    bench.backend.gate.set()
    assert bench.wait(2) == ["a", "b"]


@pytest.mark.parametrize("order", ["", "preserve_ordering: true"])
def test_a_timeout_in_the_backlog_fails_the_whole_sequence(make_bench: MakeBench, order: str) -> None:
    """Whatever the instance does."""
    bench = make_bench(HOUR + f"oldest {{ max_candidate_sequences: 1 {order} }}")
    bench.backend.gate.clear()
    bench.scheduler.start()
    bench.submit("a", 1, "s", timeout_us=1000)
    bench.begun()
    bench.submit("b1", 2, "s")
    bench.submit("b2", 2, timeout_us=1000)
    bench.submit("c", 3, "s")
    assert bench.wait(2) == ["b1", "b2"]
    bench.backend.gate.set()
    bench.wait(3)
    assert bench.answer("a").error is None
    for id in ("b1", "b2"):
        error = bench.answer(id).error
        assert isinstance(error, DeadlineExceeded)
        assert error.message == "timeout of the corresponding sequence has been expired"
    assert bench.statistics.snapshot(0).request_failures[FailureReason.REJECTED] == 2
    with pytest.raises(InvalidRequest, match="START flag"):
        bench.submit("late", 2)
    bench.submit("end", 1, "e")
    assert bench.wait(5)[-1] == "c"


def test_cancelled_request_ends_its_sequence(make_bench: MakeBench) -> None:
    def answer(request: InferenceRequest, sender: ResponseSender) -> Exception:
        first.cancel()
        return BackendFailed("I was told", code=ErrorCode.CANCELLED)

    bench = make_bench(OLDEST, instances=[LaterStub(0, answer)])
    first = bench.submit("first", 1, "s")
    bench.submit("second", 1)
    bench.scheduler.start()
    bench.wait(2)
    assert bench.answer("first").origin is bench.answer("second").origin is Origin.CANCELLED
    assert bench.statistics.snapshot().request_failures[FailureReason.CANCELED] == 2
    with pytest.raises(InvalidRequest, match="START flag"):
        bench.submit("late", 1)


def test_responses_may_keep_the_order_of_the_requests_of_all_sequences(make_bench: MakeBench) -> None:
    bench = make_bench(HOUR + "oldest { max_candidate_sequences: 2 preserve_ordering: true }")
    for id, sequence in (("a1", 1), ("a2", 1), ("b1", 2), ("c1", 3)):
        bench.submit(id, sequence, "se" if sequence == 3 else "s")
    bench.scheduler.start()
    assert bench.wait(3) == ["a1", "a2", "b1"]
    bench.submit("b2", 2, "e")
    assert bench.wait(5)[3:] == ["b2", "c1"]


def test_the_first_batch_may_wait_for_the_backlog(make_bench: MakeBench) -> None:
    bench = make_bench(HOUR + "direct {}", max_batch_size=2, count=2, delay_until=6, backlog_delay_until=1)
    bench.scheduler.start()
    for sequence in (1, 2, 3, 4):
        bench.submit(f"{sequence}s", sequence, "s")
    bench.submit("1e", 1, "e")
    bench.submit("2", 2)
    assert bench.scheduler.queued == 6
    bench.submit("5", 5, "s")
    bench.wait(7)
    # A sequence begins on the instance whose lowest free slot is lower.
    assert bench.backends[0].batches == [["1s", "3s"], ["1e"], ["5"]]
    assert bench.backends[1].batches == [["2s", "4s"], ["2"]]


def test_a_version_that_is_replaced_ends_its_sequences(make_bench: MakeBench) -> None:
    bench = make_bench(HOUR + "oldest { max_candidate_sequences: 1 }")
    bench.backend.gate.clear()
    bench.scheduler.start()
    bench.submit("a", 1, "s")
    bench.begun()
    bench.submit("b", 1)
    bench.submit("c", 2, "s")
    bench.scheduler.stop()
    with pytest.raises(ServerStopping):
        bench.submit("late", 1)
    bench.backend.gate.set()
    assert bench.scheduler.drain(LIMIT_S)
    assert bench.wait(3) == ["a", "b", "c"]
    assert (bench.scheduler.queued, bench.scheduler.in_flight) == (0, 0)


def test_open_sequences_continue_while_the_server_stops(make_bench: MakeBench) -> None:
    bench = make_bench(OLDEST)
    bench.scheduler.start()
    bench.submit("a", 1, "s")
    bench.wait(1)
    bench.scheduler.stop(accept_nested=True)
    with pytest.raises(ServerStopping):
        bench.submit("other", 2, "s")
    bench.submit("b", 1)
    assert bench.scheduler.drain(LIMIT_S)  # although the sequence is open
    assert bench.wait(2) == ["a", "b"]


def test_added_instance_serves_the_backlog_and_removed_one_finishes_its_sequences(make_bench: MakeBench) -> None:
    bench = make_bench(HOUR + "oldest { max_candidate_sequences: 1 }")
    bench.scheduler.start()
    bench.submit("a", 1, "s")
    bench.submit("b", 2, "s")
    assert bench.wait(1) == ["a"]
    other = Summing(1)
    bench.backends.append(other)
    bench.scheduler.add(other)
    assert bench.wait(2) == ["a", "b"]
    assert other.batches == [["b"]]
    bench.submit("end", 1, "e")
    bench.wait(3)
    bench.scheduler.remove(bench.backend)()
    bench.submit("c", 3, "s")
    bench.submit("b2", 2, "e")
    assert bench.wait(5)[3:] == ["b2", "c"]
    assert other.batches == [["b"], ["b2"], ["c"]]
    with pytest.raises(ValueError, match="last instance"):
        bench.scheduler.remove(other)


def test_instance_without_its_states_ends_its_sequences(make_bench: MakeBench) -> None:
    bench = make_bench(HOUR + "oldest { max_candidate_sequences: 1 }", count=2)
    for backend in bench.backends:
        backend.gate.clear()
    bench.scheduler.start()
    bench.submit("a1", 1, "s")
    bench.submit("b1", 2, "s")
    bench.begun(0)
    bench.submit("a2", 1)
    bench.submit("c", 3, "s")
    bench.scheduler.forget(bench.backend)
    assert bench.wait(1) == ["a2"]
    assert isinstance(bench.answer("a2").error, InvalidRequest)
    with pytest.raises(InvalidRequest, match="START flag"):
        bench.submit("a3", 1)
    bench.submit("b2", 2)
    for backend in bench.backends:
        backend.gate.set()
    assert sorted(bench.wait(5)) == ["a1", "a2", "b1", "b2", "c"]
    assert bench.backend.batches == [["a1"], ["c"]]


def begun(bench: Bench, *sequences: int) -> None:
    """Begin sequences, each in the lowest free slot, and forget their first requests."""
    for sequence in sequences:
        bench.submit(f"{sequence}s", sequence, "s")
        bench.wait(1)
        bench.answers.clear()
    bench.backend.batches.clear()
    bench.backend.given.clear()


def test_states_of_null_requests_are_zeros_and_not_stored(make_bench: MakeBench) -> None:
    bench = make_bench(DIRECT + SUM)
    bench.scheduler.start()
    begun(bench, 1, 2)
    bench.submit("b", 2, value=5)
    bench.wait(1)
    bench.submit("a", 1, value=3)
    bench.wait(2)
    assert bench.values() == {"b": 6, "a": 4}
    assert bench.backend.given[0]["SUM_IN"].tolist() == [[0]]


@pytest.mark.parametrize(("utilization", "ready"), [(0.5, 2), (0.75, 3), (1.0, 4)])
def test_a_batch_waits_for_the_minimum_slot_utilization(make_bench: MakeBench, utilization: float, ready: int) -> None:
    delayed = f"direct {{ minimum_slot_utilization: {utilization} max_queue_delay_microseconds: 3600000000 }}"
    bench = make_bench(HOUR + delayed)
    bench.scheduler.start()
    for sequence in range(1, ready):
        bench.submit(str(sequence), sequence, "s")
    assert (bench.answers, bench.scheduler.queued) == ([], ready - 1)
    bench.submit("last", ready, "s")
    bench.wait(ready)
    assert len(bench.backend.batches) == 1


ITERATIVE_OLDEST = HOUR + "iterative_sequence: true oldest { max_candidate_sequences: 2 } "
ITERATIVE_DIRECT = HOUR + "iterative_sequence: true direct {} "
WINDOW = DEFAULT_WINDOW.responses


class Counting(StubInstance):
    """Sends as many tokens to a request as its X says, one in each iteration. Waits for a step before each iteration.

    `kept` are the senders of iterations that are over, if `keeps`.
    """

    may_run_inline = False
    answers_later = True

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.given: list[dict[str, object]] = []
        self.keeps = False
        self.kept: list[ResponseSender] = []
        self.during: Callable[[], None] = lambda: None
        self._left: dict[object, int] = {}
        self._steps = threading.Semaphore(0)

    def step(self, count: int = 1) -> None:
        """Let `count` more executions begin."""
        self._steps.release(count)

    def outcomes(self, requests: Sequence[InferenceRequest], senders: Sequence[ResponseSender]) -> Outcomes:
        assert self._steps.acquire(timeout=LIMIT_S)
        self.batches.append([request.id for request in requests])
        self.during()
        return [self._outcome(*pair) for pair in zip(requests, senders, strict=True)]

    def _outcome(self, request: InferenceRequest, sender: ResponseSender) -> Outputs | DeferredOutcome:
        if not request.id:  # of an empty slot
            return []
        given = {tensor.name: tensor.array.reshape(-1).tolist()[0] for tensor in request.inputs}
        self.given.append(given)
        key = request.correlation_id
        if request.sequence_start:
            self._left[key] = given["X"]
        self._left[key] -= 1
        token = np.full((1, 1), self._left[key], np.int32)
        sender.send([OutputTensor("OUT", "INT32", token.shape, token)], final=not self._left[key])
        if self.keeps:
            self.kept.append(sender)
        return AGAIN if self._left[key] else LATER


@pytest.fixture
def model() -> Iterator[Counting]:
    """At the end it executes whatever comes."""
    counting = Counting()
    yield counting
    counting.step(10_000)


@pytest.fixture
def bench(model: Counting, make_bench: MakeBench) -> Iterator[Bench]:
    """With two slots."""
    made = make_bench(ITERATIVE_OLDEST + CONTROLS, instances=[model])
    made.scheduler.start()
    yield made
    model.step(10_000)


def submit(bench: Bench, id: str, count: int) -> PendingRequest:
    """A request for `count` tokens, without correlation id."""
    return bench.submit(id, 0, value=count)


def streamed(bench: Bench, id: str, count: int) -> StreamedRequest:
    """The same, from a client that acknowledges responses."""
    plain = bench.request(id, 0, value=count)
    pending = StreamedRequest(plain.request, plain.on_response)
    bench.scheduler.submit(pending)
    return pending


def said(bench: Bench, id: str) -> list[int]:
    return [int(answer.outputs[0].array[0, 0]) for answer in bench.answers if answer.id == id and answer.outputs]


@pytest.mark.parametrize("strategy", [ITERATIVE_OLDEST, ITERATIVE_DIRECT])
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


def test_a_client_may_name_its_request_but_must_begin_it(bench: Bench, model: Counting) -> None:
    model.step(2)
    bench.submit("a", 77, "s", value=2)
    bench.wait(2)
    assert [each["ID"] for each in model.given] == [77, 77]
    with pytest.raises(InvalidRequest, match="START"):
        bench.submit("b", 77)


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


def test_rescheduled_request_ends_when_the_instance_loses_its_state(make_bench: MakeBench, model: Counting) -> None:
    """One waits in the queue, one for its client, and one is executed meanwhile. A new one is executed."""
    delay = "preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 3600000000 "
    bench = make_bench(ITERATIVE_OLDEST.replace("}", delay + "}"), instances=[model])
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


def test_close_answers_rescheduled_requests(bench: Bench, model: Counting) -> None:
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


def test_a_cancelled_request_is_not_executed_again(bench: Bench, model: Counting) -> None:
    pending = submit(bench, "a", 1000)
    model.during = pending.cancel
    model.step()
    until(lambda: any(answer.final for answer in bench.answers))
    assert isinstance(bench.answers[-1].error, RequestCancelled)
    assert bench.scheduler.drain(LIMIT_S)
    assert len(model.batches) == 1
    assert bench.statistics.snapshot(0).request_failures[FailureReason.CANCELED] == 1


def test_sender_of_an_ended_iteration_sends_nothing(bench: Bench, model: Counting) -> None:
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


# --- requests as the model gets them, and the states after its responses: as one run of bytes, and tensor by tensor


OTHER = 'state { input_name: "N_IN" output_name: "N" data_type: TYPE_INT8 dims: [ 1 ] }'
X = np.array([[5]], np.int32)
INITIAL = {"SUM_IN": np.array([3], np.int32), "N_IN": np.array([4], np.int8)}


def made(more: str = CONTROLS + SUM + OTHER) -> tuple[ModelSpec, States, RequestBuilder]:
    spec = spec_of("oldest {} " + more)
    assert spec.sequence is not None
    states = States(spec, INITIAL)
    return spec, states, RequestBuilder(spec, Controls(spec.sequence, batching=True), states)


def as_run() -> PackedInputs:
    return PackedInputs(layout_of([("X", "INT32", (1, 1), 4)]), memoryview(X.tobytes()))


def as_list() -> list[InputTensor]:
    return [InputTensor("X", "INT32", (1, 1), memoryview(X.tobytes()))]


def values(inputs: Inputs) -> dict[str, list[list[float]]]:
    return {tensor.name: tensor.array.tolist() for tensor in inputs}


def test_states_are_read_from_packed_and_single_outputs() -> None:
    _, states, _ = made()
    arrays = {"OUT": X, "SUM": np.array([[7]], np.int32), "N": np.array([[9]], np.int8)}
    tensors = [OutputTensor(name, "INT8" if name == "N" else "INT32", (1, 1), array) for name, array in arrays.items()]
    layout = layout_of([(each.name, each.datatype, each.shape, each.array.nbytes) for each in tensors])
    run = PackedOutputs(layout, memoryview(b"".join(each.array.tobytes() for each in tensors)))
    for outputs in (run, tensors):
        for_client, after = states.taken(outputs, (), states.first)
        assert [(each.name, each.array.tolist()) for each in for_client] == [("OUT", [[5]])]
        assert values(after) == {"SUM_IN": [[7]], "N_IN": [[9]]}


def test_model_receives_states_and_clients_do_not() -> None:
    _, states, builder = made()
    sent = InferenceRequest("m", as_run(), outputs=("OUT",), correlation_id=1)
    assert builder.built(sent, states.first).outputs == ("OUT", "SUM", "N")
    _, states, builder = made()
    sent = InferenceRequest("m", as_list(), id="a", correlation_id=1, sequence_start=True, timeout_us=7)
    sent.trace, sent.arrived_ns = RequestTrace(number=1), 5
    placed = builder.built(sent, states.first)
    assert (placed.id, placed.correlation_id, placed.timeout_us, placed.arrived_ns) == ("a", 1, 7, 5)
    assert placed.trace is sent.trace
