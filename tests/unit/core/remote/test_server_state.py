"""The state that the engine sends to all front ends, and the end of the server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.core.remote.remote_parts import (
    SMALL,
    ByHand,
    ServedEngine,
    assert_served,
    connected,
    descriptors,
    numbers,
    served,
)
from tests.waiting import until
from trident.core.errors import ModelLoadFailed
from trident.core.interprocess.frames import Frame, frame
from trident.core.lifecycle.state import IndexEntry, ModelState, Phase, ServingPhase
from trident.core.remote.calls import CALLS, decode_result, encode_call, from_plain, read_plain
from trident.core.remote.control_log import Change
from trident.core.remote.engine_client import RemoteEngine
from trident.core.remote.engine_server import EngineState
from trident.core.remote.infer_frames import RequestWriter
from trident.core.remote.wire import CALL, RESULT, STATE


@pytest.fixture
def engine() -> ServedEngine:
    return ServedEngine()


@pytest.fixture
def path(engine: ServedEngine, tmp_path: Path) -> Iterator[str]:
    with served(tmp_path, engine) as (path, _):
        yield path


@pytest.fixture
def neighbour(path: str) -> Iterator[RemoteEngine]:
    """A front end without faults, which must be served before and after each test."""
    with connected(path) as remote:
        assert_served(remote)
        yield remote
        assert_served(remote)


def state_in(found: Frame) -> EngineState:
    state: EngineState = from_plain(read_plain(found[4]), EngineState)
    return state


# --- states


def test_all_front_ends_learn_of_a_change(path: str, engine: ServedEngine, tmp_path: Path) -> None:
    with ByHand.at(path).greet() as first, ByHand.at(path).greet() as second:
        for hand in (first, second):
            assert state_in(hand.next()).ready
        engine.ready = False
        engine.serving = ServingPhase(name=Phase.LOADING, model="simple", done=1, total=2)
        for hand in (first, second):
            state = state_in(hand.next())
            while state.phase.name != Phase.LOADING:
                state = state_in(hand.next())
        for hand in (first, second):
            engine.generation += 1
            while state_in(hand.next()).generation != engine.generation:
                pass


@pytest.mark.parametrize("call", ["load_model", "load_directory", "unload_model"])
def test_a_change_is_noted_and_sent_before_its_result(engine: ServedEngine, tmp_path: Path, call: str) -> None:
    """A client that asks after the result must not see the state before it."""
    arguments: dict[str, list[Any]] = {
        "load_model": ["simple", {"config": "{}", "file:1/model.onnx": b"\0\xff"}],
        "load_directory": ["simple", "/models/simple"],
        "unload_model": ["simple", False, True],
    }
    noted: list[Change] = []

    def changed(change: Change) -> None:
        engine.generation += 1
        noted.append(change)

    with served(tmp_path, engine, on_change=changed) as (path, _), ByHand.at(path).greet() as hand:
        assert state_in(hand.next()).generation == 1
        hand.send(frame(CALL, 5, (encode_call(call, arguments[call]),)))
        assert state_in(hand.next()).generation == 2
        kind, _, _, number, content = hand.next()
        assert (kind, number) == (RESULT, 5)
        assert decode_result(CALLS[call], content) is None
    assert noted == [Change(CALLS[call], arguments[call])]


def test_a_failed_change_is_not_noted(engine: ServedEngine, tmp_path: Path) -> None:
    engine.refusal = ModelLoadFailed("no")
    noted: list[Any] = []
    with served(tmp_path, engine, on_change=noted.append) as (path, _), connected(path) as one:
        with pytest.raises(ModelLoadFailed, match="no"):
            one.load_model("simple", {})
        assert one.repository_index(True) == [IndexEntry(name="simple", state=ModelState.READY)]
    assert noted == []


def test_the_server_is_not_ready_while_models_are_restored(engine: ServedEngine, tmp_path: Path) -> None:
    restored = threading.Event()
    server = served(tmp_path, engine, is_restoring=lambda: not restored.is_set())
    with server as (path, _), ByHand.at(path).greet() as hand:
        state = state_in(hand.next())
        assert (state.ready, state.phase.name) == (False, Phase.LOADING)
        restored.set()
        state = state_in(hand.next())
        assert (state.ready, state.phase.name) == (True, Phase.READY)


def test_the_server_is_not_ready_until_all_front_ends_have_connected(engine: ServedEngine, tmp_path: Path) -> None:
    """A client that one front end told that the server is ready may send its request to another."""
    with served(tmp_path, engine, expected=2) as (path, _), ByHand.at(path).greet() as first:
        state = state_in(first.next())
        assert (state.live, state.ready, state.phase.name) == (True, False, Phase.LOADING)
        with ByHand.at(path):  # it does not greet
            engine.generation += 1
            assert not state_in(first.next()).ready
        with ByHand.at(path).greet() as second:
            for hand in (first, second):
                while not (state := state_in(hand.next())).ready:
                    assert state.phase.name == Phase.LOADING
        with ByHand.at(path).greet() as third:  # a restarted one
            assert state_in(third.next()).ready


def test_a_missing_front_end_delays_readiness_for_a_limited_time(engine: ServedEngine, tmp_path: Path) -> None:
    with served(tmp_path, engine, expected=2, gathering_s=0.2) as (path, _), ByHand.at(path).greet() as hand:
        while not state_in(hand.next()).ready:
            pass


def test_an_older_state_never_follows_a_newer_one(engine: ServedEngine, tmp_path: Path) -> None:
    """Several threads read the state and send it; here one of them is slow in between."""
    with served(tmp_path, engine) as (path, server), ByHand.at(path).greet() as hand:
        state_in(hand.next())
        is_looking, may_tell = threading.Event(), threading.Event()
        phase = engine.phase

        def slow_phase() -> ServingPhase:
            if threading.current_thread() is slow:
                is_looking.set()
                assert may_tell.wait(30)
            return phase()

        engine.phase = slow_phase  # type: ignore[method-assign]
        slow = threading.Thread(target=server.push_state)
        engine.ready = False
        slow.start()
        assert is_looking.wait(30)
        engine.ready = True
        engine.generation = 5
        quick = threading.Thread(target=server.push_state)
        quick.start()
        may_tell.set()
        slow.join()
        quick.join()
        seen = []
        while not seen or seen[-1].generation != 5:
            seen.append(state_in(hand.next()))
        assert seen[-1].ready


# --- the end


def test_stop_closes_all_connections(engine: ServedEngine, tmp_path: Path) -> None:
    before = descriptors()
    threads = threading.active_count()
    engine.respond = lambda request: None
    with served(tmp_path, engine) as (path, _), ByHand.at(path).greet() as hand:
        state_in(hand.next())
        hand.send(RequestWriter().write(numbers(SMALL), 1, lambda content: None))
        until(lambda: engine._pending)
    assert engine.calls == [("cancel", "simple")]
    assert descriptors() == before
    until(lambda: threading.active_count() <= threads)


def test_stop_sends_what_waits(engine: ServedEngine, tmp_path: Path) -> None:
    with served(tmp_path, engine) as (path, server), ByHand.at(path).greet() as hand:
        state_in(hand.next())
        engine.live = False
        server.push_state()
        server.stop()
        assert not state_in(hand.next()).live
        assert hand.is_cut_off()


def test_the_server_accepts_again_when_it_has_descriptors(
    path: str, neighbour: RemoteEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = [0]
    accept = socket.socket.accept

    def no_descriptor(listener: socket.socket) -> Any:
        if refused[0] < 3:
            refused[0] += 1
            raise OSError(24, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", no_descriptor)
    with ByHand.at(path).greet() as hand:
        assert hand.next()[0] == STATE
    assert caplog.text.count("could not be accepted") == 3
