"""Spans of requests, as a collector receives them over OTLP, in both shapes.

Source: docs/spec/trace-and-log.md section 4.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.python.python_models import write_model
from tests.contract.servers.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

IN = 'input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ] '
ONE = IN + 'output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]'
TEXT = IN + 'output [ { name: "OUT" data_type: TYPE_STRING dims: [ 2 ] } ]'
SAME = """
def execute(self, requests):
    tensors = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor)]) for tensor in tensors]
"""
ASK = """
def execute(self, requests):
    responses = []
    for request in requests:
        asked = pb_utils.InferenceRequest(
            model_name="pipeline",
            requested_output_names=["OUT"],
            inputs=[pb_utils.get_input_tensor_by_name(request, "IN")],
            trace=request.trace(),
        )
        asked.exec()
        untraced = pb_utils.InferenceRequest(
            model_name="same", requested_output_names=["OUT"], inputs=[pb_utils.get_input_tensor_by_name(request, "IN")]
        ).exec()
        found = [[str(request.trace().get_context()), str(untraced.has_error())]]
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(found, dtype=object))]))
    return responses
"""
SPAN = "b7ad6b7169203331"
Traced = tuple[ServerProcess, OtlpReceiver]
FIXED = ("--trace-config=mode=opentelemetry", "--trace-config=level=TIMESTAMPS", "--shutdown-grace-secs=0")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "same", SAME, ONE)
    write_model(folder, "ask", ASK, TEXT)
    tensor = ("IN", "TYPE_INT32", (1,)), ("OUT", "TYPE_INT32", (1,))
    write_ensemble(folder, "pipeline", tensor[:1], tensor[1:], [step("same", {"IN": "IN"}, {"OUT": "OUT"})])
    return folder


@pytest.fixture(scope="module", params=["one-process", "front-ends"])
def traced(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Traced]:
    options = [
        f"--http-workers={2 if request.param == 'front-ends' else 0}",
        "--trace-config=rate=0",
        "--trace-config=opentelemetry,resource=deployment.environment=test",
        "--trace-config=opentelemetry,bsp_schedule_delay=50",
    ]
    with OtlpReceiver() as receiver:
        options.append(f"--trace-config=opentelemetry,url={receiver.url}")
        with ServerProcess(repository, tmp_path_factory.mktemp("log") / "log", *FIXED, *options) as server:
            yield server, receiver


def infer(server: ServerProcess, model: str, *, grpc: bool = False, **arguments: Any) -> Any:
    library: Any = tritonclient.grpc if grpc else tritonclient.http
    tensor = library.InferInput("IN", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.int32))
    with library.InferenceServerClient(f"{HOST}:{server.grpc_port}" if grpc else server.address) as client:
        return client.infer(model, [tensor], **arguments).as_numpy("OUT")


def context(number: int) -> tuple[str, dict[str, str]]:
    """The number of a client's trace, and the headers that name it."""
    trace = f"{number:032x}"
    return trace, {"traceparent": f"00-{trace}-{SPAN}-01", "tracestate": "vendor=1"}


def spans_of(receiver: OtlpReceiver, trace: str, count: int) -> list[ReceivedSpan]:
    """The spans of a trace, parents before their children."""
    until(lambda: len([span for span in receiver.spans if span.trace == trace]) >= count, "spans are missing")
    found = [span for span in receiver.spans if span.trace == trace]
    assert len(found) == count
    return found


def tree(spans: list[ReceivedSpan], parent: str = SPAN) -> list[Any]:
    """The names of the spans below a span, each with those below it."""
    return [[span.name, *tree(spans, span.number)] for span in spans if span.parent == parent]


