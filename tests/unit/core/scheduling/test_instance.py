"""A model instance: one response per request, splitting of failed batches, statistics."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest

from tests.unit.core.scheduling.echo_instance import EchoInstance
from tests.unit.pending_requests import pending_request
from trident.core.backends.backend import BackendInstance, Execution
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, OutOfMemory, ServerError
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import CloseReason, InferenceRequest, InferenceTimes, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import BatchStatistics
from trident.core.observability.switches import SWITCHES
from trident.core.scheduling.execution import ShortExecutions
from trident.core.scheduling.instance import ModelInstance
from trident.core.scheduling.queue import deliver

SPEC = ModelSpec(name="m", version=3, platform="", backend="stub", max_batch_size=8, inputs={}, outputs={})


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
        self.instance = ModelInstance(
            backend,
            SPEC,
            self.statistics,
            deliver,
            deliver,
            ShortExecutions(SPEC),
            clock=lambda: next(ticks),
            on_poisoned=self.poisoned.append,
        )

    def requests(self, ids: str) -> list[PendingRequest]:
        return [pending_request(id, on_response=self.answers.append) for id in ids]

    def execute(self, ids: str) -> None:
        self.instance.execute(self.requests(ids))

    def outcome_error(self, id: str) -> ServerError:
        (error,) = [answer.error for answer in self.answers if answer.id == id]
        assert error is not None
        return error

    def outcomes(self) -> dict[str, str]:
        """The text of each request's output or error."""
        assert len({answer.id for answer in self.answers}) == len(self.answers)
        return {
            answer.id: answer.error.message if answer.error else answer.outputs[0].array[0] for answer in self.answers
        }


def test_each_request_gets_its_own_outputs() -> None:
    bench = Bench(EchoInstance())
    bench.execute("abc")
    assert bench.outcomes() == {"a": "a", "b": "b", "c": "c"}
    first = bench.answers[0]
    assert (first.model_name, first.model_version, first.final, first.error) == ("m", 3, True, None)
    counted = bench.statistics.snapshot()
    assert (counted.execution_count, counted.inference_count) == (1, 3)
    assert counted.batches == (
        BatchStatistics(
            batch_size=3, execution_count=1, compute_input_ns=10, compute_infer_ns=10, compute_output_ns=10
        ),
    )


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


def test_only_requests_that_ask_get_their_times_as_parameters() -> None:
    bench = Bench(EchoInstance())
    SWITCHES.set(timing=True)
    bench.execute("a")
    assert (bench.answers[0].times is None, bench.answers[0].parameters) == (False, None)


def test_an_error_of_one_request_fails_only_that_request() -> None:
    bench = Bench(EchoInstance())
    bench.execute("aeb")
    assert bench.backend.batches == ["aeb"]
    assert bench.outcomes() == {"a": "a", "e": "its own fault", "b": "b"}
    counted = bench.statistics.snapshot()
    assert counted.request_success == 2
    assert sum(counted.request_failures.values()) == 1
    assert counted.batches[0].batch_size == 3


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


def test_the_failure_of_a_part_is_not_chained_to_that_of_the_whole_batch() -> None:
    bench = Bench(EchoInstance(ValueError))
    bench.execute("ax")
    error = bench.outcome_error("x")
    assert isinstance(error.__cause__, ValueError)
    assert error.__cause__.__context__ is None


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
    assert isinstance(error.__cause__, ValueError)
    assert (error.message, error.model) == ("no such gather", "m")


def test_a_server_error_is_passed_on_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(EchoInstance(OutOfMemory))
    bench.execute("x")
    assert isinstance(bench.answers[0].error, OutOfMemory)
    assert not caplog.records


def test_a_batch_too_large_for_the_device_succeeds_in_parts() -> None:
    class Small(EchoInstance):
        def execute(self, requests: Sequence[InferenceRequest], batch_sizes: Sequence[int]) -> Execution:
            if len(requests) > 2:
                raise OutOfMemory("no memory for this")
            return super().execute(requests, batch_sizes)

    bench = Bench(Small())
    bench.execute("abcd")
    assert bench.outcomes() == {id: id for id in "abcd"}


def test_every_request_is_answered_if_the_backend_forgets_one() -> None:
    bench = Bench(Short())
    bench.execute("ab")
    assert bench.outcomes() == dict.fromkeys("ab", "the backend gave 0 outcomes for 1 requests")


def test_a_failing_callback_does_not_delay_the_other_responses(caplog: pytest.LogCaptureFixture) -> None:
    def on_response(response: InferenceResponse) -> None:
        raise RuntimeError("gone")

    bench = Bench(EchoInstance())
    requests = bench.requests("abc")
    requests[0].on_response = on_response
    bench.instance.execute(requests)
    assert bench.outcomes() == {"b": "b", "c": "c"}
    assert "gone" in caplog.text


def test_a_poisoned_instance_is_reported_once_and_not_retried() -> None:
    bench = Bench(EchoInstance(poison=True))
    bench.execute("axb")
    assert bench.backend.batches == ["axb"]
    assert bench.outcomes() == dict.fromkeys("axb", "no such gather")
    bench.execute("x")
    assert bench.poisoned == [bench.backend]
