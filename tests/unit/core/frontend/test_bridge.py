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
from trident.core.frontend.bridge import AT_ONCE, SingleResponse, ThreadBridge, infer_many
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


def request() -> InferenceRequest:
    return InferenceRequest("simple", [])


def test_a_disconnected_client_cancels_its_request() -> None:
    engine = FakeEngine(lambda _: None)
    looks: Iterator[bool] = iter([False, True])
    answer = ThreadBridge().infer(engine.model("simple"), request(), lambda: next(looks))
    assert isinstance(answer.error, RequestCancelled)
    assert engine.calls == [("cancel", "simple")]


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
def test_error_does_not_reference_the_body(
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


def requests(count: int) -> list[InferenceRequest]:
    return [InferenceRequest("simple", [], id=str(number)) for number in range(count)]


class HoldingEngine(FakeEngine):
    """Keeps requests until it has `AT_ONCE` or the last one; then answers them, the latest first."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.most = 0
        self._left = total
        self._held: list[PendingRequest] = []

    def submit(self, pending: PendingRequest) -> None:
        self._held.append(pending)
        self._left -= 1
        self.most = max(self.most, len(self._held))
        if len(self._held) == AT_ONCE or not self._left:
            held, self._held = self._held, []
            threading.Thread(target=self._answer, args=(held,)).start()

    def _answer(self, held: list[PendingRequest]) -> None:
        for pending in reversed(held):
            pending.on_response(InferenceResponse("simple", 1, [], id=pending.request.id))


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, 3 * AT_ONCE + 1])
def test_responses_have_the_order_of_the_requests(count: int) -> None:
    engine = HoldingEngine(count)
    assert [response.id for response in infer_many(engine, requests(count))] == [str(n) for n in range(count)]
    assert engine.most == min(count, AT_ONCE)


def test_the_first_error_is_raised_and_the_others_are_cancelled() -> None:
    def respond(request: InferenceRequest) -> InferenceResponse | None:
        if request.id != "3":
            return None if request.id == "1" else empty_response(request)
        return InferenceResponse("simple", 1, [], error=InvalidRequest("no"))

    engine = FakeEngine(respond)
    given = requests(100)
    with pytest.raises(InvalidRequest, match=r"^no$"):
        infer_many(engine, given)
    assert given[1] in engine.cancelled
    assert ("cancel", "simple") in engine.calls
    assert len(engine._pending) == 0


def test_disconnected_client_cancels_all_its_requests() -> None:
    engine = FakeEngine(lambda request: None)
    given = requests(3)
    with pytest.raises(RequestCancelled, match="went away"):
        infer_many(engine, given, lambda: True)
    assert engine.cancelled == given
    engine = HoldingEngine(2)
    assert len(infer_many(engine, requests(2), lambda: False)) == 2


def test_a_disconnected_client_is_noticed_while_answers_arrive() -> None:
    """Each answer arrives within the period: the model is fast and there are many instances."""
    answered: list[str] = []

    def respond(request: InferenceRequest) -> InferenceResponse:
        answered.append(request.id)
        return empty_response(request)

    def endless() -> Iterator[InferenceRequest]:
        while True:
            yield InferenceRequest("simple", [])

    with pytest.raises(RequestCancelled, match="went away"):
        infer_many(FakeEngine(respond), endless(), lambda: True)
    assert len(answered) > AT_ONCE


def test_an_expired_deadline_cancels_requests_without_awaiting_them() -> None:
    class Late(FakeEngine):
        """Never answers, not even a cancelled request."""

        def cancel(self, pending: PendingRequest) -> None:
            self.cancelled.append(pending.request)

    def too_late() -> bool:
        raise DeadlineExceeded("too late")

    engine = Late(lambda request: None)
    given = requests(3)
    with pytest.raises(DeadlineExceeded, match="too late"):
        infer_many(engine, given, too_late)
    assert engine.cancelled == given


def test_a_failing_iterator_cancels_the_requests_in_flight() -> None:
    engine = FakeEngine(lambda request: None)
    first = InferenceRequest("simple", [])

    def make() -> Iterator[InferenceRequest]:
        yield first
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        infer_many(engine, make())
    assert engine.cancelled == [first]
