from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.project import pure_python_only
from tests.waiting import until
from trident.core.errors import BackendFailed, InvalidRequest
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InferenceTimes, InputTensor, RequestTrace
from trident.core.inference.response import InferenceResponse, OutputTensor, RegionInput, RegionReference
from trident.core.observability.tracing.settings import ExportOptions, TraceMode, TraceOptions, TraceSettings
from trident.core.observability.tracing.tracer import Tracer

AHEAD, BEHIND = [("HTTP_RECV_START", 1)], [("HTTP_SEND_END", 2)]
MODEL_EVENTS = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "INFER_RESPONSE_COMPLETE",
    "REQUEST_END",
]


class NestedRequest(PendingRequest):
    __slots__ = ()
    is_nested = True


class Traced:
    """A tracer, and the file that it writes."""

    def __init__(self, folder: Path, start: TraceSettings) -> None:
        self.path = folder / "trace.json"
        self.tracer = Tracer(TraceOptions(start=start, file=str(self.path)))
        self.responses: list[InferenceResponse] = []

    def begin(self, request: InferenceRequest | None = None, *, nested: bool = False) -> PendingRequest:
        kind = NestedRequest if nested else PendingRequest
        pending = kind(request or InferenceRequest("m", [], id="r"), self.responses.append)
        self.tracer.begin(pending, pending.request.model_name, 3)
        return pending

    def execute(self, pending: PendingRequest, error: BackendFailed | None = None) -> InferenceResponse:
        """Answer a request as a scheduler does."""
        response = InferenceResponse("m", 3, [], error=error)
        if pending.wants_times:
            pending.enqueue_ns = 1 << 62  # later than anything else
            response.times = None if error else InferenceTimes(10, 20, 30, 40, 1)
        pending.on_response(response)
        return self.responses[-1]

    def close(self) -> dict[int, list[dict[str, Any]]]:
        """The objects that were written, by the id of their trace."""
        self.tracer.close()
        found: dict[int, list[dict[str, Any]]] = {}
        for each in json.loads(self.path.read_text()) if self.path.exists() else ():
            found.setdefault(each["id"], []).append(each)
        return found


def events(objects: list[dict[str, Any]]) -> list[str]:
    return [each["timestamps"][0]["name"] for each in objects if "timestamps" in each]


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    found = Traced(tmp_path, TraceSettings(levels=("TIMESTAMPS",), rate=1))
    yield found
    found.tracer.close()


def test_a_request_is_traced_from_the_front_end_to_the_front_end(traced: Traced) -> None:
    response = traced.execute(traced.begin())
    assert response.trace == 1
    traced.tracer.answered(response.trace, AHEAD, BEHIND)
    objects = traced.close()[1]
    # Those of the execution lie far in the future here.
    assert sorted(events(objects)) == sorted(["HTTP_RECV_START", *MODEL_EVENTS, "HTTP_SEND_END"])
    assert objects[1] == {"id": 1, "model_name": "m", "model_version": 3, "request_id": "r"}
    times = {each["timestamps"][0]["name"]: each["timestamps"][0]["ns"] for each in objects if "timestamps" in each}
    start = times["QUEUE_START"]
    assert [times[name] - start for name in MODEL_EVENTS[2:6]] == [10, 30, 60, 100]


def test_a_request_that_failed_is_traced_without_an_execution(traced: Traced) -> None:
    traced.execute(traced.begin(), BackendFailed("no"))
    assert sorted(events(traced.close()[1])) == sorted(
        ["REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE", "REQUEST_END"]
    )


@pure_python_only
def test_requests_of_models_follow_the_request_that_led_to_them(traced: Traced) -> None:
    root = traced.begin()
    step = InferenceRequest("step", [])
    assert root.request.trace is not None
    step.trace = root.request.trace.child()
    inner = traced.begin(step, nested=True)
    assert inner.request.trace is not None
    deeper = InferenceRequest("deeper", [])
    deeper.trace = inner.request.trace.child()
    assert traced.execute(traced.begin(deeper, nested=True)).trace == 0
    traced.begin(nested=True)  # of a request that nobody traces
    traced.execute(inner)
    traced.execute(root)
    found = traced.close()
    headers = {
        each["id"]: each.get("parent_id") for objects in found.values() for each in objects if "model_name" in each
    }
    assert headers == {1: None, 2: 1, 3: 2}


def test_a_request_that_is_submitted_again_is_traced_once(traced: Traced) -> None:
    pending = traced.begin()
    traced.tracer.begin(pending, "m", 4)
    traced.execute(pending)
    assert list(traced.close()) == [1]


def test_nothing_is_noted_while_the_level_is_off(tmp_path: Path) -> None:
    traced = Traced(tmp_path, TraceSettings(rate=1))
    assert not traced.tracer.gate.is_open
    pending = traced.begin()
    assert (pending.request.trace, pending.wants_times) == (None, False)
    assert traced.execute(pending).trace == 0
    traced.tracer.change("m", {"trace_level": ("TIMESTAMPS",)})
    assert traced.tracer.gate.is_open
    assert traced.execute(traced.begin()).trace == 1
    assert traced.execute(traced.begin(InferenceRequest("other", []))).trace == 0
    assert list(traced.close()) == [1]


def test_the_gate_stays_open_for_what_is_in_flight(traced: Traced) -> None:
    pending = traced.begin()
    traced.tracer.change("", {"trace_level": ()})
    assert traced.tracer.gate.is_open
    assert traced.execute(traced.begin()).trace == 0
    traced.tracer.answered(traced.execute(pending).trace, AHEAD, BEHIND)
    assert not traced.tracer.gate.is_open
    assert list(traced.close()) == [1]


