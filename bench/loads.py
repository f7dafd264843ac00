"""Loads: each function returns a function that opens one load on a server, whose answer is checked first."""

from __future__ import annotations

import http.client
import json
import os
import re
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc as grpcio
import numpy as np
import onnxruntime
import tritonclient.http as triton
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as services

from bench.cases import LENGTH, SEED, Case
from bench.clients import GRPC_SERVICE, Load
from bench.models.repositories import FEATURES, SEQUENCES, TABULAR
from bench.runner import Ask, NotServed
from bench.servers.server import JSON_HEADERS, PREDICT, Server
from tests.contract.servers.ports import HOST
from trident.core.shared_memory import DIRECTORY

LIMIT_S = 60.0
RELATIVE_TOLERANCE = 1e-3
ABSOLUTE_TOLERANCE = 1e-5
# Repeated here instead of imported: a client knows them from the specification.
SAGEMAKER_BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="
VERTEX_BINARY = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
_HEADER_SIZE = re.compile(r"json-header-size=(\d+)")


def infer(
    case: Case, *, model: str = "", port: str = "http", path: str = "", binary: str = "", checked: bool = True
) -> Ask:
    """The case's request for `model`, which computes what the case's own does; over HTTP, or at a platform's port.

    `binary` is the start of the platform's content type for binary tensors. The answer is compared with that of a
    session of the case's graph.
    """

    @contextmanager
    def opened(server: Server) -> Iterator[Load]:
        body, headers = case.body()
        if binary and case.binary:
            headers = {"Content-Type": f"{binary}{headers[LENGTH]}"}
        asked = model or case.model
        url = server.url(path or f"/v2/models/{asked}/infer", port)
        answered, answer = _post(url, body, headers)
        if checked:
            check_outputs(server, case, answered, answer)
        yield Load(server, asked, url, [body], headers)

    return opened


def _post(url: str, body: bytes, headers: dict[str, str]) -> tuple[http.client.HTTPMessage, bytes]:
    """The headers and the body of the answer. NotServed if the server refuses the request."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=LIMIT_S) as answer:
            return answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        raise NotServed(f"{error.code}: {error.read(500).decode(errors='replace')}") from error
    except urllib.error.URLError as error:
        raise NotServed(str(error.reason)) from error


def check_outputs(server: Server, case: Case, answered: http.client.HTTPMessage, body: bytes) -> None:
    """RuntimeError if an answer differs from the outputs of a session of the case's graph."""
    of_platform = _HEADER_SIZE.search(answered.get("Content-Type", ""))
    outputs = case.answer(body, of_platform[1] if of_platform else answered[LENGTH])
    session = onnxruntime.InferenceSession(server.repository / case.model / "1" / "model.onnx")
    for name, expected in zip(case.outputs, session.run(list(case.outputs), case.feeds()), strict=True):
        if outputs[name].shape != expected.shape or not np.allclose(
            outputs[name], expected, RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE
        ):
            raise RuntimeError(f"{server.name} answers {case.key} wrongly in {name}")


def infer_message(case: Case) -> bytes:
    request = messages.ModelInferRequest(model_name=case.model)
    feeds = case.feeds()
    for name, datatype, shape in case.inputs:
        request.inputs.add(name=name, datatype=datatype, shape=(1, *shape))
        request.raw_input_contents.append(feeds[name].tobytes())
    content: bytes = request.SerializeToString()
    return content


def grpc(case: Case, *, streams: bool = False, in_flight: int = 1, connections: int = 0) -> Ask:
    """The case's request over gRPC; see `target_of`."""

    @contextmanager
    def opened(server: Server) -> Iterator[Load]:
        message = infer_message(case)
        request = messages.ModelInferRequest.FromString(message)
        limits = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
        try:
            with grpcio.insecure_channel(f"{HOST}:{server.ports['grpc']}", limits) as channel:
                service = services.GRPCInferenceServiceStub(channel)
                if streams:
                    (answer,) = service.ModelStreamInfer(iter([request]), timeout=LIMIT_S)
                    if answer.error_message:
                        raise NotServed(answer.error_message)
                else:
                    service.ModelInfer(request, timeout=LIMIT_S)
        except grpcio.RpcError as error:
            raise NotServed(str(error.details())) from error
        url = f"grpc://{HOST}:{server.ports['grpc']}{GRPC_SERVICE}{'ModelStreamInfer' if streams else 'ModelInfer'}"
        yield Load(server, case.model, url, [message], {}, in_flight, streams, connections)

    return opened


