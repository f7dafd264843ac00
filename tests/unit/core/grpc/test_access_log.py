from __future__ import annotations

import json
import re

import pytest

from tests.unit.core.grpc.grpc_client import Client, with_client
from tests.unit.core.grpc.infer_messages import echo, infer_request
from tests.unit.fake_engine import FakeEngine
from trident.core.errors import BackendFailed
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse
from trident.core.observability.switches import SWITCHES

RESPONSE_SIZE = 51
PATH = "/inference.GRPCInferenceService/"


def respond(request: InferenceRequest) -> InferenceResponse:
    if request.id == "bad":
        return InferenceResponse.failed(request, BackendFailed("no"))
    return echo(request)


def lines(caplog: pytest.LogCaptureFixture, scope: str) -> list[str]:
    """The lines of some calls, without their durations."""
    SWITCHES.set(access=scope)
    caplog.set_level(1)

    def test(client: Client) -> None:
        client.call("ModelInfer", infer_request("r 1"))
        client.call("ModelInfer", infer_request("bad"))
        client.call("ServerLive")
        client.begin("Nope")
        gone = client.feed(client.begin("ModelStreamInfer"), bytes(3))
        assert gone.receiver is not None
        gone.receiver.cancel()

    with_client(FakeEngine(respond), test)
    records = [record for record in caplog.records if record.name == "trident.access"]
    assert all(record.__dict__["duration_ms"] >= 0 for record in records)
    return [re.sub(r"duration_ms=[0-9.]+", "", record.getMessage()) for record in records]


def test_a_line_for_each_call_is_written_if_it_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, "false") == []
    written = lines(caplog, "true")
    first = f"received_bytes={5 + len(infer_request('r 1'))} sent_bytes={5 + RESPONSE_SIZE}"
    second = f"received_bytes={5 + len(infer_request('bad'))} sent_bytes=0"
    assert written == [
        f'127.0.0.1 "gRPC {PATH}ModelInfer" OK  {first} request_id={json.dumps("r 1")} model=simple version=3',
        f'127.0.0.1 "gRPC {PATH}ModelInfer" INTERNAL  {second} request_id=bad model=simple',
        f'127.0.0.1 "gRPC {PATH}Nope" UNIMPLEMENTED  received_bytes=0 sent_bytes=0',
        f'127.0.0.1 "gRPC {PATH}ModelStreamInfer" CANCELLED  received_bytes=3 sent_bytes=0',
    ]


def test_health_calls_are_logged_if_all_are_wanted(caplog: pytest.LogCaptureFixture) -> None:
    written = lines(caplog, "all")
    assert f'127.0.0.1 "gRPC {PATH}ServerLive" OK  received_bytes=5 sent_bytes=7' in written
