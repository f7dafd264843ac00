from __future__ import annotations

from tests.unit.core.scheduling.scheduler_bench import LIMIT_S, Stub, batching
from tests.unit.pending_requests import pending_request
from trident.core.config.spec import BatchingSpec, ModelSpec
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.scheduling.factory import make_scheduler


def executed_batches(batching: BatchingSpec | None) -> list[list[str]]:
    """The batches of three requests that are submitted, before the start, to a scheduler that waits for three."""
    spec = ModelSpec(
        name="m", version=1, platform="", backend="stub", max_batch_size=8, inputs={}, outputs={}, batching=batching
    )
    stub = Stub()
    scheduler = make_scheduler(spec, [stub], ModelStatistics(), delay_until=3)
    for id in "abc":
        scheduler.submit(pending_request(id))
    scheduler.start()
    assert scheduler.drain(LIMIT_S)
    assert scheduler.close(LIMIT_S)
    return stub.batches


def test_dynamic_batching_executes_queued_requests_as_one_batch() -> None:
    assert executed_batches(batching(8)) == [["a", "b", "c"]]


def test_a_model_without_dynamic_batching_executes_each_request_alone() -> None:
    assert executed_batches(None) == [["a"], ["b"], ["c"]]
