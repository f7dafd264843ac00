"""Clients and processes that die: nothing of their calls is left, and all others go on.

Source: docs/spec/grpc.md sections 4, 6 and 7; docs/architecture.md section 5.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from tests.contract.grpc.grpc_requests import LIMIT_S, Responses, address_of, assert_simple, client_of, simple_inputs
from tests.contract.remote.remote_server import RemoteServer
from tests.contract.servers.simple_model import link_models
from tests.unit import onnx_models

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


def test_health_watch_follows_the_engine(server: RemoteServer) -> None:
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
