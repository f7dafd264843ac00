"""Requests to other models, waited for, awaited, iterated, cancelled, refused; and models that a model loads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from trident_stub.business_logic import ResponseIterator, is_model_ready, load_model, unload_model
from trident_stub.errors import TritonModelException
from trident_stub.model import Phase, running_model
from trident_stub.request import InferenceRequest
from trident_stub.response import InferenceResponse
from trident_stub.tensor import Tensor

from tests.unit.core.backends.python.stub.trident_stub.memory_server import MemoryServer, MemoryStream
from tests.waiting import until

ONLY_IN_EXECUTE = "BLS is only supported during the 'execute' function."
TWO = [InferenceResponse([Tensor("A", np.array([number]))]) for number in range(2)]


@pytest.fixture
def request_() -> InferenceRequest:
    return InferenceRequest(inputs=[], requested_output_names=["A"], model_name="other")


def test_one_response(memory_server: MemoryServer, request_: InferenceRequest) -> None:
    memory_server.streams.append(MemoryStream(TWO[0], None))
    assert request_.exec() is TWO[0]
    assert memory_server.asked == [(request_, False)]


def test_many_responses_as_often_as_wanted(memory_server: MemoryServer, request_: InferenceRequest) -> None:
    memory_server.streams.append(MemoryStream(*TWO, None))
    responses = request_.exec(decoupled=True)
    assert isinstance(responses, ResponseIterator)
    assert memory_server.asked == [(request_, True)]
    for _ in range(2):
        assert list(responses) == TWO


def test_responses_can_be_cancelled(memory_server: MemoryServer, request_: InferenceRequest) -> None:
    stream = MemoryStream(TWO[0])
    memory_server.streams.append(stream)
    responses = request_.exec(decoupled=True)
    assert isinstance(responses, ResponseIterator)
    responses.cancel()
    assert stream.cancelled


def test_requests_are_sent_before_they_are_awaited(memory_server: MemoryServer, request_: InferenceRequest) -> None:
    streams = [MemoryStream(), MemoryStream()]
    memory_server.streams += streams

    async def both() -> list[Any]:
        futures = [request_.async_exec(), request_.async_exec()]
        assert len(memory_server.asked) == 2
        # From another thread, as responses come.
        for stream, response in zip(streams, TWO, strict=True):
            threading.Thread(target=stream.put, args=(response,)).start()
        return await asyncio.gather(*futures)

    assert asyncio.run(both()) == TWO


def test_many_responses_awaited(memory_server: MemoryServer, request_: InferenceRequest) -> None:
    memory_server.streams.append(MemoryStream(*TWO, None))

    async def iterate() -> list[InferenceResponse]:
        return list(await request_.async_exec(decoupled=True))

    assert asyncio.run(iterate()) == TWO


def test_who_does_not_wait_any_more_cancels(memory_server: MemoryServer, request_: InferenceRequest) -> None:
    stream = MemoryStream()
    memory_server.streams.append(stream)

    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(request_.async_exec(), 0.01)
        stream.put(TWO[0])

    asyncio.run(give_up())
    assert stream.cancelled


def test_a_loop_that_ended_cancels(memory_server: MemoryServer, request_: InferenceRequest) -> None:
    stream = MemoryStream()
    memory_server.streams.append(stream)

    async def forget() -> None:
        request_.async_exec()

    asyncio.run(forget())
    stream.put(TWO[0])
    until(lambda: stream.cancelled, "the cancellation")


def test_outside_a_loop_nothing_is_sent(memory_server: MemoryServer, request_: InferenceRequest) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        request_.async_exec()
    assert memory_server.asked == []


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.ENDING])
def test_only_while_the_model_serves(memory_server: MemoryServer, request_: InferenceRequest, phase: Phase) -> None:
    running_model().phase = phase
    with pytest.raises(TritonModelException) as caught:
        request_.exec()
    assert str(caught.value) == ONLY_IN_EXECUTE
    assert memory_server.asked == []


def test_a_flag_that_is_no_bool(request_: InferenceRequest) -> None:
    with pytest.raises(TypeError, match="must be a bool, not int"):
        request_.exec(1)  # type: ignore[arg-type]


def test_the_calls(memory_server: MemoryServer) -> None:
    memory_server.answers["is_model_ready"] = {"ready": True}
    load_model("m")
    load_model(model_name="m", config="{}", files={"file:1/model.py": b"\xff"})
    unload_model("m")
    unload_model("m", unload_dependents=True)
    assert is_model_ready("m")
    assert is_model_ready(model_name="m", model_version="2")
    assert memory_server.calls == [
        ("load_model", {"model_name": "m", "config": "", "files": {}}),
        ("load_model", {"model_name": "m", "config": "{}", "files": {"file:1/model.py": "/w=="}}),
        ("unload_model", {"model_name": "m", "unload_dependents": False}),
        ("unload_model", {"model_name": "m", "unload_dependents": True}),
        ("is_model_ready", {"model_name": "m", "model_version": ""}),
        ("is_model_ready", {"model_name": "m", "model_version": "2"}),
    ]


@pytest.mark.parametrize(
    ("call", "name", "prefix"),
    [
        (load_model, "load_model", "Failed to load model: "),
        (unload_model, "unload_model", "Failed to unload model: "),
        (is_model_ready, "is_model_ready", "Failed to check model readiness: "),
    ],
)
def test_refusals_have_a_prefix(
    memory_server: MemoryServer, call: Callable[[str], Any], name: str, prefix: str
) -> None:
    memory_server.refusals[name] = "why"
    with pytest.raises(TritonModelException) as caught:
        call("m")
    assert str(caught.value) == f"{prefix}why"


@pytest.mark.parametrize("version", ["0", "-1", "a", "1.0", "\u0661"])
def test_versions_are_positive_integers(version: str) -> None:
    with pytest.raises(TritonModelException, match=r"^Failed to check model readiness: .*an integer greater than 0$"):
        is_model_ready("m", version)


@pytest.mark.parametrize(
    "call",
    [
        lambda: load_model(None),  # type: ignore[arg-type]
        lambda: load_model("m", None),  # type: ignore[arg-type]
        lambda: load_model("m", files={"file:a": "text"}),  # type: ignore[dict-item]
        lambda: unload_model("m", None),  # type: ignore[arg-type]
        lambda: is_model_ready("m", 1),  # type: ignore[arg-type]
    ],
)
def test_wrong_types(memory_server: MemoryServer, call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="must be a"):
        call()
    assert memory_server.calls == []
