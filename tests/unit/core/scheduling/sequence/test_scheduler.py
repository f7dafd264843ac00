"""The sequence batcher: order, slots, backlog, states, early ends, and the end."""

from __future__ import annotations

import pytest

from tests.unit.core.scheduling.scheduler_bench import LIMIT_S
from tests.unit.core.scheduling.sequence.sequence_bench import CONTROLS, HOUR, SUM, MakeBench, Summing
from tests.waiting import until
from trident.core.errors import (
    DeadlineExceeded,
    InvalidRequest,
    RequestCancelled,
    ServerStopping,
)
from trident.core.observability.statistics import FailureReason

OLDEST = HOUR + "oldest { max_candidate_sequences: 2 } "
DIRECT = HOUR + "direct {} "


def test_the_model_learns_the_place_of_each_request(make_bench: MakeBench) -> None:
    bench = make_bench(OLDEST + CONTROLS)
    bench.scheduler.start()
    for id, flags in (("a", "s"), ("b", ""), ("c", "e")):
        bench.submit(id, 2**63 + 1, flags)
    assert bench.wait(3) == ["a", "b", "c"]
    given = [{name: array.tolist() for name, array in each.items()} for each in bench.backend.given]
    assert [(each["START"], each["END"]) for each in given] == [([[1]], [[-1]]), ([[0]], [[-1]]), ([[0]], [[2.5]])]
    assert all((each["READY"], each["ID"]) == ([[True]], [[2**63 + 1]]) for each in given)


def test_the_requests_of_a_sequence_run_one_after_the_other_beside_those_of_others(make_bench: MakeBench) -> None:
    bench = make_bench(OLDEST)
    for id, sequence, flags in (("a1", 1, "s"), ("a2", 1, ""), ("b1", 2, "s"), ("a3", 1, "e"), ("b2", 2, "e")):
        bench.submit(id, sequence, flags)
    bench.scheduler.start()
    bench.wait(5)
    assert bench.backend.batches == [["a1", "b1"], ["a2", "b2"], ["a3"]]
    snapshot = bench.statistics.snapshot(0)
    assert (snapshot.inference_count, snapshot.execution_count) == (5, 3)


def test_a_state_is_the_output_of_the_request_before(make_bench: MakeBench) -> None:
    bench = make_bench(OLDEST + SUM)
    bench.scheduler.start()
    for number in range(1, 5):
        bench.submit(f"a{number}", 1, "s" if number == 1 else "", value=number)
        bench.submit(f"b{number}", 2, "s" if number == 1 else "", value=10 * number)
    bench.wait(8)
    assert bench.values() == {"a1": 1, "a2": 3, "a3": 6, "a4": 10, "b1": 10, "b2": 30, "b3": 60, "b4": 100}
    assert {output.name for answer in bench.answers for output in answer.outputs} == {"OUT"}