@pytest.mark.parametrize("grpc", [False, True], ids=["http", "grpc"])
def test_model_has_three_spans_below_the_clients(traced: Traced, grpc: bool) -> None:
    server, receiver = traced
    trace, headers = context(2 if grpc else 1)
    before_ns = time.time_ns()
    infer(server, "same", grpc=grpc, headers=headers, request_id="r")
    after_ns = time.time_ns()
    root, model, compute = spans = spans_of(receiver, trace, 3)
    assert tree(spans) == [["InferRequest", ["same", ["compute"]]]]
    ends = ("GRPC_WAITREAD", "GRPC_SEND") if grpc else ("HTTP_RECV", "HTTP_SEND")
    front_end = [f"{name}_{end}" for name in ends for end in ("START", "END")]
    assert list(root.times) == [*front_end[:2], "INFER_RESPONSE_COMPLETE", *front_end[2:]]
    assert list(model.times) == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert list(compute.times) == ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
    assert model.attributes.pop("triton.trace_id") > 0
    assert model.attributes == {
        "triton.model_name": "same",
        "triton.model_version": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "r",
    }
    assert root.attributes == compute.attributes == {}
    for span in spans:
        assert (span.kind, span.state, span.scope) == (2, "vendor=1", "triton-server")
        assert before_ns <= span.start_ns <= span.end_ns <= after_ns + 10**9
        assert span.resource["deployment.environment"] == "test"
        assert span.resource["service.name"] == "triton-inference-server"
    assert root.start_ns <= model.start_ns <= compute.start_ns <= compute.end_ns <= model.end_ns <= root.end_ns


def test_steps_and_the_requests_of_models_belong_to_the_trace(traced: Traced) -> None:
    server, receiver = traced
    trace, headers = context(3)
    infer(server, "pipeline", headers=headers)
    assert tree(spans_of(receiver, trace, 4)) == [["InferRequest", ["pipeline", ["same", ["compute"]]]]]
    trace, headers = context(4)
    ((found, failed),) = infer(server, "ask", headers=headers)
    spans = spans_of(receiver, trace, 6)
    (root,) = tree(spans)
    assert root[1][0] == "ask"
    assert sorted(root[1][1:]) == [["compute"], ["pipeline", ["same", ["compute"]]]]
    asked = next(span for span in spans if span.name == "ask")
    assert json.loads(found) == {"traceparent": f"00-{trace}-{asked.number}-01", "tracestate": "vendor=1"}
    assert failed == b"False"
    pipeline = next(span for span in spans if span.name == "pipeline")
    assert pipeline.attributes["triton.trace_parent_id"] == asked.attributes["triton.trace_id"]


def test_rate_0_starts_no_traces_and_invalid_contexts_are_ignored(
    traced: Traced,
) -> None:
    server, receiver = traced
    settings = server.json("GET", "/v2/trace/setting")
    assert (settings["trace_rate"], settings["trace_mode"], settings["url"]) == ("0", "opentelemetry", receiver.url)
    assert not {"trace_file", "log_frequency"} & set(settings)
    before = len(receiver.spans)
    infer(server, "same")
    for text in ("", "00-1-2-3", f"00-{'0' * 32}-{SPAN}-01", "x" * 2000):
        infer(server, "same", headers={"traceparent": text})
    trace, headers = context(5)
    infer(server, "same", headers=headers)
    spans_of(receiver, trace, 3)
    assert len(receiver.spans) == before + 3


def test_slow_or_failing_collector_delays_no_request_and_lost_spans_are_counted(
    repository: Path, tmp_path: Path
) -> None:
    with OtlpReceiver(hold=True) as receiver:
        options = [
            "--http-workers=0",
            "--trace-config=rate=1",
            "--trace-config=opentelemetry,bsp_schedule_delay=50",
            "--trace-config=opentelemetry,bsp_max_queue_size=6",
            f"--trace-config=opentelemetry,url={receiver.url}",
        ]
        with ServerProcess(repository, tmp_path / "log", *FIXED, *options) as server:
            infer(server, "same")
            until(lambda: receiver.requests == 1, "nothing was sent")
            # The collector holds the first batch, and the queue has room for two requests.
            for _ in range(6):
                infer(server, "same")
            until(lambda: lost(server, "queue_full") == 12, "what did not fit was not counted")
            receiver.status = 400
            receiver.release()
            until(lambda: lost(server, "not_written") == 9, "what was refused was not counted")
            until(lambda: "spans cannot be sent" in server.log_text(), "what was refused was not logged")
            assert server.log_text().count("spans cannot be sent") == 1
            receiver.status = 200
            infer(server, "same")
            until(lambda: len(receiver.spans) == 3, "the spans after it are missing")
            assert server.stop() == 0
    until(lambda: "spans are sent" in server.log_text())


def lost(server: ServerProcess, reason: str) -> int:
    _, _, page = server.request("GET", "/metrics", port=server.metrics_port)
    for line in page.decode().splitlines():
        if line.startswith(f'trident_trace_lost_total{{reason="{reason}"}}'):
            return int(float(line.split()[-1]))
    return -1
