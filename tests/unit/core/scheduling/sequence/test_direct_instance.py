"""Direct batches: each sequence in its slot, null requests in the others."""

from __future__ import annotations

import pytest

from tests.unit.core.scheduling.later_bench import LaterStub, text
from tests.unit.core.scheduling.scheduler_bench import LIMIT_S
from tests.unit.core.scheduling.sequence.sequence_bench import CONTROLS, HOUR, SUM, Bench, MakeBench
from trident.core.observability.statistics import BatchStatistics

DIRECT = HOUR + "direct {} "


def begun(bench: Bench, *sequences: int) -> None:
    """Begin sequences, each in the lowest free slot, and forget their first requests."""
    for sequence in sequences:
        bench.submit(f"{sequence}s", sequence, "s")
        bench.wait(1)
        bench.answers.clear()
    bench.backend.batches.clear()
    bench.backend.given.clear()


def sizes(bench: Bench) -> list[int]:
    """The batch sizes of the statistics."""
    batches: tuple[BatchStatistics, ...] = bench.statistics.snapshot(0).batches
    return [batch.batch_size for batch in batches for _ in range(batch.execution_count)]


def test_a_request_is_in_the_slot_of_its_sequence(make_bench: MakeBench) -> None:
    bench = make_bench(DIRECT + CONTROLS)
    bench.scheduler.start()
    begun(bench, 1, 2, 3, 4)
    bench.submit("c", 3, value=7)
    bench.wait(1)
    assert bench.backend.batches == [["", "", "c"]]
    given = [{name: array.reshape(-1)[0].item() for name, array in each.items()} for each in bench.backend.given]
    null = {"X": 0, "START": 0, "END": -1.0, "READY": False, "ID": 0}
    assert given == [null, null, {"X": 7, "START": 0, "END": -1.0, "READY": True, "ID": 3}]
    assert bench.values() == {"c": 7}


def test_null_requests_count_in_the_batch_and_nowhere_else(make_bench: MakeBench) -> None:
    bench = make_bench(DIRECT)
    bench.scheduler.start()
    begun(bench, 1, 2, 3)
    bench.submit("b", 2)
    bench.wait(1)
    assert sizes(bench) == [1, 2, 2, 3]
    snapshot = bench.statistics.snapshot(0)
    assert (snapshot.request_success, snapshot.execution_count) == (4, 4)


def test_the_batch_is_in_the_order_of_the_slots_not_of_the_requests(make_bench: MakeBench) -> None:
    bench = make_bench(DIRECT)
    bench.scheduler.start()
    begun(bench, 1, 2, 3)
    bench.backend.gate.clear()
    bench.submit("first", 1)
    bench.begun()
    for _ in range(3):
        bench.begun()
    bench.submit("c", 3)
    bench.submit("a", 1)
    bench.backend.gate.set()
    bench.wait(3)
    assert bench.backend.batches[1:] == [["a", "", "c"]]


def test_requests_of_other_shapes_are_executed_apart(make_bench: MakeBench) -> None:
    bench = make_bench(DIRECT, delay_until=4)
    bench.scheduler.start()
    for sequence, key in ((1, "x"), (2, "x"), (3, "y"), (4, "z")):
        pending = bench.request(str(sequence), sequence, "s")
        pending.batch_key = (key,)
        bench.scheduler.submit(pending)
    bench.wait(4)
    assert bench.backend.batches == [["1", "2", "", ""], ["", "", "3", ""], ["", "", "", "4"]]


def test_the_states_of_null_requests_are_zeros_and_are_not_kept(make_bench: MakeBench) -> None:
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


def test_a_batch_waits_for_others_no_longer_than_the_delay(make_bench: MakeBench) -> None:
    bench = make_bench(HOUR + "direct { minimum_slot_utilization: 1 max_queue_delay_microseconds: 1000 }")
    bench.scheduler.start()
    bench.submit("a", 1, "s")
    assert bench.wait(1) == ["a"]


def test_an_instance_that_answers_later_has_null_requests_too(make_bench: MakeBench) -> None:
    seen: list[list[str]] = []
    stub = LaterStub(answer=lambda request, sender: text(request.id))
    execute = stub.execute

    def noting(requests, batch_sizes, senders):  # type: ignore[no-untyped-def]
        seen.append([request.id for request in requests])
        assert len(senders) == len(requests)
        return execute(requests, batch_sizes, senders)

    stub.execute = noting  # type: ignore[method-assign]
    bench = make_bench(DIRECT, instances=[stub])
    bench.scheduler.start()
    for sequence in (1, 2):
        bench.submit(f"{sequence}", sequence, "s")
        bench.wait(sequence)
    bench.submit("b", 2)
    bench.wait(3)
    assert seen == [["1"], ["", "2"], ["", "b"]]


def test_a_request_that_is_answered_later_holds_back_the_next_one(make_bench: MakeBench) -> None:
    stub = LaterStub()
    bench = make_bench(HOUR + "oldest { max_candidate_sequences: 2 }", instances=[stub])
    bench.scheduler.start()
    bench.submit("a", 1, "s")
    bench.submit("b", 1, "e")
    sender = stub.sender("a")
    assert bench.scheduler.queued == 1
    sender.send(text("early"))
    bench.wait(1)
    assert bench.scheduler.queued == 1
    sender.send(None, final=True)
    stub.sender("b").send(text("late"), final=True)
    bench.wait(3)
    assert bench.scheduler.drain(LIMIT_S)
