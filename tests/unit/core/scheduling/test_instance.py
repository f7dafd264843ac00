"""A model instance: its thread's states, executions, answers, and how long executions take."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from tests.unit.bucket_configs import bucket_text
from tests.unit.core.scheduling.scheduler_bench import EchoInstance, LaterStub, model_spec, text
from tests.unit.onnx_models import identity
from tests.unit.onnx_serving import serving
from tests.unit.pending_requests import ignore, pending_request
from trident.core.backends.backend import BackendInstance, Execution
from trident.core.config.request_check import RequestValidator
from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.errors import BackendFailed, InvalidRequest, OutOfMemory
from trident.core.inference.pending_request import LATER, DeferredOutcome, PendingRequest, ResponseSender
from trident.core.inference.request import CloseReason, InferenceRequest, InferenceTimes, InputTensor
from trident.core.inference.response import InferenceResponse, Outputs
from trident.core.inference.tensors import BY_NAME
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import BucketStatistics
from trident.core.observability.switches import SWITCHES
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.inline_execution import ShortExecutions
from trident.core.scheduling.instance import ModelInstance
from trident.core.scheduling.run_once import run_once

SPEC = replace(model_spec(), version=3)


class Short(EchoInstance):
    """Returns one outcome too few."""

    def execute(self, requests: Sequence[InferenceRequest], batch_sizes: Sequence[int]) -> Execution:
        return Execution(super().execute(requests, batch_sizes).outputs[1:], 20, 30)


class Bench:
    """A model instance with its statistics and the responses that it sent."""

    def __init__(self, backend: EchoInstance) -> None:
        self.backend = backend
        self.statistics = ModelStatistics()
        self.answers: list[InferenceResponse] = []
        self.poisoned: list[BackendInstance] = []
        ticks = count(10, 30)
        context = SchedulingContext(SPEC, self.statistics, clock=lambda: next(ticks), on_poisoned=self.poisoned.append)
        self.instance = ModelInstance(context, backend)

    def requests(self, ids: str) -> list[PendingRequest]:
        return [pending_request(id, on_response=self.answers.append) for id in ids]

    def execute(self, ids: str) -> None:
        self.instance.execute(self.requests(ids))

    def outcomes(self) -> dict[str, str]:
        """The text of each request's output or error."""
        assert len({answer.id for answer in self.answers}) == len(self.answers)
        return {
            answer.id: answer.error.message if answer.error else answer.outputs[0].array[0].decode()
            for answer in self.answers
        }


@pytest.mark.parametrize(("access", "timing"), [("false", False), ("true", False), ("false", True)])
def test_responses_carry_the_times_of_their_execution_on_demand(access: str, timing: bool) -> None:
    bench = Bench(EchoInstance())
    SWITCHES.set(access=access, timing=timing)
    requests = bench.requests("ae")
    for pending in requests:
        pending.enqueue_ns = 3
        pending.request.parameters = {"timing": True}
    requests[0].batch_size = 4
    bench.instance.execute(requests, CloseReason.FULL)
    answers = {answer.id: answer for answer in bench.answers}
    assert answers["e"].times is None
    noted = InferenceTimes(7, 10, 10, 10, 5, CloseReason.FULL) if timing or access == "true" else None
    assert answers["a"].times == noted
    assert answers["a"].parameters == (noted.parameters() if noted and timing else None)