def test_the_count_goes_down_and_a_change_begins_anew(traced: Traced) -> None:
    traced.tracer.change("", {"trace_count": 2})
    assert [bool(traced.execute(traced.begin()).trace) for _ in range(3)] == [True, True, False]
    assert traced.tracer.settings()["trace_count"] == "0"
    traced.tracer.change("m", {"trace_rate": 2})
    assert (traced.tracer.settings("m")["trace_count"], traced.tracer.settings("m")["trace_rate"]) == ("2", "2")
    assert [bool(traced.execute(traced.begin()).trace) for _ in range(4)] == [False, True, False, True]
    traced.tracer.close()
    assert {path.name for path in traced.path.parent.iterdir()} == {"trace.json.0", "trace.json.1"}


def test_the_file_of_a_count_is_there_when_the_count_has_reached_0(traced: Traced) -> None:
    traced.tracer.change("", {"trace_count": 2})
    for _ in range(2):
        traced.tracer.answered(traced.execute(traced.begin()).trace, AHEAD, BEHIND)
    until(lambda: (traced.path.parent / "trace.json.0").exists())


def test_the_traces_of_a_replaced_setting_are_written_when_the_last_has_ended(traced: Traced) -> None:
    traced.tracer.change("", {"trace_count": 10})
    first, second = traced.begin(), traced.begin()
    traced.tracer.answered(traced.execute(first).trace, AHEAD, BEHIND)
    traced.tracer.change("", {"trace_count": None})
    traced.tracer.answered(traced.execute(second).trace, AHEAD, BEHIND)
    assert list(traced.close()) == [1, 2]


def test_settings_are_shown_as_triton_shows_them(traced: Traced) -> None:
    assert json.dumps(traced.tracer.settings(), separators=(",", ":")) == (
        '{"trace_level":["TIMESTAMPS"],"trace_rate":"1","trace_count":"-1","log_frequency":"0",'
        f'"trace_file":"{traced.path}","trace_mode":"triton"}}'
    )
    with pytest.raises(InvalidRequest):
        traced.tracer.change("", {"trace_rate": 0})


def test_events_of_an_unknown_trace_are_passed_over(traced: Traced) -> None:
    traced.tracer.answered(77, AHEAD, BEHIND)
    assert traced.close() == {}


def spanning(levels: tuple[str, ...] = ("TIMESTAMPS",), rate: int = 0) -> Tracer:
    """A tracer in the mode opentelemetry, whose collector does not exist."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    export = ExportOptions(url="http://127.0.0.1:9/v1/traces", delay_ms=60_000)
    start = TraceSettings(levels=levels, rate=rate, count=0)
    return Tracer(TraceOptions(mode=TraceMode.OPENTELEMETRY, start=start, export=export))


def client_request(traceparent: str) -> PendingRequest:
    request = InferenceRequest("m", [])
    request.trace = RequestTrace(traceparent=traceparent, tracestate="a=b")
    return PendingRequest(request, lambda response: None)


def test_the_trace_of_a_client_is_followed_whatever_rate_and_count_say() -> None:
    tracer = spanning()
    try:
        assert tracer.gate.reads_context
        pending = client_request(f"00-{7:032x}-{8:016x}-00")
        tracer.begin(pending, "m", 1)
        trace = pending.request.trace
        assert trace is not None
        assert (trace.has_begun, trace.tracestate) == (True, "a=b")
        assert trace.traceparent.startswith(f"00-{7:032x}-")
        assert json.loads(trace.context_json() or "") == {"traceparent": trace.traceparent, "tracestate": "a=b"}
        assert tracer.settings()["trace_count"] == "0"
        other = client_request("00-1-2-3")
        tracer.begin(other, "m", 1)
        assert other.request.trace is not None
        assert not other.request.trace.has_begun
        tracer.change("", {"trace_rate": 1, "trace_level": ()})
        assert not tracer.gate.reads_context
    finally:
        tracer.close()


def test_opentelemetry_has_no_tensors(caplog: pytest.LogCaptureFixture) -> None:
    tracer = spanning(rate=1)
    try:
        tracer.change("", {"trace_level": ("TENSORS",), "trace_count": -1})
        assert "TENSORS is not supported" in caplog.text
        assert tracer.settings()["trace_level"] == ["TENSORS"]
        assert not tracer.gate.is_open
        tracer.change("", {"trace_level": ("TIMESTAMPS", "TENSORS")})
        assert tracer.gate.is_open
    finally:
        tracer.close()


def test_tensors_are_kept_as_they_were(tmp_path: Path) -> None:
    traced = Traced(tmp_path, TraceSettings(levels=("TENSORS",), rate=1))
    array = np.array([1, 2], np.int32)
    inputs = [
        InputTensor("IN", "INT32", (2,), memoryview(array.tobytes())),
        InputTensor("LONG", "UINT8", (3 << 20,), memoryview(bytes(3 << 20))),
        RegionInput("ELSEWHERE", "INT32", (2,), RegionReference("r", 0, 8)),
    ]
    pending = traced.begin(InferenceRequest("m", inputs))
    pending.on_response(InferenceResponse("m", 3, [OutputTensor("OUT", "INT32", (2,), array)]))
    array[:] = 9
    objects = traced.close()[1]
    found = {each["tensor"]["name"]: (each["activity"], each["tensor"]["data"]) for each in objects}
    assert found["IN"] == ("TENSOR_QUEUE_INPUT", "1,2")
    assert found["OUT"] == ("TENSOR_BACKEND_OUTPUT", "1,2")
    assert len(found["LONG"][1].split(",")) == 1 << 20
    assert "ELSEWHERE" not in found
