from __future__ import annotations

import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest

from tests.unit.fake_engine import FakeEngine
from trident.core.errors import BackendFailed, DeadlineExceeded, RequestCancelled
from trident.core.frontend.bridge import SingleResponse, ThreadBridge
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


def test_infer_returns_a_response_given_on_the_same_thread() -> None:
    given = response()
    assert ThreadBridge().infer(FakeEngine(lambda _: given).model("simple"), request()) is given


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


def test_run_calls_the_function_on_the_calling_thread() -> None:
    bridge = ThreadBridge()
    assert bridge.run(threading.get_ident) == threading.get_ident()
    assert bridge.run(int, "12", base=8) == 10
    with pytest.raises(ValueError, match="invalid literal"):
        bridge.run(int, "x")
    bridge.close()


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
def test_patched_threading_is_refused_with_a_hint(patched: bool) -> None:
    monkey = SimpleNamespace(is_module_patched=lambda name: patched and name == "threading")
    modules = {"gevent.monkey": cast(ModuleType, monkey)}
    if not patched:
        ThreadBridge(modules)
        return
    with pytest.raises(RuntimeError, match=r"app\.worker\.worker\.TridentWorker"):
        ThreadBridge(modules)
