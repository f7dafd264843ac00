"""Traces of requests over HTTP and gRPC: Triton's files, in both shapes.

Source: docs/spec/trace-and-log.md sections 1 to 3.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.waiting import until

COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
MODEL = ["REQUEST_START", "QUEUE_START", *COMPUTE, "INFER_RESPONSE_COMPLETE", "REQUEST_END"]
HTTP = ["HTTP_RECV_START", "HTTP_RECV_END", *MODEL, "HTTP_SEND_START", "HTTP_SEND_END"]
GRPC = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", *MODEL, "GRPC_SEND_START", "GRPC_SEND_END"]


@pytest.fixture(params=["one-process", "front-ends"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    workers = 2 if request.param == "front-ends" else 0
    options = [
        f"--http-workers={workers}",
        f"--trace-config=triton,file={tmp_path / 'trace'}",
        "--shutdown-grace-secs=0",
    ]
    with ServerProcess(link_models(tmp_path / "models", "simple"), tmp_path / "log", *options) as found:
        yield found


def infer(server: ServerProcess, id: str, *, grpc: bool = False, inputs: int = 2) -> None:
    library: Any = tritonclient.grpc if grpc else tritonclient.http
    address = f"{HOST}:{server.grpc_port}" if grpc else server.address
    tensors = [library.InferInput(f"INPUT{number}", [1, 16], "INT32") for number in range(inputs)]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
    with library.InferenceServerClient(address) as client:
        client.infer("simple", tensors, request_id=id)


def stream(server: ServerProcess, id: str) -> None:
    ended: list[Any] = []
    tensors = [tritonclient.grpc.InferInput(f"INPUT{number}", [1, 16], "INT32") for number in range(2)]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: ended.append(error))
        client.async_stream_infer("simple", tensors, request_id=id)
        until(lambda: ended == [None], "no answer on the stream")
        client.stop_stream()


def change(server: ServerProcess, path: str = "/v2/trace/setting", **settings: Any) -> Any:
    return server.json("POST", path, settings)


def traces(path: Path) -> dict[str, list[str]]:
    """The events of the traces in a file, by the ids of their requests, as soon as it is written."""

    def whole() -> Any:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return json.loads(path.read_text())
        return None

    found: dict[str, list[str]] = {}
    names = {}
    objects = until(whole, "no whole file")
    for each in objects:
        if "model_name" in each:
            names[each["id"]] = each["request_id"]
    for each in objects:
        for event in each.get("timestamps", ()):
            found.setdefault(names[each["id"]], []).append(event["name"])
    return found


def test_requests_of_every_kind_are_traced_from_front_end_to_front_end(server: ServerProcess, tmp_path: Path) -> None:
    infer(server, "before")
    shown = change(server, trace_level=["TIMESTAMPS"], trace_rate="1", log_frequency="3")
    assert (shown["trace_level"], shown["trace_rate"], shown["trace_mode"]) == (["TIMESTAMPS"], "1", "triton")
    assert "trace" in server.json("GET", "/v2")["extensions"]
    infer(server, "http")
    infer(server, "grpc", grpc=True)
    stream(server, "stream")
    assert traces(tmp_path / "trace.0") == {"http": HTTP, "grpc": GRPC, "stream": GRPC}
    with pytest.raises(tritonclient.http.InferenceServerException):
        infer(server, "refused", inputs=1)
    assert server.stop() == 0
    refused = [name for name in HTTP if name not in (*COMPUTE, "QUEUE_START")]
    assert traces(tmp_path / "trace.1") == {"refused": refused}


def test_trace_count_is_per_model_and_shared_by_front_ends(server: ServerProcess, tmp_path: Path) -> None:
    path = "/v2/models/simple/trace/setting"
    change(server, path, trace_level=["TIMESTAMPS"], trace_rate="2", trace_count="5")
    for number in range(16):
        infer(server, f"r{number}", grpc=number % 2 == 0)
    assert len(traces(tmp_path / "trace.0")) == 5
    assert server.json("GET", path)["trace_count"] == "0"
    assert server.json("GET", "/v2/trace/setting")["trace_count"] == "-1"
    cleared = change(server, path, trace_level=None, trace_rate=None, trace_count=None)
    assert cleared == server.json("GET", "/v2/trace/setting")
