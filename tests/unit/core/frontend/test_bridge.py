"""How a front end waits for the engine on a native thread, and what all bridges share."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import gevent
import numpy as np
import orjson
import pytest
from werkzeug.test import EnvironBuilder

from tests.unit.fake_engine import FakeEngine, empty_response
from trident.core.errors import BackendFailed, DeadlineExceeded, InvalidRequest, QueueFull, RequestCancelled
from trident.core.frontend.bridge import SingleResponse, ThreadBridge, TimeSlice
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import bytes_array


def response(*, final: bool = True, empty: bool = False, failed: bool = False) -> InferenceResponse:
    outputs = [] if empty or failed else [OutputTensor("OUT", "BYTES", (1,), bytes_array([b"x"], (1,)))]
    error = BackendFailed("boom") if failed else None
    return InferenceResponse("simple", 1, outputs, id="7", error=error, final=final)


class OtherThread(FakeEngine):
    """Answers each request on another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    def submit(self, pending: PendingRequest) -> None:
        thread = threading.Thread(target=pending.on_response, args=(response(),))
        self.threads.append(thread)
        thread.start()


def request() -> InferenceRequest:
    return InferenceRequest("simple", [])


def test_infer_and_run_stay_on_the_calling_thread() -> None:
    given = response()
    assert ThreadBridge().infer(FakeEngine(lambda _: given).model("simple"), request()) is given
    bridge = ThreadBridge()
    assert bridge.run(threading.get_ident) == threading.get_ident()
    assert bridge.run(int, "12", base=8) == 10
    with pytest.raises(ValueError, match="invalid literal"):
        bridge.run(int, "x")
    bridge.close()


@pytest.mark.parametrize("watched", [True, False])
def test_infer_returns_a_response_given_on_another_thread(watched: bool) -> None:
    engine = OtherThread()
    for _ in range(100):
        answer = ThreadBridge().infer(engine.model("simple"), request(), (lambda: False) if watched else None)
        assert answer.id == "7"
    for thread in engine.threads:
        thread.join(10)


def test_a_disconnected_client_cancels_its_request() -> None:
    engine = FakeEngine(lambda _: None)
    looks: Iterator[bool] = iter([False, True])
    answer = ThreadBridge().infer(engine.model("simple"), request(), lambda: next(looks))
    assert isinstance(answer.error, RequestCancelled)
    assert engine.calls == [("cancel", "simple")]


def test_an_expired_deadline_cancels_the_request_and_answers_at_once() -> None:
    engine = FakeEngine(lambda _: None)
    engine.cancel = lambda _: engine.calls.append(("cancel",))  # type: ignore[method-assign]

    def too_late() -> bool:
        raise DeadlineExceeded("too late")

    answer = ThreadBridge().infer(engine.model("simple"), request(), too_late)
    assert isinstance(answer.error, DeadlineExceeded)
    assert (answer.id, answer.final) == (request().id, True)
    assert engine.calls == [("cancel",)]


def test_an_interrupted_wait_cancels_the_request() -> None:
    engine = FakeEngine(lambda _: None)

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ThreadBridge().infer(engine.model("simple"), request(), interrupt)
    assert engine.calls == [("cancel", "simple")]


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ([response()], 0),
        ([response(failed=True)], 0),
        ([response(empty=True)], 0),
        ([response(final=False), response(empty=True)], 0),
        ([response(final=False, failed=True), response(empty=True)], 0),
        ([response(final=False, empty=True), response()], None),
        ([response(final=False), response()], None),
        ([response(final=False), response(final=False), response(empty=True)], None),
    ],
)
def test_gather_returns_one_response_or_an_error(given: list[InferenceResponse], number: int | None) -> None:
    gathered = SingleResponse()
    for part in given[:-1]:
        assert gathered.gather(part) is None
    answer = gathered.gather(given[-1])
    assert answer is not None
    if number is not None:
        assert answer is given[number]
        return
    assert isinstance(answer.error, BackendFailed)
    assert (answer.error.message, answer.id) == ("expected a single response, got 2", "7")


@pytest.mark.parametrize("patched", [True, False])
def test_patched_threading_is_rejected_with_a_hint(patched: bool) -> None:
    monkey = SimpleNamespace(is_module_patched=lambda name: patched and name == "threading")
    modules = {"gevent.monkey": cast(ModuleType, monkey)}
    if not patched:
        ThreadBridge(modules)
        return
    with pytest.raises(RuntimeError, match=r"app\.worker\.worker\.TridentWorker"):
        ThreadBridge(modules)


def test_a_time_slice_gives_way_after_its_time() -> None:
    clock = [0.0]
    gave_way: list[float] = []

    def give_way() -> None:
        gave_way.append(clock[0])
        clock[0] += 1.0  # what the others take does not count

    turns = TimeSlice(give_way, now=lambda: clock[0])
    for _ in range(10):
        clock[0] += 0.00005
        turns()
    assert len(gave_way) == 2
    assert gave_way[1] - gave_way[0] > 1.0


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