def shared_memory(case: Case, connections: int) -> Ask:
    """Echo the tensor of `case` through shared memory.

    Each connection has a part of a region for its input and one for its output, and the last output is checked.
    """

    @contextmanager
    def opened(server: Server) -> Iterator[Load]:
        (content,) = (feed.tobytes() for feed in case.feeds().values())
        size = len(content)
        with system_region(server, (content + bytes(size)) * connections) as region:
            sizes = {case.outputs[0]: size}
            bodies = [shared_body(case, region, sizes, 2 * size * number) for number in range(connections)]
            _post(server.url(case.path), bodies[-1], JSON_HEADERS)
            with Path(DIRECTORY, region).open("rb") as memory:
                memory.seek(-size, os.SEEK_END)
                if memory.read() != content:
                    raise RuntimeError(f"'{case.model}' does not echo through shared memory")
            yield Load(server, case.model, server.url(case.path), bodies, JSON_HEADERS)

    return opened


@contextmanager
def system_region(server: Server, content: bytes) -> Iterator[str]:
    """A region of the server with this content, which is named as its file."""
    file = Path(DIRECTORY, f"trident_bench_{uuid.uuid4().hex}")
    try:
        file.touch(mode=0o600)
        file.write_bytes(content)
        with registered(server, "system", file.name, {"key": file.name, "byte_size": len(content)}):
            yield file.name
    finally:
        file.unlink(missing_ok=True)


@contextmanager
def registered(server: Server, kind: str, name: str, document: dict[str, object]) -> Iterator[None]:
    path = f"/v2/{kind}sharedmemory/region/{name}"
    _post(server.url(f"{path}/register"), json.dumps(document).encode(), JSON_HEADERS)
    try:
        yield
    finally:
        server.exchange("POST", f"{path}/unregister")


def shared_body(case: Case, region: str, sizes: Mapping[str, int], start: int = 0) -> bytes:
    """The case's request: from `start` on, the region has its inputs and then its outputs, which have these sizes."""
    feeds, at = case.feeds(), start

    def place(size: int) -> dict[str, object]:
        nonlocal at
        at += size
        span = {"shared_memory_byte_size": size, "shared_memory_offset": at - size}
        return {"parameters": {"shared_memory_region": region, **span}}

    inputs = [
        {"name": name, "shape": list(feeds[name].shape), "datatype": datatype, **place(feeds[name].nbytes)}
        for name, datatype, _ in case.inputs
    ]
    outputs = [{"name": name, **place(size)} for name, size in sizes.items()]
    return json.dumps({"inputs": inputs, "outputs": outputs}, separators=(",", ":")).encode()


def sequences(count: int) -> Ask:
    """Add/sub requests of `count` sequences in rotation, all of which have begun."""

    @contextmanager
    def opened(server: Server) -> Iterator[Load]:
        tensors = []
        for name in ("INPUT0", "INPUT1"):
            tensors.append(triton.InferInput(name, [1, 16], "INT32"))
            tensors[-1].set_data_from_numpy(np.arange(16, dtype=np.int32)[None])
        ids = range(1001, 1001 + count)  # of one length, so that all heads are as long
        try:
            with triton.InferenceServerClient(f"{HOST}:{server.ports['http']}") as client:
                for each in ids:
                    client.infer(SEQUENCES, tensors, sequence_id=each, sequence_start=True)
        except triton.InferenceServerException as error:
            raise NotServed(str(error)) from error
        made = [triton.InferenceServerClient.generate_request_body(tensors, sequence_id=each) for each in ids]
        url, bodies = server.url(f"/v2/models/{SEQUENCES}/infer"), [body for body, _ in made]
        yield Load(server, SEQUENCES, url, bodies, {LENGTH: str(made[0][1])})

    return opened


def tabular_rows(count: int) -> np.ndarray:
    return np.random.default_rng(SEED).random((count, FEATURES)).round(4)


def csv(count: int) -> Ask:
    """Rows of features as CSV, at SageMaker's port."""
    text = "\n".join(",".join(map(str, row)) for row in tabular_rows(count).tolist()).encode()
    return _tabular("sagemaker", "/invocations", text, {"Content-Type": "text/csv"})


def instances(count: int) -> Ask:
    """Rows of features as Vertex AI's instances."""
    body = json.dumps({"instances": tabular_rows(count).tolist()}).encode()
    return _tabular("vertex", PREDICT, body, JSON_HEADERS)


def tabular_tensor(count: int) -> Ask:
    """Rows of features as one tensor of v2 JSON."""
    rows = tabular_rows(count)
    tensor = {"name": "IN", "shape": list(rows.shape), "datatype": "FP32", "data": rows.tolist()}
    body = json.dumps({"inputs": [tensor]}).encode()
    return _tabular("http", f"/v2/models/{TABULAR}/infer", body, JSON_HEADERS)


def _tabular(port: str, path: str, body: bytes, headers: dict[str, str]) -> Ask:
    @contextmanager
    def opened(server: Server) -> Iterator[Load]:
        url = server.url(path, port)
        _post(url, body, headers)
        yield Load(server, TABULAR, url, [body], headers)

    return opened
