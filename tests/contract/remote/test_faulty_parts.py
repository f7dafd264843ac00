"""Whole servers of which a part raises for marked requests: each of them gets an error, and every other request that is
in flight at the same moment its own answer. Single borders: tests/unit/core/test_borders.py."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException
from websockets.sync.client import connect

from tests.contract.servers.faulty_server import (
    CLASSES,
    IN_BACKEND,
    IN_ENGINE,
    IN_FRONT_END,
    MARK,
    FaultyEngine,
    FaultyServer,
    make_backend,
    write_models,
)
from tests.contract.servers.probe_site import Client
from tests.threads import server_threads
from tests.waiting import quiet_text, until
from trident.app.library.model import Model
from trident.core.engine.in_process import make_engine
from trident.core.errors import ServerError
from trident.core.frontend.bridge import ThreadBridge
from trident.core.lifecycle.options import EngineOptions

pytestmark = pytest.mark.shapes("one-process", "front-ends")

CONNECTIONS = 16
ROUNDS = 6
BURST = 8
LIMIT_S = 60.0
MODELS = ["plain", "ordered", "cached", "chain"]

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    folder = tmp_path_factory.mktemp("faulty")
    options = "--cache-config=local,size=1048576", "--trace-config=rate=3", "--trace-config=level=TIMESTAMPS"
    trace = f"--trace-config=triton,file={folder / 'trace.json'}"
    with FaultyServer(write_models(folder / "models"), folder / "log", *options, trace) as running:
        yield running
        # The stop is as quick as that of a server to which nothing happened.
        assert running.stop() == 0


@pytest.fixture
def places(http_workers: str) -> tuple[str, ...]:
    return (*IN_BACKEND, *IN_ENGINE, *(IN_FRONT_END if http_workers != "0" else ()))


class Asked:
    """A request, which is marked in one case of three, and its answer."""

    def __init__(self, places: tuple[str, ...], model: str) -> None:
        number = next(_numbers)
        self.values = [number, 7, -number]
        self.is_marked = number % 3 == 0
        self.id = f"good-{number}"
        if self.is_marked:
            place, kind = places[number // 3 % len(places)], list(CLASSES)[number // 5 % len(CLASSES)]
            self.id = f"{MARK}{place}-{kind}-{number}"
        self.right = [value + 1 + (model == "chain") for value in self.values]

    def document(self, **parameters: Any) -> dict[str, Any]:
        tensor = {"name": "X", "datatype": "INT32", "shape": [1, 3], "data": [self.values]}
        return {"id": self.id, "inputs": [tensor], "parameters": parameters}

    def binary(self) -> tuple[bytes, bytes]:
        """The JSON and the content of a binary request."""
        tensor = {"name": "X", "datatype": "INT32", "shape": [1, 3], "parameters": {"binary_data_size": 12}}
        document = {"id": self.id, "inputs": [tensor], "parameters": {"binary_data_output": True}}
        return json.dumps(document).encode(), np.array(self.values, "<i4").tobytes()

    def check(self, answer: list[int] | None, error: str) -> None:
        """`answer` is None for an error with this text."""
        if not self.is_marked or (answer is not None and "-after-" in self.id):  # which may be answered before
            assert answer == self.right, (self.id, error)
        else:
            assert answer is None, self.id
            assert error, self.id


def burst(client: Client, model: str, asked: list[Asked], *, is_binary: bool) -> None:
    """Send the requests in one piece, and read the answers."""
    sent = []
    for each in asked:
        head, content = each.binary() if is_binary else (json.dumps(each.document()).encode(), b"")
        length = f"Inference-Header-Content-Length: {len(head)}\r\n" if is_binary else ""
        sent.append(
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\n{length}"
            f"Content-Length: {len(head) + len(content)}\r\n\r\n".encode()
            + head
            + content
        )
    client.send(b"".join(sent))
    for each in asked:
        reply = client.reply()
        if reply.status == 200:
            size = int(reply.headers.get("inference-header-content-length", len(reply.body)))
            found = json.loads(reply.body[:size])
            assert found["id"] == each.id
            content = reply.body[size:]
            each.check(np.frombuffer(content, "<i4").tolist() if content else found["outputs"][0]["data"], "")
        else:
            assert reply.status == 500, (each.id, reply.status, reply.body)
            each.check(None, json.loads(reply.body)["error"])


def at_once(calls: list[Callable[[], object]]) -> None:
    """Make the calls on threads, which begin together. Raises what one raises."""
    begin = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        begin.wait(LIMIT_S)
        call()

    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(run, call) for call in calls]:
            done.result(LIMIT_S)


@pytest.mark.parametrize("model", MODELS)
def test_faults_over_http(server: FaultyServer, places: tuple[str, ...], model: str) -> None:
    def run(number: int) -> None:
        with Client(server.http_port) as client:
            for _ in range(ROUNDS):
                asked = [Asked(places, model) for _ in range(BURST)]
                burst(client, model, asked, is_binary=bool(number % 2))

    at_once([lambda number=number: run(number) for number in range(CONNECTIONS)])  # type: ignore[misc]


def test_fault_in_find_model(server: FaultyServer, http_workers: str) -> None:
    name = MARK + ("engine" if http_workers == "0" else "client")
    with Client(server.http_port) as client:
        for path in (f"/v2/models/{name}/infer", "/v2/models/plain/infer"):
            asked = Asked(("execute",), "plain")
            asked.is_marked = name in path
            asked.id = "a"
            body = json.dumps(asked.document()).encode()
            client.send(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            reply = client.reply()
            assert reply.status == (500 if asked.is_marked else 200)
    calls = triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
    with calls, pytest.raises(InferenceServerException, match="unexpected error in the server"):
        calls.infer(name, tensors(Asked(("execute",), "plain")))


def tensors(asked: Asked) -> list[Any]:
    tensor = triton.InferInput("X", [1, 3], "INT32")
    tensor.set_data_from_numpy(np.array([asked.values], np.int32))
    return [tensor]


@pytest.mark.parametrize("model", ["plain", "chain"])
def test_faults_over_grpc(server: FaultyServer, places: tuple[str, ...], model: str) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        answers: SimpleQueue[tuple[Asked, Any, Any]] = SimpleQueue()
        asked = [Asked(places, model) for _ in range(400)]
        for each in asked:

            def answered(result: Any, error: Any, each: Asked = each) -> None:
                answers.put((each, result, error))

            client.async_infer(model, tensors(each), answered, request_id=each.id)
        for _ in asked:
            each, result, error = answers.get(timeout=LIMIT_S)
            if error is None:
                assert result.get_response().id == each.id
                each.check(result.as_numpy("Y")[0].tolist(), "")
            else:
                assert error.status() == "StatusCode.INTERNAL", (each.id, error)
                each.check(None, error.message())


@pytest.mark.parametrize("model", ["ordered", "cached", "stream"])
def test_faults_in_grpc_streams(server: FaultyServer, places: tuple[str, ...], model: str) -> None:
    """Those of models that answer once are answered in order; in a decoupled one, ids tell whose a response is."""

    def run() -> None:
        with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            answers: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
            client.start_stream(lambda result, error: answers.put((result, error)))
            asked = [Asked(places, model) for _ in range(60)]
            for each in asked:
                client.async_stream_infer(
                    model, tensors(each), request_id=each.id, enable_empty_final_response=model == "stream"
                )
            if model == "stream":
                check_decoupled(answers, asked)
            else:
                for each in asked:
                    result, error = answers.get(timeout=LIMIT_S)
                    each.check(None if error else result.as_numpy("Y")[0].tolist(), str(error))
            client.stop_stream()

    at_once([run] * 4)


def check_decoupled(answers: SimpleQueue[tuple[Any, Any]], asked: list[Asked]) -> None:
    """Each good request has its three responses, and each request one end: an error or a final response."""
    found: dict[str, int] = {}
    right = {each.id: each.right for each in asked}
    ends = 0
    while ends < len(asked):
        result, error = answers.get(timeout=LIMIT_S)
        if error is not None:
            ends += 1
            continue
        response = result.get_response()
        ends += response.parameters["triton_final_response"].bool_param
        assert result.as_numpy("Y")[0].tolist() == right[response.id]
        found[response.id] = found.get(response.id, 0) + 1
    assert answers.empty()
    assert all(found[each.id] == 3 for each in asked if not each.is_marked)


@pytest.mark.parametrize("model", ["plain", "chain", "numbered"])
def test_faults_in_web_sockets(server: FaultyServer, places: tuple[str, ...], model: str) -> None:
    def run(sequence: int) -> None:
        with connect(f"ws://{server.address}/v2/models/{model}/stream") as stream:
            asked = [Asked(places, model) for _ in range(60)]
            for index, each in enumerate(asked):
                flags = {"sequence_id": sequence, "sequence_start": index == 0, "sequence_end": index == 59}
                if model == "numbered" and index in (0, 59):
                    each.is_marked, each.id = False, "good"
                stream.send(json.dumps(each.document(**flags if model == "numbered" else {})))
            for each in asked:
                answer = json.loads(stream.recv(LIMIT_S))
                assert answer["id"] == each.id
                data = answer["outputs"][0]["data"] if "outputs" in answer else None
                each.check(data, answer.get("error", ""))

    at_once([lambda number=number: run(number) for number in range(1, 9)])  # type: ignore[misc]


def test_raised_exceptions_are_logged_and_no_process_is_lost(server: FaultyServer) -> None:
    """The log names each request with its traceback, and no process ended except as requested."""
    text = quiet_text(server.log)
    for kind, made in CLASSES.items():
        assert type(made()).__name__ in text, kind
    for unexpected in ("Logging error", "disconnected", "restarted", "Exception in thread", "Exception ignored"):
        assert unexpected not in text, unexpected
    with Client(server.http_port) as client:
        client.send(b"GET /v2/models/stats HTTP/1.1\r\nHost: a\r\n\r\n")
        found = json.loads(client.reply().body)["model_stats"]
    assert {each["name"] for each in found} >= {"plain", "chain", "stream"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyEngine]:
    repository = str(write_models(tmp_path_factory.mktemp("library")))
    options = EngineOptions(repositories=(repository,), response_cache_bytes=1 << 20)
    made = make_engine(options, makers={"faulty": make_backend})
    made.start()
    until(lambda: made.wait_loaded(1))
    yield FaultyEngine(made, "engine")
    assert made.finish(LIMIT_S)
    until(lambda: not server_threads(), lambda: f"these threads are left: {server_threads()}")


@pytest.mark.parametrize("name", [*MODELS, "stream"])
def test_faults_in_the_library(engine: FaultyEngine, name: str) -> None:
    """In this process: threads that wait, futures, coroutines, and streams."""
    places = (*IN_BACKEND, *(place for place in IN_ENGINE if not place.endswith("parameters")))
    model = Model(lambda: engine, ThreadBridge(), name, -1, {})  # type: ignore[arg-type, return-value]

    def check(each: Asked, outputs: Callable[[], Any]) -> None:
        try:
            found = outputs()
        except Exception as error:
            each.check(None, str(error) if isinstance(error, ServerError) else type(error).__name__)
        else:
            each.check(found["Y"][0].tolist(), "")

    def run() -> None:
        asked = [Asked(places, name) for _ in range(60)]
        values = [np.array([each.values], np.int32) for each in asked]
        calls = [model.with_options(id=each.id) for each in asked]
        if name == "stream":
            streams = [call.stream(X=value) for call, value in zip(calls, values, strict=True)]
            for each, stream in zip(asked, streams, strict=True):
                check(each, lambda stream=stream: list(stream)[2])  # type: ignore[misc]
            return
        futures = [call.submit(X=value) for call, value in zip(calls[:20], values[:20], strict=True)]
        for each, future in zip(asked, futures, strict=False):
            check(each, future.result)
        for index in range(20, 40):
            check(asked[index], lambda index=index: calls[index].infer(X=values[index]))  # type: ignore[misc]
        for index in range(40, 60):
            check(asked[index], lambda index=index: asyncio.run(calls[index].infer_async(X=values[index])))  # type: ignore[misc]

    at_once([run] * 8)