def test_a_failed_batch_is_split_so_that_only_the_culprit_fails(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(EchoInstance())
    bench.execute("abcxdfgh")
    assert bench.backend.batches == ["abcxdfgh", "abcx", "ab", "cx", "c", "x", "dfgh"]
    assert bench.outcomes() == {**{id: id for id in "abcdfgh"}, "x": "no such gather"}
    counted = bench.statistics.snapshot()
    assert [batch.batch_size for batch in counted.batches] == [1, 2, 4]
    assert (counted.execution_count, counted.inference_count) == (3, 7)
    assert sum(counted.request_failures.values()) == 1
    assert sum(record.exc_info is not None for record in caplog.records) == 1


@pytest.mark.parametrize("ids", ["a", "ax", "aebx", "x"])
def test_requests_of_a_failed_batch_are_freed_at_once(ids: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "trident.scheduling")  # captured records would refer to the exceptions
    bench = Bench(EchoInstance(OutOfMemory))
    requests = [pending_request(id) for id in ids]
    content = np.zeros(4, np.int32)
    requests[0].request.inputs = [InputTensor("IN", "INT32", (4,), content)]
    watched = weakref.ref(content)
    gc.collect()
    gc.disable()
    try:
        bench.instance.execute(requests)
        del content, requests
        assert watched() is None
    finally:
        gc.enable()


def test_an_unknown_exception_becomes_backend_failed() -> None:
    bench = Bench(EchoInstance(ValueError))
    bench.execute("x")
    error = bench.answers[0].error
    assert isinstance(error, BackendFailed)
    assert error.__cause__ is None, "its traceback was logged, and would be again"
    assert (error.message, error.model) == ("no such gather", "m")


def test_every_request_is_answered_if_the_backend_forgets_one() -> None:
    bench = Bench(Short())
    bench.execute("ab")
    assert bench.outcomes() == dict.fromkeys("ab", "the backend gave 0 outcomes for 1 requests")


def test_poisoned_instance_is_reported_once_and_not_retried() -> None:
    bench = Bench(EchoInstance(poison=True))
    bench.execute("axb")
    assert bench.backend.batches == ["axb"]
    assert bench.outcomes() == dict.fromkeys("axb", "no such gather")
    bench.execute("x")
    assert bench.poisoned == [bench.backend]


@pytest.mark.parametrize(("ids", "error"), [("ax", ValueError), ("ae", InvalidRequest)])
def test_run_once_raises_the_error_of_the_batch_or_of_a_request(ids: str, error: type[Exception]) -> None:
    requests = [InferenceRequest("m", [], id=id) for id in ids]
    with pytest.raises(error):
        run_once(EchoInstance(ValueError), requests, lambda request: (1, None))


def test_run_once_waits_for_requests_that_are_answered_later() -> None:
    def answer(request: InferenceRequest, sender: ResponseSender) -> Outputs | Exception | DeferredOutcome:
        def send() -> None:
            sender.send(text("first"))
            sender.send(text("second"))
            sender.send(None, final=True)

        if request.id == "now":
            return text("outcome")
        threading.Thread(target=send).start()
        return LATER

    requests = [InferenceRequest("m", [], id=id) for id in ("now", "later")]
    outputs = run_once(LaterStub(answer=answer), requests, lambda request: (1, None))
    assert [tensors[0].array[0] for tensors in outputs] == [b"outcome", b"first"]


def test_padding_is_counted_except_in_warmup(tmp_path: Path) -> None:
    statistics = ModelStatistics()
    with serving(identity(), bucket_text(BATCH_BUCKETS="4,8"), tmp_path) as model:
        request = model.request({"INPUT0": np.ones((3, 2), np.float32)})
        validator = RequestValidator(model.spec)
        run_once(model.instance, [request], validator.check)
        pending = PendingRequest(request, ignore)
        pending.batch_size = 3
        instance = ModelInstance(SchedulingContext(model.spec, statistics), model.instance)
        instance.execute([pending], CloseReason.FULL)
    (bucket,) = statistics.snapshot().buckets
    assert bucket == BucketStatistics(batch_size=4, length=0, execution_count=1, element_count=6, padding_count=2)


def short_spec(dims: tuple[int, ...], datatype: str = "FP32") -> ModelSpec:
    return replace(model_spec(), inputs={"IN": InputSpec(name="IN", datatype=BY_NAME[datatype], dims=dims)})


def short_batch(items: int = 1) -> list[PendingRequest]:
    tensor = InputTensor("IN", "FP32", (items, 3), np.zeros(3 * items, np.float32))
    return [PendingRequest(InferenceRequest("m", [tensor]), ignore)]


def test_long_inline_executions_pause_inline_execution() -> None:
    runs = ShortExecutions(short_spec((3, 4)))
    for _ in range(16):
        runs.note(short_batch(), 100_000, inline=False)
    runs.note(short_batch(), 900_000, inline=True)  # a single one may be due to another load on the machine
    assert runs.lasting
    inline = 0
    while runs.lasting:
        runs.note(short_batch(), 500_000, inline=True)
        inline += 1
    assert 1 < inline < 32
    waited = 0
    while not runs.lasting:
        runs.note(short_batch(), 500_000, inline=False)
        waited += 1
    assert waited > 500