def test_a_state_survives_a_failed_execution_and_begins_anew_at_start(
    make_bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make_bench(OLDEST + SUM)
    bench.scheduler.start()
    for id, flags in (("a", "s"), ("x", ""), ("b", ""), ("c", "s"), ("d", "")):
        bench.submit(id, 1, flags)
    bench.wait(5)
    assert bench.answer("x").error is not None
    del bench.answers[1]
    assert bench.values() == {"a": 1, "b": 2, "c": 1, "d": 2}
    assert "The previous sequence did not end before this sequence start" in caplog.text


@pytest.mark.parametrize("strategy", [OLDEST, DIRECT], ids=["oldest", "direct"])
def test_a_sequence_without_a_slot_waits_until_another_ends(make_bench: MakeBench, strategy: str) -> None:
    bench = make_bench(strategy, max_batch_size=2)
    bench.scheduler.start()
    for sequence in (1, 2, 3):
        bench.submit(f"{sequence}s", sequence, "s")
        bench.submit(f"{sequence}e", sequence, "e" if sequence == 3 else "")
    bench.wait(4)
    assert bench.scheduler.queued == 2
    bench.submit("end", 2, "e")
    assert bench.wait(7)[-2:] == ["3s", "3e"]


def test_an_id_is_free_again_when_its_end_was_queued(make_bench: MakeBench) -> None:
    bench = make_bench(OLDEST + SUM)
    bench.backend.gate.clear()
    bench.scheduler.start()
    bench.submit("a", 7, "s")
    bench.submit("b", 7, "e")
    with pytest.raises(InvalidRequest, match="for sequence 7 to model 'm' must specify the START flag"):
        bench.submit("late", 7, "e")
    bench.submit("c", 7, "s", value=5)
    bench.backend.gate.set()
    bench.wait(3)
    assert bench.values() == {"a": 1, "b": 2, "c": 5}


def test_an_idle_sequence_loses_its_slot(make_bench: MakeBench) -> None:
    bench = make_bench("max_sequence_idle_microseconds: 20000 oldest { max_candidate_sequences: 1 }")
    bench.scheduler.start()
    bench.submit("a", 1, "s")
    bench.submit("b", 2, "s")
    assert bench.wait(2) == ["a", "b"]
    until(lambda: not bench.scheduler._seating.seated)
    for sequence in (1, 2):
        with pytest.raises(InvalidRequest, match="START flag"):
            bench.submit("late", sequence)


def test_a_running_request_is_not_idleness(make_bench: MakeBench) -> None:
    bench = make_bench("max_sequence_idle_microseconds: 10000 oldest { max_candidate_sequences: 2 }")
    bench.backend.gate.clear()
    bench.scheduler.start()
    bench.submit("a", 1, "s")
    bench.begun()
    first = next(iter(bench.scheduler._seating.seated))
    began_ns = first.active_ns
    until(lambda: first.active_ns > began_ns)  # the reaper has looked at it
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


@pytest.mark.parametrize("order", ["", "preserve_ordering: true"])
@pytest.mark.parametrize("place", ["slot", "backlog"])
def test_cancelling_a_waiting_request_cancels_the_whole_sequence(make_bench: MakeBench, place: str, order: str) -> None:
    bench = make_bench(HOUR + f"oldest {{ max_candidate_sequences: 1 {order} }}")
    bench.backend.gate.clear()
    bench.scheduler.start()
    sequence = 1 if place == "slot" else 2
    bench.submit("running", 1, "s")
    bench.begun()
    bench.submit("a", sequence, "s")
    bench.submit("b", sequence).cancel()
    assert bench.wait(2) == ["a", "b"]
    assert all(isinstance(bench.answer(id).error, RequestCancelled) for id in "ab")
    with pytest.raises(InvalidRequest, match="START flag"):
        bench.submit("late", sequence)
    bench.backend.gate.set()
    assert bench.wait(3)[-1] == "running"


def test_responses_may_keep_the_order_of_the_requests_of_all_sequences(make_bench: MakeBench) -> None:
    bench = make_bench(HOUR + "oldest { max_candidate_sequences: 2 preserve_ordering: true }")
    for id, sequence in (("a1", 1), ("a2", 1), ("b1", 2), ("c1", 3)):
        bench.submit(id, sequence, "se" if sequence == 3 else "s")
    bench.scheduler.start()
    assert bench.wait(3) == ["a1", "a2", "b1"]
    bench.submit("b2", 2, "e")
    assert bench.wait(5)[3:] == ["b2", "c1"]


@pytest.mark.parametrize("strategy", ["oldest { max_candidate_sequences: 4 }", "direct {}"])
def test_the_first_batch_may_wait_for_requests(make_bench: MakeBench, strategy: str) -> None:
    bench = make_bench(HOUR + strategy, delay_until=4)
    bench.scheduler.start()
    for sequence in (1, 2, 3):
        bench.submit(str(sequence), sequence, "s")
    assert bench.scheduler.queued == 3
    bench.submit("4", 4, "s")
    bench.wait(4)
    assert bench.backend.batches == [["1", "2", "3", "4"]]


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


def test_open_sequences_may_go_on_while_the_server_stops(make_bench: MakeBench) -> None:
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


def test_close_answers_what_waits(make_bench: MakeBench) -> None:
    bench = make_bench(HOUR + "oldest { max_candidate_sequences: 1 }")
    for id, sequence in (("a", 1), ("b", 1), ("c", 2)):
        bench.submit(id, sequence, "s")
    assert bench.scheduler.close(LIMIT_S)
    assert sorted(bench.wait(3)) == ["a", "b", "c"]
    assert all(isinstance(answer.error, ServerStopping) for answer in bench.answers)


def test_a_new_instance_serves_the_backlog_and_one_that_leaves_finishes_its_sequences(make_bench: MakeBench) -> None:
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
    bench.scheduler.remove(bench.backend)
    bench.submit("c", 3, "s")
    bench.submit("b2", 2, "e")
    assert bench.wait(5)[3:] == ["b2", "c"]
    assert other.batches == [["b"], ["b2"], ["c"]]
    with pytest.raises(ValueError, match="last instance"):
        bench.scheduler.remove(other)


def test_an_instance_that_lost_its_states_ends_its_sequences(make_bench: MakeBench) -> None:
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
