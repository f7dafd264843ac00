"""Traces: sampling, settings, contexts, files and spans."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.waiting import until
from trident.core.errors import BackendFailed, InvalidRequest
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InferenceTimes, InputTensor
from trident.core.inference.response import InferenceResponse, OutputTensor, RegionInput, RegionReference
from trident.core.inference.tensors import pack_bytes
from trident.core.observability.tracing.opentelemetry import spans_of
from trident.core.observability.tracing.trace import (
    ExportOptions,
    Loss,
    Setting,
    Trace,
    TraceCounts,
    TracedTensor,
    TraceMode,
    TraceOptions,
    TraceSettings,
    TraceSpanContext,
    TraceTable,
    parse_traceparent,
    traceparent_of,
)
from trident.core.observability.tracing.tracer import TraceFiles, Tracer, trace_text

TIMES = ("TIMESTAMPS",)


def setting_of(levels: tuple[str, ...] = TIMES, *, rate: int = 1, count: int = -1, frequency: int = 0) -> Setting:
    return Setting(TraceSettings(levels=levels, rate=rate, count=count, frequency=frequency))


def trace_of(number: int, setting: Setting, *, model: str = "m", request_id: str = "") -> Trace:
    trace = Trace(number, model, 1, request_id, 10, setting)
    trace.events = [("REQUEST_START", 10), ("REQUEST_END", 20)]
    return trace


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


def test_a_request_that_is_submitted_again_is_traced_once(traced: Traced) -> None:
    pending = traced.begin()
    traced.tracer.begin(pending, "m", 4)
    traced.execute(pending)
    assert list(traced.close()) == [1]


def test_requests_are_not_traced_while_the_level_is_off(tmp_path: Path) -> None:
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


def test_trace_gate_stays_open_for_requests_in_flight(traced: Traced) -> None:
    pending = traced.begin()
    traced.tracer.change("", {"trace_level": ()})
    assert traced.tracer.gate.is_open
    assert traced.execute(traced.begin()).trace == 0
    traced.tracer.answered(traced.execute(pending).trace, AHEAD, BEHIND)
    assert not traced.tracer.gate.is_open
    assert list(traced.close()) == [1]


def test_trace_count_decreases_and_restarts_after_a_change(traced: Traced) -> None:
    traced.tracer.change("", {"trace_count": 2})
    assert [bool(traced.execute(traced.begin()).trace) for _ in range(3)] == [True, True, False]
    assert traced.tracer.settings()["trace_count"] == "0"
    traced.tracer.change("m", {"trace_rate": 2})
    assert (traced.tracer.settings("m")["trace_count"], traced.tracer.settings("m")["trace_rate"]) == ("2", "2")
    assert [bool(traced.execute(traced.begin()).trace) for _ in range(4)] == [False, True, False, True]
    traced.tracer.close()
    assert {path.name for path in traced.path.parent.iterdir()} == {"trace.json.0", "trace.json.1"}


def test_counted_trace_file_is_complete_when_the_count_reaches_0(traced: Traced) -> None:
    traced.tracer.change("", {"trace_count": 2})
    for _ in range(2):
        traced.tracer.answered(traced.execute(traced.begin()).trace, AHEAD, BEHIND)
    until(lambda: (traced.path.parent / "trace.json.0").exists())


def test_replaced_trace_setting_writes_its_traces_when_all_have_ended(traced: Traced) -> None:
    traced.tracer.change("", {"trace_count": 10})
    first, second = traced.begin(), traced.begin()
    traced.tracer.answered(traced.execute(first).trace, AHEAD, BEHIND)
    traced.tracer.change("", {"trace_count": None})
    traced.tracer.answered(traced.execute(second).trace, AHEAD, BEHIND)
    assert list(traced.close()) == [1, 2]


def test_events_of_an_unknown_trace_are_ignored(traced: Traced) -> None:
    traced.tracer.answered(77, AHEAD, BEHIND)
    assert traced.close() == {}


def spanning(levels: tuple[str, ...] = ("TIMESTAMPS",), rate: int = 0) -> Tracer:
    """A tracer in the mode opentelemetry, whose collector does not exist."""
    export = ExportOptions(url="http://127.0.0.1:9/v1/traces", delay_ms=60_000)
    start = TraceSettings(levels=levels, rate=rate, count=0)
    return Tracer(TraceOptions(mode=TraceMode.OPENTELEMETRY, start=start, export=export))


def test_opentelemetry_omits_tensors(caplog: pytest.LogCaptureFixture) -> None:
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


def test_traced_tensors_are_copied(tmp_path: Path) -> None:
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


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_traceparent_is_written_and_later_versions_are_read() -> None:
    text = traceparent_of(int(TRACE, 16), int(SPAN, 16))
    assert text == f"00-{TRACE}-{SPAN}-01"
    assert parse_traceparent(text) == (int(TRACE, 16), int(SPAN, 16))
    assert parse_traceparent(traceparent_of(1, 2)) == (1, 2)
    assert parse_traceparent(f" 01-{TRACE}-{SPAN}-00-what-else ") == (int(TRACE, 16), int(SPAN, 16))


START = TraceSettings(levels=(), rate=1000, count=-1, frequency=0)


def table(start: TraceSettings = START, *, has_destination: bool = True) -> TraceTable:
    return TraceTable(start, has_destination=has_destination)


@pytest.mark.parametrize(
    ("changes", "server", "model"),
    [
        ([], START, START),
        ([("", {"trace_rate": 5})], TraceSettings(rate=5), TraceSettings(rate=5)),
        ([("m", {"trace_rate": 5})], START, TraceSettings(rate=5)),
        # What a model has of its own stays, the rest follows the server.
        (
            [("m", {"trace_rate": 5}), ("", {"trace_rate": 7, "trace_count": 9})],
            TraceSettings(rate=7, count=9),
            TraceSettings(rate=5, count=9),
        ),
        ([("m", {"trace_level": TIMES}), ("m", {"trace_level": None})], START, START),
        (
            [
                ("", {"trace_level": TIMES}),
                ("m", {"trace_level": (), "trace_rate": 1}),
                ("m", {"trace_level": None}),
            ],
            TraceSettings(levels=TIMES),
            TraceSettings(levels=TIMES, rate=1),
        ),
        ([("", {"log_frequency": 2}), ("", {"log_frequency": None})], START, START),
        ([("", {"trace_rate": 0}), ("m", {"trace_count": 0})], TraceSettings(rate=0), TraceSettings(rate=0, count=0)),
    ],
)
def test_model_inherits_trace_settings_of_the_server(
    changes: list[tuple[str, dict[str, Any]]], server: TraceSettings, model: TraceSettings
) -> None:
    settings = table()
    for name, values in changes:
        settings.change(name, values)
    assert settings.of() == settings.of("other") == server
    assert settings.of("m") == model


@pytest.mark.parametrize(
    ("model", "changes"),
    [("", {"trace_level": TIMES, "trace_rate": 0}), ("m", {"trace_rate": 0}), ("", {"trace_rate": 0})],
)
def test_useless_trace_settings_are_refused_without_changes(model: str, changes: dict[str, Any]) -> None:
    settings = table()
    settings.change("m", {"trace_level": TIMES})
    with pytest.raises(
        InvalidRequest, match=r"^Attempting to set invalid trace setting :sample rate must be non-zero$"
    ):
        settings.change(model, changes)
    assert settings.of() == START
    assert settings.of("m") == TraceSettings(levels=TIMES)


def test_tracing_without_a_file_is_refused() -> None:
    settings = table(has_destination=False)
    with pytest.raises(InvalidRequest, match="trace file name is not given"):
        settings.change("", {"trace_level": TIMES})
    settings.change("", {"trace_rate": 0})


def numbers(path: Path) -> list[int]:
    """The ids of the traces in a file, each once."""
    return list(dict.fromkeys(each["id"] for each in json.loads(path.read_text())))


def written(files: TraceFiles, setting: Setting, *ids: int) -> None:
    for number in ids:
        setting.sample()
        files.write([trace_of(number, setting)])


def test_trace_files_are_numbered_across_settings(tmp_path: Path) -> None:
    files = TraceFiles(str(tmp_path / "t"), TraceCounts())
    pairs, triples = setting_of(frequency=2), setting_of(frequency=3)
    written(files, pairs, 1, 2, 3)
    written(files, triples, 4, 5, 6)
    files.finish(pairs)
    files.close()
    found = {path.name: numbers(path) for path in tmp_path.iterdir()}
    assert found == {"t.0": [1, 2], "t.1": [4, 5, 6], "t.2": [3]}


def test_trace_writer_recovers_after_write_errors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    counts = TraceCounts()
    folder = tmp_path / "later"
    files = TraceFiles(str(folder / "t"), counts)
    setting, numbered = setting_of(), setting_of(frequency=1)
    written(files, setting, 1, 2)
    written(files, numbered, 3)
    assert counts.metrics().lost[Loss.NOT_WRITTEN] == 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "No such file or directory" in caplog.text
    folder.mkdir()
    written(files, setting, 4)
    written(files, numbered, 5)
    files.close()
    assert (numbers(folder / "t"), numbers(folder / "t.0")) == ([4], [5])
    assert (counts.metrics().written, len(caplog.records)) == (2, 2)


def test_trace_file_is_repaired_after_a_partial_write(tmp_path: Path) -> None:
    counts = TraceCounts()
    files = TraceFiles(str(tmp_path / "t"), counts)
    setting = setting_of()
    written(files, setting, 1)
    room = (tmp_path / "t").stat().st_size + 50
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        written(files, setting, 2)
        assert (tmp_path / "t").stat().st_size == room
        written(files, setting_of(frequency=1), *range(3, 6))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    written(files, setting, 6)
    files.close()
    assert numbers(tmp_path / "t") == [1, 6]
    assert (counts.metrics().written, counts.metrics().lost[Loss.NOT_WRITTEN]) == (5, 1)


def objects(trace: Trace, levels: tuple[str, ...] = TIMES) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(f"[{trace_text(trace, levels)}]")
    return found


@pytest.mark.parametrize(
    ("datatype", "content", "data"),
    [
        ("BOOL", b"\1\0", "1,0"),
        ("INT64", np.array([-1, 2**62]).tobytes(), "-1,4611686018427387904"),
        ("FP32", np.array([0.5, 3, 1e10], "<f4").tobytes(), "0.5,3,1e+10"),
        ("UINT8", b"a\xff", "a,\xff"),
        ("FP16", b"\0\0", ""),
        ("BF16", b"\0\0", ""),
        ("BYTES", pack_bytes([b"a", b"", b'"']), '"a","","""'),
        # Shortened contents: only whole elements are shown.
        ("INT32", b"\1\0\0\0\2\0", "1"),
        ("BYTES", pack_bytes([b"abc", b"defg"])[:-1], '"abc"'),
        ("BYTES", pack_bytes([b"abc"]) + b"\1\0", '"abc"'),
    ],
)
def test_traced_tensor_elements_are_formatted_as_in_triton(datatype: str, content: bytes, data: str) -> None:
    trace = trace_of(1, setting_of())
    trace.tensors.append(TracedTensor("TENSOR_BACKEND_OUTPUT", "OUT", datatype, (2,), content))
    assert objects(trace, ("TENSORS",))[0]["tensor"]["data"] == data


def test_failed_request_has_no_compute_span() -> None:
    root = trace_of(1, setting_of())
    root.context, root.span = TraceSpanContext(trace=1, root_span=10, parent_span=9, state=""), 11
    spans = list(spans_of(root))
    found = [(span.name, span.context.span_id, span.parent and span.parent.span_id) for span in spans]
    assert found == [("InferRequest", 10, 9), ("m", 11, 10)]
    # Without a front end the request lasts as long as its model.
    assert (spans[0].start_time, spans[0].end_time, spans[0].events) == (10, 20, ())
