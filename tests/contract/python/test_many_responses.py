"""Models that answer a request many times: over events and over gRPC streams, with clients that are slow or leave, and
processes that die, in both shapes of the server.

Source: docs/spec/schedulers.md section 3.8, docs/spec/python-backend.md sections 4.3 and 4.8.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import requests
from tritonclient.grpc import service_pb2 as pb

from tests.contract.grpc.grpc_requests import LIMIT_S, Responses, client_of, stub_of, tensor
from tests.contract.python.python_models import stubs_of, write_model
from tests.contract.servers.ports import HOST
from tests.contract.servers.processes import memory_bound
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("one-process", "front-ends")]

CONFIG = """
model_transaction_policy { decoupled: true }
input [ { name: "count" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "size" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "said" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
# Each request has a thread. A count below 0 never ends; one of 100 or more fails after the 99th response.
TALKER = """
def execute(self, requests):
    for request in requests:
        count, size = (
            int(pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0]) for name in ("count", "size")
        )
        arguments = (request.get_response_sender(), count, size)
        threading.Thread(target=self.talk, args=arguments, daemon=True).start()

def talk(self, sender, count, size):
    number = 0
    while number != count and not sender.is_cancelled():
        if number == 99 and count > 0:
            error = pb_utils.TritonError("that is enough", pb_utils.TritonError.UNSUPPORTED)
            sender.send(pb_utils.InferenceResponse(error=error))
            break
        text = str(number).encode().rjust(size, b".")
        tensor = pb_utils.Tensor("said", np.array([text], dtype=object))
        sender.send(pb_utils.InferenceResponse([tensor], parameters={"number": number}))
        number += 1
    if sender.is_cancelled():
        print(f"cancelled with size {size}", flush=True)
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
MEGABYTE = 1 << 20
CLIENTS = 100
# Drops its senders without the final flag, in a cycle that only the collector frees.
CYCLIC = """
def execute(self, requests):
    for request in requests:
        cycle = [request.get_response_sender()]
        cycle.append(cycle)
"""


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("many")
    write_model(folder / "models", "talker", TALKER, CONFIG, max_batch_size=0)
    write_model(folder / "models", "cyclic", CYCLIC, CONFIG, max_batch_size=0)
    # The engine is known by the framework of its other model.
    link_models(folder / "models", "simple")
    options = (f"--response-window-bytes={2 * MEGABYTE}", "--shutdown-grace-secs=0")
    with ServerProcess(folder / "models", folder / "log", *options) as running:
        yield running


def stream(server: ServerProcess, count: int, size: int = 1) -> requests.Response:
    url = f"http://{server.address}/v2/models/talker/generate_stream"
    return requests.post(url, json={"count": count, "size": size}, stream=True, timeout=LIMIT_S)


def events(response: requests.Response) -> Iterator[Any]:
    for line in response.iter_lines():
        if line:
            yield json.loads(line.removeprefix(b"data: "))


def test_garbage_collected_sender_ends_its_request(server: ServerProcess) -> None:
    url = f"http://{server.address}/v2/models/cyclic/generate_stream"
    (event,) = events(requests.post(url, json={"count": 1, "size": 1}, stream=True, timeout=LIMIT_S))
    assert event["error"] == "the model dropped its response sender before the final response"


def inputs(count: int, size: int = 1) -> list[Any]:
    pairs = (("count", count), ("size", size))
    return [tensor(name, np.array([value], np.int32), "INT32") for name, value in pairs]


def request_message(count: int, size: int) -> Any:
    request = pb.ModelInferRequest(model_name="talker")
    for name, value in (("count", count), ("size", size)):
        request.inputs.add(name=name, datatype="INT32", shape=[1])
        request.raw_input_contents.append(np.array([value], np.int32).tobytes())
    return request


def message(response: Any) -> tuple[str, str | None, bool]:
    """The request's id, what was said, and the final flag."""
    content = response.raw_output_contents[0][4:].decode() if response.raw_output_contents else None
    return response.id, content, response.parameters["triton_final_response"].bool_param


def statistics(server: ServerProcess) -> Any:
    return server.json("GET", "/v2/models/talker/stats")["model_stats"][0]


def in_flight(server: ServerProcess) -> int:
    """Requests that the model has and that are not done, less those that a dead process could not begin."""
    page = server.request("GET", "/metrics", port=server.metrics_port)[2].decode()
    cancelled = re.search(
        r'^nv_inference_request_failure{model="talker",reason="CANCELED".* (\d+)$', page, re.MULTILINE
    )
    assert cancelled is not None
    # First the metrics: a request that leaves the queue in between is counted once.
    seen = statistics(server)
    counts = seen["inference_stats"]
    failed = int(counts["fail"]["count"]) - int(cancelled[1])
    return int(seen["execution_count"]) - int(counts["success"]["count"]) - failed


def responses_sent(server: ServerProcess) -> int:
    return sum(each["success"]["count"] for each in statistics(server)["response_stats"].values())


def wait_until_idle(server: ServerProcess) -> None:
    """An execution is counted when it has ended, which may be after its last response."""
    until(lambda: in_flight(server) == 0, lambda: f"{in_flight(server)} requests")


def wait_until_held_back(server: ServerProcess, requests_in_flight: int) -> None:
    """Wait until the model has so many requests and sends nothing more."""
    until(lambda: in_flight(server) == requests_in_flight)
    last = -1
    while (now := responses_sent(server)) != last:
        last = now
        time.sleep(1)


def test_slow_readers_use_memory_of_their_windows_only(server: ServerProcess) -> None:
    sockets: list[socket.socket] = []
    wait_until_idle(server)
    # Each has a window of 2 MB and one response, the one that is being sent and its event. All responses: 10 GB.
    with memory_bound(server, CLIENTS * 6, stubs_of(server).values()):
        try:
            for _ in range(CLIENTS):
                sockets.append(stalled_events(server, 99, MEGABYTE))
            wait_until_held_back(server, CLIENTS)
            with stream(server, 3) as response:
                assert len(list(events(response))) == 3
        finally:
            for each in sockets:
                each.close()
        wait_until_idle(server)


def stalled_events(server: ServerProcess, count: int, size: int) -> socket.socket:
    """A client that asks for a stream and reads nothing."""
    body = json.dumps({"count": count, "size": size}).encode()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((HOST, server.http_port))
    head = f"POST /v2/models/talker/generate_stream HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def test_slow_grpc_readers_use_memory_of_their_windows_only(server: ServerProcess) -> None:
    count = 20
    wait_until_idle(server)
    request = request_message(99, MEGABYTE)
    with ExitStack() as stubs, memory_bound(server, count * 8, stubs_of(server).values()):
        calls = [stubs.enter_context(stub_of(server)).ModelStreamInfer(iter([request])) for _ in range(count)]
        wait_until_held_back(server, count)
        with stream(server, 3) as response:
            assert len(list(events(response))) == 3
        told = [message(each.infer_response)[1] for each in calls.pop()]
        assert told == [str(number).rjust(MEGABYTE, ".") for number in range(99)]
        for each in calls:
            each.cancel()
        wait_until_idle(server)


def test_disconnect_cancels_the_request(server: ServerProcess) -> None:
    wait_until_idle(server)
    with stream(server, -1, size=7) as response:
        assert next(events(response))["said"] == "......0"
    with client_of(server) as client:
        responses = Responses()
        client.start_stream(responses.put)
        client.async_stream_infer("talker", inputs(-1, size=7))
        responses.next_result()
        client.stop_stream(cancel_requests=True)
    wait_until_idle(server)
    until(lambda: server.log_text().count("cancelled with size 7") == 2)
