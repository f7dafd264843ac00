"""The client of an engine that has not started yet, or that ends."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.unit.core.remote.remote_parts import (
    HALF,
    LIMIT_S,
    SHARED,
    SMALL,
    Answer,
    ServedEngine,
    ask,
    connected,
    echo,
    filled,
    numbers,
    served,
)
from tests.waiting import until
from trident.core.errors import ModelNotFound, ServerError
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse
from trident.core.interprocess.frames import LARGE
from trident.core.lifecycle.state import Phase, ServingPhase
from trident.core.observability.metrics.snapshot import MetricsSnapshot
from trident.core.remote import engine_client as engine_client
from trident.core.remote.calls import EngineGone
from trident.core.remote.connection import ThreadLink
from trident.core.remote.engine_client import RemoteEngine


@pytest.fixture
def engine() -> ServedEngine:
    return ServedEngine()


@pytest.fixture
def remote(engine: ServedEngine, tmp_path: Path) -> Iterator[RemoteEngine]:
    with served(tmp_path, engine) as (path, _), connected(path) as remote:
        yield remote


# --- without an engine


def test_calls_fail_before_the_engine_starts(tmp_path: Path) -> None:
    remote = RemoteEngine(str(tmp_path / "nobody"), ThreadLink(), SHARED)
    remote.start()
    try:
        assert (remote.is_live(), remote.is_ready()) == (True, False)
        assert remote.phase() == ServingPhase(name=Phase.ENGINE_DOWN, failures={"engine": "it has not started yet"})
        assert remote.allocate(100) is None
        with pytest.raises(EngineGone, match="it has not started yet"):
            remote.model("simple")
    finally:
        remote.close()


def test_a_request_for_a_model_that_was_found_before_the_loss_fails(engine: ServedEngine, tmp_path: Path) -> None:
    with served(tmp_path, engine) as (path, server), connected(path) as remote:
        model = remote.model("simple")
        server.stop()
        until(lambda: remote.sock is None)
        answer = Answer(numbers(SMALL))
        model.submit(answer.pending)
        assert isinstance(answer.get().error, EngineGone)
        answer.pending.cancel()


def test_the_loss_of_the_engine_answers_requests_in_flight(
    engine: ServedEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine.respond = lambda request: None
    started, may_end = threading.Event(), threading.Event()

    def load(name: str, parameters: dict[str, Any]) -> None:
        started.set()
        may_end.wait(LIMIT_S)

    engine.load_model = load  # type: ignore[method-assign]
    with served(tmp_path, engine) as (path, server), connected(path) as remote, ThreadPoolExecutor(1) as pool:
        answers = [ask(remote, numbers(values)) for values in (SMALL, filled(LARGE), SMALL)]
        loading = pool.submit(remote.load_model, "a", {})
        assert started.wait(LIMIT_S)
        until(lambda: len(engine._pending) == 3)
        engine.cancel = lambda request: None  # type: ignore[method-assign]
        server.stop()
        for answer in answers:
            error = answer.get().error
            assert isinstance(error, EngineGone)
            assert error.message == "the engine is not there: it has ended"
        assert isinstance(loading.exception(LIMIT_S), EngineGone)
        assert remote.phase().failures == {"engine": "it has ended"}
        may_end.set()
    assert caplog.text.count("the connection to the engine is lost: it has ended") == 1


def test_the_client_connects_to_the_next_engine(engine: ServedEngine, tmp_path: Path) -> None:
    with served(tmp_path, engine) as (path, server), connected(path) as remote:
        body = remote.allocate(LARGE)
        assert body is not None
        body[:] = 5
        assert remote.model("simple").spec.version == 3
        server.stop()
        until(lambda: not remote.is_ready())
        (tmp_path / "engine.sock").unlink()
        following = ServedEngine()
        following.versions["simple"] = (1, 7)
        with served(tmp_path, following):
            until(remote.is_ready)
            assert remote.model("simple").spec.version == 7
            # The next engine does not see the memory that was allocated for the last one.
            response = ask(remote, numbers(body, datatype="UINT8")).get()
            assert response.error is None
            assert response.outputs[0].array.tolist() == body.tolist()
        (tmp_path / "engine.sock").touch()


def test_a_model_that_the_next_engine_has_not_loaded_yet_is_unavailable(engine: ServedEngine, tmp_path: Path) -> None:
    """A client that is told that the model does not exist would not ask again."""
    with served(tmp_path, engine) as (path, server), connected(path) as remote:
        with pytest.raises(ModelNotFound):
            remote.model("other")
        server.stop()
        until(lambda: not remote.is_ready())
        (tmp_path / "engine.sock").unlink()
        following = ServedEngine()
        following.versions = {}
        following.ready = False
        following.serving = ServingPhase(name=Phase.LOADING)
        with served(tmp_path, following):
            until(lambda: remote.phase().name == Phase.LOADING)
            for call in (remote.model, remote.is_model_ready, remote.model_config):
                with pytest.raises(EngineGone, match="has not loaded 'simple' yet"):
                    call("simple")
            following.serving = ServingPhase(name=Phase.READY)
            until(lambda: remote.phase().name == Phase.READY)
            with pytest.raises(ModelNotFound):
                remote.model("simple")
        (tmp_path / "engine.sock").touch()


def test_a_call_fails_when_the_engine_does_not_answer(
    engine: ServedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stuck thread of the engine must not block the front end's threads."""
    monkeypatch.setattr(engine_client, "_CALL_SECONDS", 0.05)
    may_go_on = threading.Event()
    engine.metrics = lambda: may_go_on.wait(LIMIT_S) and MetricsSnapshot()  # type: ignore[method-assign,return-value]
    with served(tmp_path, engine) as (path, _), connected(path) as remote:
        with pytest.raises(EngineGone, match=r"did not answer 'metrics' within 0.05 seconds"):
            remote.metrics()
        may_go_on.set()
        monkeypatch.setattr(engine_client, "_CALL_SECONDS", LIMIT_S)
        assert remote.server_metadata() == engine.server_metadata()


