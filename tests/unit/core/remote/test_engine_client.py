"""The engine as a front end has it, and its loss."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
    descriptors,
    filled,
    numbers,
    served,
)
from tests.unit.core.scheduling.scheduler_bench import described, later_benches, text
from tests.unit.fake_engine import identity_spec
from tests.waiting import until
from trident.core.errors import ModelNotFound, QueueFull, RequestCancelled
from trident.core.frontend.bridge import ThreadBridge
from trident.core.inference.pending_request import PendingRequest, StreamedRequest
from trident.core.inference.request import InferenceRequest
from trident.core.interprocess.frames import LARGE, Frame, FrameReader
from trident.core.lifecycle.state import Phase, ServingPhase
from trident.core.observability.statistics import MetricsSnapshot
from trident.core.options import WindowLimits
from trident.core.remote import engine_client as engine_client
from trident.core.remote.calls import EngineGone
from trident.core.remote.connection import EngineConnection
from trident.core.remote.engine_client import RemoteEngine
from trident.core.remote.wire import ACK, HELLO, REQUEST, TO_ENGINE


@pytest.fixture
def engine() -> ServedEngine:
    return ServedEngine()


@pytest.fixture
def remote(engine: ServedEngine, tmp_path: Path) -> Iterator[RemoteEngine]:
    with served(tmp_path, engine) as (path, _), connected(path) as remote:
        yield remote


# --- the protocol


def test_model_lookup_is_cached_per_generation(remote: RemoteEngine, engine: ServedEngine) -> None:
    held = remote.hold_version("simple")  # a number that may mean another version after its release
    assert remote.model("simple").spec.version == remote.model("simple", held).spec.version == 3
    engine.versions["simple"] = (1, 3, 4)
    assert (remote.model("simple").spec.version, remote.model("simple", held).spec.version) == (3, 4)
    engine.generation += 1
    until(lambda: remote.model("simple").spec.version == 4)
    assert remote.model("simple", 1).spec == identity_spec("simple", 1)


def test_health_is_answered_without_a_call(remote: RemoteEngine, engine: ServedEngine) -> None:
    assert (remote.is_live(), remote.is_ready(), remote.phase()) == (True, True, engine.serving)
    engine.ready = False
    engine.serving = ServingPhase(name=Phase.LOADING, model="simple", failures={"bad": "why"})
    until(lambda: not remote.is_ready())
    assert remote.phase() == engine.serving
    remote.begin_exit()
    assert (remote.is_live(), remote.is_ready(), remote.phase().name) == (False, False, Phase.EXITING)
    assert ask(remote, numbers(SMALL)).get().error is None


def test_connecting_does_not_block_on_a_full_backlog(tmp_path: Path) -> None:
    """It would block the hub, and so every request."""
    path = str(tmp_path / "busy")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        first = EngineConnection(path, SHARED, lambda state: None, lambda: None)
        before = descriptors()
        with pytest.raises(BlockingIOError):
            EngineConnection(path, SHARED, lambda state: None, lambda: None)
        assert descriptors() == before
        first.lose("the test is over")


# --- requests


def test_acknowledgements_are_added_until_they_are_sent(tmp_path: Path) -> None:
    path = str(tmp_path / "engine")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        connection = EngineConnection(path, SHARED, lambda state: None, lambda: None)
        pending = StreamedRequest(numbers(SMALL), lambda response: None)
        connection.submit(pending)
        for count in (1, 2):
            assert pending.on_take is not None
            pending.on_take(pending, count)
        connection.flush()
        peer, _ = listener.accept()
        reader, frames = FrameReader(TO_ENGINE, "peer"), list[Frame]()
        with peer:
            while len(frames) < 3:
                frames += reader.receive(peer)
        connection.lose("the test is over")
    assert [(kind, number) for kind, _, _, number, _ in frames] == [(HELLO, 0), (REQUEST, 1), (ACK, 1)]
    assert int(bytes(frames[-1][4])) == 3


@pytest.mark.parametrize("size", [0, 4, LARGE - 4, LARGE, HALF, HALF + 4, 8 * SHARED])
def test_tensors_of_any_size_are_echoed(remote: RemoteEngine, size: int) -> None:
    """In a frame, in shared memory, and too large for shared memory."""
    values = np.arange(size // 4, dtype=np.int32)
    for _ in range(3):
        response = ask(remote, numbers(values, id="an id")).get()
        assert response.error is None, response.error
        assert response.id == "an id"
        assert (response.outputs[0].array == values).all()


def test_slow_reader_pauses_its_model(tmp_path: Path) -> None:
    class Streaming(ServedEngine):
        def submit(self, pending: PendingRequest) -> None:
            pending.on_cancel = None
            bench.scheduler.submit(pending)

    with later_benches() as make, served(tmp_path, Streaming()) as (path, _), connected(path) as remote:
        bench = make(window=WindowLimits(responses=2))
        stream = ThreadBridge().stream(remote.model("simple"), InferenceRequest("simple", [], id="a"))
        sender = bench.backend.sender("a")
        room = threading.Event()
        sender.watch(room.set)
        sender.send(text("1"))
        sender.send(text("2"))
        assert sender.is_full
        assert [described(next(stream)), described(next(stream))] == ["a:1", "a:2"]  # the second one takes the first
        assert room.wait(LIMIT_S)
        assert not sender.is_full
        room.clear()
        stream.cancel()
        assert room.wait(LIMIT_S)
        assert sender.is_cancelled
        sender.send(None, final=True)


# --- room in shared memory


def test_request_waits_for_shared_memory(remote: RemoteEngine) -> None:
    memory = remote.allocate(HALF)
    assert memory is not None
    assert remote.allocate(1) is None
    answers = [ask(remote, numbers(filled(HALF // 2, value))) for value in range(4)]
    small, cancelled = ask(remote, numbers(SMALL)), ask(remote, numbers(filled(LARGE)))
    assert small.get().error is None  # it needs no shared memory
    cancelled.pending.cancel()
    assert not any(answer.is_there for answer in answers)
    del memory
    assert isinstance(cancelled.get().error, RequestCancelled)
    for value, answer in enumerate(answers):
        response = answer.get()
        assert response.error is None
        assert response.outputs[0].array[0] == value


def test_request_that_waits_too_long_for_shared_memory_fails(
    remote: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_client, "_MEMORY_SECONDS", 0.05)
    memory = remote.allocate(HALF)
    error = ask(remote, numbers(filled(LARGE))).get().error
    assert isinstance(error, QueueFull)
    assert "no space for the tensors within 0.05 s" in error.message
    assert error.hint is not None
    assert "--http-worker-memory-bytes" in error.hint
    del memory
    assert ask(remote, numbers(filled(LARGE))).get().error is None


# --- without an engine


def test_a_model_that_the_next_engine_has_not_loaded_yet_is_unavailable(engine: ServedEngine, tmp_path: Path) -> None:
    """A client that is told that the model does not exist would not ask again."""
    with served(tmp_path, engine) as (path, server), connected(path) as remote:
        with pytest.raises(ModelNotFound):
            remote.model("other")
        model = remote.model("simple")
        server.stop()
        until(lambda: not remote.is_ready())
        late = Answer(numbers(SMALL))
        model.submit(late.pending)
        assert isinstance(late.get().error, EngineGone)
        (tmp_path / "engine.sock").unlink()
        following = ServedEngine()
        following.versions = {}
        following.ready = False
        following.serving = ServingPhase(name=Phase.LOADING)
        with served(tmp_path, following):
            until(lambda: remote.phase().name == Phase.LOADING)
            for call in (remote.model, remote.is_model_ready, remote.model_config):
                with pytest.raises(EngineGone, match="'simple' is not loaded yet"):
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
        with pytest.raises(EngineGone, match=r"no answer to 'metrics' within 0.05 seconds"):
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
        with connected(path, ready=False) as remote:
            for count, nonsense in enumerate((b"nonsense" * 2, b"\0\0\0\0\x10\0\0\0" + bytes(8)), 1):
                sock, _ = listener.accept()
                with sock:
                    sock.sendall(nonsense)
                    until(lambda: caplog.text.count("disconnecting the engine") == count)  # noqa: B023
                    until(lambda: remote.phase().failures == {"engine": "its message could not be read"})


def test_missing_memory_is_logged_once(engine: ServedEngine, tmp_path: Path, caplog: Any) -> None:
    with served(tmp_path, engine) as (path, _), connected(path, 1 << 60, ready=False) as remote:
        until(lambda: "--http-worker-memory-bytes" in remote.phase().failures["engine"])
        with pytest.raises(EngineGone, match="--http-worker-memory-bytes"):
            remote.model("simple")
        assert not remote.is_ready()
    assert caplog.text.count("cannot connect to the engine") == 1


def test_close_answers_all_waiting_requests(engine: ServedEngine, tmp_path: Path, caplog: Any) -> None:
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
