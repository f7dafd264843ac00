from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from werkzeug.test import Client as HttpClient

from tests.unit.fake_engine import FakeEngine, FakeModel, identity_spec
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor

# --- infer


INFER = "/v2/models/simple/infer"
BODY = orjson.dumps({"id": "r", "inputs": [{"name": "IN", "datatype": "INT32", "shape": [2], "data": [1, 2]}]})


def echo(request: InferenceRequest) -> InferenceResponse:
    tensor = request.inputs[0]
    array = np.asarray(tensor.data, np.int32) if isinstance(tensor.data, np.ndarray) else None
    if array is None:
        array = np.frombuffer(tensor.data, np.int32)
    return InferenceResponse(request.model_name, 3, [OutputTensor("OUT", "INT32", array.shape, array)], id=request.id)


class Client:
    """The application under a test client; `seen` are the requests that reached the engine."""

    def __init__(self, options: HttpOptions | None = None) -> None:
        self.seen: list[InferenceRequest] = []
        self.engine = FakeEngine(self._respond)
        self.application = V2Application(self.engine, options or HttpOptions(), ThreadBridge())
        self.post: Callable[..., Any] = HttpClient(self.application).post

    def _respond(self, request: InferenceRequest) -> InferenceResponse:
        self.seen.append(request)
        return echo(request)


UNPARSABLE = "Unable to parse Inference-Header-Content-Length, got: {}"
OUT_OF_RANGE = (
    "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: {}"
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(value, UNPARSABLE) for value in ("abc", "", "5 5", "5\xb2")],
        *[(value, OUT_OF_RANGE) for value in ("2147483648", "9" * 5000)],
        *[(value, f"inference header size should be in range (0, {len(BODY)}), got: {{}}") for value in ("-1", "9999")],
    ],
    ids=range(8),
)
def test_invalid_header_lengths_are_refused(value: str, text: str) -> None:
    reply = Client().post(INFER, data=BODY, headers={"Inference-Header-Content-Length": value})
    assert (reply.status_code, reply.mimetype) == (400, "text/plain")
    assert orjson.loads(reply.data) == {"error": text.format(value)}


@pytest.mark.parametrize("sign", ["+", "000"])
def test_a_header_length_may_have_a_sign_and_zeros(sign: str) -> None:
    reply = Client().post(INFER, data=BODY, headers={"Inference-Header-Content-Length": f"{sign}{len(BODY)}"})
    assert reply.status_code == 200


@pytest.mark.parametrize(("waits", "arrived_ns"), [(True, 7), (False, 0)])
def test_only_a_model_whose_batches_wait_learns_when_a_request_arrived(waits: bool, arrived_ns: int) -> None:
    client = Client()
    spec = replace(identity_spec("simple"), counts_arrival=waits)
    client.engine.model = lambda name, version=-1: FakeModel(client.engine, spec)  # type: ignore[method-assign]
    assert client.post(INFER, data=BODY, environ_base={"trident.arrived_ns": 7}).status_code == 200
    assert [request.arrived_ns for request in client.seen] == [arrived_ns]


def test_matching_headers_become_parameters_under_the_name_received() -> None:
    client = Client(HttpOptions(header_forward_pattern="^x-team"))
    spelled = [("X-Team-Name", "a"), ("Other", "b")]
    assert client.post(INFER, data=BODY, environ_base={"trident.headers": spelled}).status_code == 200
    assert client.seen[0].parameters == {"X-Team-Name": "a"}
    assert client.post(INFER, data=BODY, headers={"X-Team-Name": "c"}).status_code == 200
    assert client.seen[1].parameters == {"x-team-name": "c"}