def test_an_engine_that_sends_malformed_frames_is_disconnected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "engine.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        remote = RemoteEngine(path, ThreadLink(), SHARED)
        remote.start()
        try:
            for count, nonsense in enumerate((b"nonsense" * 2, b"\0\0\0\0\x10\0\0\0" + bytes(8)), 1):
                sock, _ = listener.accept()
                with sock:
                    sock.sendall(nonsense)
                    until(lambda: caplog.text.count("the engine was disconnected, it sent") == count)  # noqa: B023
                    until(lambda: remote.phase().failures == {"engine": "it could not be understood"})
        finally:
            remote.close()


def test_missing_memory_is_logged_once(engine: ServedEngine, tmp_path: Path, caplog: Any) -> None:
    with served(tmp_path, engine) as (path, _):
        remote = RemoteEngine(path, ThreadLink(), 1 << 60)
        remote.start()
        try:
            until(lambda: "--http-worker-memory-bytes" in remote.phase().failures["engine"])
            with pytest.raises(EngineGone, match="--http-worker-memory-bytes"):
                remote.model("simple")
            assert not remote.is_ready()
        finally:
            remote.close()
    assert caplog.text.count("no connection to the engine") == 1


def test_close_answers_everything_that_waits(engine: ServedEngine, tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    engine.respond = lambda request: None
    threads = threading.active_count()
    with served(tmp_path, engine) as (path, _):
        with connected(path) as remote:
            memory = remote.allocate(HALF)
            answers = [ask(remote, numbers(values)) for values in (SMALL, filled(LARGE))]
            until(lambda: len(engine._pending) == 1)
        for answer in answers:
            assert isinstance(answer.get().error, EngineGone)
        del memory  # the engine that it belonged to is gone
        until(lambda: engine.calls == [("cancel", "simple")])
    until(lambda: threading.active_count() <= threads)
    assert caplog.text == ""


def test_an_error_of_the_engine_is_an_answer(remote: RemoteEngine, engine: ServedEngine) -> None:
    def refuse(request: InferenceRequest) -> InferenceResponse:
        return InferenceResponse("simple", 1, [], id=request.id, error=ServerError("no"))

    engine.respond = refuse
    response = ask(remote, numbers(SMALL, id="an id")).get()
    assert (response.id, str(response.error)) == ("an id", "no")
    engine.respond = echo
    assert ask(remote, numbers(SMALL)).get().error is None
