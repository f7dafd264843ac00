"""Clients and processes that die: nothing of their calls is left, and all others go on.

Source: docs/spec/grpc.md sections 4, 6 and 7; docs/architecture.md section 5.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.contract.grpc.grpc_requests import (
    LIMIT_S,
    Responses,
    address_of,
    assert_simple,
    client_of,
    simple_inputs,
    simple_message,
    stub_of,
    waiting_inputs,
)
from tests.contract.remote.remote_server import FOR_EVER, RemoteServer, pending
from tests.contract.servers.simple_model import link_models
from tests.unit import onnx_models
from tests.waiting import until

pytestmark = pytest.mark.slow

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
ONE_INSTANCE = "instance_group [ { count: 1 kind: KIND_CPU } ]"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteServer]:
    folder = tmp_path_factory.mktemp("faults")
    repository = link_models(folder / "models", "simple")
    onnx_models.write_version(onnx_models.waiting(), repository, "waiting", ONE_INSTANCE)
    with RemoteServer(repository, folder) as running:
        yield running


def waiting_message(rounds: int) -> Any:
    request = pb.ModelInferRequest(model_name="waiting")
    request.inputs.add(name="ROUNDS", datatype="INT64", shape=[1])
    request.raw_input_contents.append(np.array([rounds], np.int64).tobytes())
    return request


def answers_again(server: RemoteServer) -> None:
    """Both kinds of calls are answered by every front end."""
    server.wait_until_all_ready()
    for seed in range(6):
        with client_of(server) as client:
            assert_simple(client.infer("simple", simple_inputs(seed)), seed)
            responses = Responses()
            client.start_stream(responses.put)
            client.async_stream_infer("simple", simple_inputs(seed))
            assert_simple(responses.next_result(), seed)
            client.stop_stream()


def test_calls_and_streams_are_answered_when_the_engine_is_killed(server: RemoteServer) -> None:
    """UNAVAILABLE for calls, an error message in each stream, which then goes on with the next engine."""
    server.wait_until_all_ready()
    with client_of(server) as client, stub_of(server) as stub:
        calls = [stub.ModelInfer.future(waiting_message(FOR_EVER), timeout=LIMIT_S) for _ in range(10)]
        responses = Responses()
        client.start_stream(responses.put)
        for _ in range(10):
            client.async_stream_infer("waiting", waiting_inputs(FOR_EVER))
        until(lambda: pending(server, "waiting") == 19, "they do not wait")
        server.kill_engine()
        for call in calls:
            assert call.code() is grpc.StatusCode.UNAVAILABLE
            assert call.details() == "the engine is not there: it has ended"
        for _ in range(10):
            assert responses.next_error().message() == "the engine is not there: it has ended"
        server.wait_until_all_ready()
        client.async_stream_infer("simple", simple_inputs(7))
        assert_simple(responses.next_result(), 7)
        client.stop_stream()
    answers_again(server)


def test_the_watch_of_health_follows_the_engine(server: RemoteServer) -> None:
    server.wait_until_all_ready()
    with grpc.insecure_channel(address_of(server)) as channel:
        states = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=LIMIT_S)
        assert next(states) == SERVING
        for _ in range(5):  # the first restarts are so quick that a watch may not notice them
            server.kill_engine()
        assert next(states) == NOT_SERVING
        assert next(states) == SERVING
        states.cancel()
    answers_again(server)


def test_streams_of_a_killed_front_end_end_and_others_go_on(server: RemoteServer) -> None:
    server.wait_until_all_ready()
    with ThreadPoolExecutor(8) as pool:
        stop = False

        def ask(seed: int) -> set[str]:
            """Stream after stream, each with its own connection. Returns the statuses."""
            seen = set()
            while not stop:
                with stub_of(server) as stub:
                    try:
                        call = stub.ModelStreamInfer(iter([simple_message()] * 20), timeout=LIMIT_S)
                        for answer in call:
                            assert np.frombuffer(answer.infer_response.raw_output_contents[1], np.int32)[0] == -3
                        seen.add("OK")
                    except grpc.RpcError as error:
                        seen.add(error.code().name)
            return seen

        asked = [pool.submit(ask, seed) for seed in range(8)]
        os.kill(server.front_ends[0], signal.SIGKILL)
        server.wait_until_all_ready()
        stop = True
        statuses = set().union(*(each.result(LIMIT_S) for each in asked))
    assert "OK" in statuses
    assert statuses <= {"OK", "UNAVAILABLE"}
    answers_again(server)
