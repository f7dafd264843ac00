"""A refused request is freed at once: no cycle of error, frames and response keeps its body until the garbage collector
runs, which may be thousands of requests later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gevent
import numpy as np
import orjson
import pytest
from werkzeug.test import EnvironBuilder

from tests.unit.fake_engine import FakeEngine, empty_response
from trident.core.errors import InvalidRequest, QueueFull
from trident.core.frontend.bridge import ThreadBridge
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse

INFER = "/v2/models/simple/infer"
HEADER = orjson.dumps(
    {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [4], "parameters": {"binary_data_size": 16}}]}
)
Respond = Callable[[InferenceRequest], InferenceResponse]


def fails(error: type[Exception]) -> Respond:
    def respond(request: InferenceRequest) -> InferenceResponse:
        return InferenceResponse("simple", 1, [], error=error("no"))  # type: ignore[arg-type]

    return respond


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def body_after(application: V2Application, content: bytes) -> tuple[int, bool]:
    """The status of a request with this body, and whether the body is still referred to."""
    memory = np.frombuffer(bytearray(content), np.uint8)
    watched = weakref.ref(memory)
    environ: dict[str, Any] = EnvironBuilder(method="POST", data=b"").get_environ()
    environ.update(RAW_URI=INFER, PATH_INFO=INFER, HTTP_INFERENCE_HEADER_CONTENT_LENGTH=str(len(HEADER)))
    environ["trident.body"] = memory.data
    started: list[str] = []
    application(environ, lambda status, headers, *_: started.append(status))
    del environ["trident.body"], memory
    return int(started[0][:3]), watched() is not None


@pytest.mark.parametrize("on_hub", [False, True])
@pytest.mark.parametrize(
    ("respond", "body", "status"),
    [
        (empty_response, HEADER + bytes(16), 200),
        (fails(InvalidRequest), HEADER + bytes(16), 400),
        (fails(QueueFull), HEADER + bytes(16), 503),
        (empty_response, HEADER + bytes(15), 400),
        (empty_response, b"{" + HEADER[1:-1] + b"]" + bytes(16), 400),
    ],
)
def test_an_error_keeps_no_reference_to_the_body(
    without_collector: None, respond: Respond, body: bytes, status: int, on_hub: bool
) -> None:
    def ask() -> tuple[int, bool]:
        bridge = GeventBridge(gevent.get_hub()) if on_hub else ThreadBridge()
        try:
            application = V2Application(FakeEngine(respond), HttpOptions(), bridge)
            return gevent.spawn(body_after, application, body).get() if on_hub else body_after(application, body)
        finally:
            bridge.close()

    with ThreadPoolExecutor(1) as pool:  # the main thread never gets a hub
        assert pool.submit(ask).result() == (status, False)
