from __future__ import annotations

import numpy as np

from tests.unit.pending_requests import ignore
from trident.core.config.spec import BatchingSpec, InputSpec, ModelSpec
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.tensors import BY_NAME
from trident.core.scheduling.execution import ShortExecutions


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


def test_executions_count_as_short_after_sixteen_short_ones_in_a_row() -> None:
    runs = ShortExecutions(spec((3, 4)))
    for _ in range(15):
        runs.note(batch(), 100_000, inline=False)
    assert not runs.lasting
    runs.note(batch(), 100_000, inline=False)
    assert runs.lasting
    assert runs.expected(batch())
    runs.note(batch(), 2_000_000, inline=False)
    assert not runs.lasting


def test_a_batch_of_many_requests_may_take_longer() -> None:
    runs = ShortExecutions(spec((3, 4)))
    for _ in range(16):
        runs.note(batch() * 64, 2_000_000, inline=False)
    assert runs.lasting


def test_a_batch_with_more_than_twice_the_measured_input_is_not_expected_to_be_short() -> None:
    runs = ShortExecutions(spec((3, 4)))
    for _ in range(16):
        runs.note(batch(4), 100_000, inline=False)
    assert [runs.expected(batch(items)) for items in (1, 8, 9)] == [True, True, False]
    runs.note(batch(8), 100_000, inline=False)
    assert runs.expected(batch(9))


def test_inline_executions_that_compute_long_pause_inline_execution() -> None:
    runs = ShortExecutions(spec((3, 4)))
    for _ in range(16):
        runs.note(batch(), 100_000, inline=False)
    runs.note(batch(), 900_000, inline=True)  # a single one may be due to another load on the machine
    assert runs.lasting
    inline = 0
    while runs.lasting:
        runs.note(batch(), 500_000, inline=True)
        inline += 1
    assert 1 < inline < 32
    waited = 0
    while not runs.lasting:
        runs.note(batch(), 500_000, inline=False)
        waited += 1
    assert waited > 500


def test_inline_executions_that_compute_briefly_stay_inline() -> None:
    runs = ShortExecutions(spec((3, 4)))
    for _ in range(16):
        runs.note(batch() * 16, 600_000, inline=False)
    for _ in range(1000):
        runs.note(batch() * 16, 300_000, inline=True)
    assert runs.lasting


def test_executions_with_strings_never_count_as_short() -> None:
    runs = ShortExecutions(spec((3,), datatype="BYTES"))
    for _ in range(100):
        runs.note(batch(), 1, inline=False)
    assert not runs.lasting
