"""The engine's end of the socket: bad front ends, the state that it sends, its end, and one front end as it sees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tests.unit.core.remote.remote_parts import (
    SMALL,
    ByHand,
    ServedEngine,
    assert_served,
    connected,
    descriptors,
    echo,
    numbers,
    sealed_memory,
    served,
)
from tests.waiting import until
from trident.core.errors import ModelLoadFailed
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import Buffer, pack_bytes
from trident.core.interprocess.frames import Frame, frame, release_frame
from trident.core.lifecycle.state import Phase, ServingPhase
from trident.core.remote import engine_server as engine_server
from trident.core.remote.calls import (
    CALLS,
    EngineState,
    decode_result,
    encode_call,
    from_plain,
    read_plain,
)
from trident.core.remote.changes import ControlChange
from trident.core.remote.engine_client import RemoteEngine
from trident.core.remote.engine_server import FrontEndConnection
from trident.core.remote.wire import (
    CALL,
    CANCEL,
    RELEASE,
    REQUEST,
    RESULT,
    STATE,
    block_head,
    write_request,
)

META: list[Any] = ["simple", -1, [], 0, 0, 0, False, False, None, [["IN", "INT32", [4], 16, False]]]


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


def request_of(meta: object) -> bytes:
    return frame(REQUEST, 1, (block_head(orjson.dumps(meta)), SMALL.tobytes()))


# --- refusals


SEALED, CAN_SHRINK = fcntl.F_SEAL_SHRINK, 0
NOT_GREETED = None


@pytest.mark.parametrize(
    ("seals", "content"),
    [
        (CAN_SHRINK, b""),
        (NOT_GREETED, random.Random(1).randbytes(1000)),
        (NOT_GREETED, request_of(META)),
        (SEALED, frame(STATE, 1, (b"{}",))),
        (SEALED, release_frame(RELEASE, [4096])),
        (SEALED, frame(REQUEST, 1, (block_head(b"{]"),))),
        (SEALED, frame(CALL, 1, (b'["__init__",[]]',))),
    ],
    ids=["memory can shrink", "garbage", "no greeting", "the engine's", "unknown release", "no JSON", "unknown call"],
)
def test_malformed_front_end_is_disconnected_and_the_others_are_served(
    path: str, neighbour: RemoteEngine, seals: int | None, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    before = descriptors()
    with ByHand.at(path) as hand:
        if seals is not NOT_GREETED:
            hand.send_hello([sealed_memory(seals=seals)])
        if content:
            hand.send(content)
        assert hand.is_cut_off()
        until(lambda: "disconnecting a front end" in caplog.text)
    until(lambda: descriptors() == before)


def test_randomly_changed_frames_affect_no_other_front_end(path: str, neighbour: RemoteEngine) -> None:
    """Each changed frame is served, or its sender is disconnected."""
    choice = random.Random(3)
    good = [
        write_request(numbers(SMALL, id="an id"), 1, lambda content: None),
        frame(CALL, 2, (encode_call("model_spec", ["simple", -1]),)),
        release_frame(RELEASE, [4096]),
    ]
    for _ in range(300):
        bad = bytearray(choice.choice(good))
        for _ in range(choice.randint(1, 4)):
            bad[choice.randrange(len(bad))] = choice.randrange(256)
        with ByHand.at(path).greet() as hand, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            hand.send(bad)
    assert_served(neighbour)


def test_front_end_with_unread_answers_is_not_read(engine: ServedEngine, tmp_path: Path) -> None:
    served_requests: list[str] = []

    def respond(request: InferenceRequest) -> InferenceResponse:
        served_requests.append(request.id)
        array = np.zeros(5000, np.int32)
        return InferenceResponse("simple", 1, [OutputTensor("OUT", "INT32", array.shape, array)], id=request.id)

    with served(tmp_path, engine) as (path, _), connected(path) as neighbour:
        engine.respond = respond
        with ByHand.at(path).greet() as hand:
            hand.sock.settimeout(0.1)
            sent = 0
            with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
                for number in range(100_000):
                    hand.send(write_request(numbers(SMALL, id="greedy"), number, lambda content: None))
                    sent += 1
            # Only the requests that were read before the socket was full are answered.
            assert sent < 100_000
            assert served_requests.count("greedy") < 5000
        engine.respond = echo
        assert_served(neighbour)


STRANGER = """
import os, socket, sys
os.setuid(65534)
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
print(sock.recv(1) == b"")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_connection_of_another_user_is_refused(engine: ServedEngine, caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), engine) as (path, _):
        os.chmod(folder, 0o755)
        os.chmod(path, 0o777)
        command = [sys.executable, "-I", "-c", STRANGER, path]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/")
    assert ended.stdout == "True\n", ended.stderr
    assert "refusing a connection of user 65534" in caplog.text


def state_in(found: Frame) -> EngineState:
    state: EngineState = from_plain(read_plain(found[4]), EngineState)
    return state


# --- states


def test_change_is_noted_and_sent_before_its_result(engine: ServedEngine, tmp_path: Path) -> None:
    """A client that asks after the result must not see the state before it."""
    arguments: dict[str, list[Any]] = {
        "load_model": ["simple", {"config": "{}", "file:1/model.onnx": b"\0\xff"}],
        "load_directory": ["simple", "/models/simple", "/models"],
        "unload_model": ["simple", False, True],
    }
    noted: list[ControlChange] = []

    def changed(change: ControlChange) -> None:
        engine.generation += 1
        noted.append(change)

    with served(tmp_path, engine, on_change=changed) as (path, _), ByHand.at(path).greet() as hand:
        assert state_in(hand.next()).generation == 1
        for generation, (call, given) in enumerate(arguments.items(), 2):
            hand.send(frame(CALL, 5, (encode_call(call, given),)))
            assert state_in(hand.next()).generation == generation
            kind, _, _, number, content = hand.next()
            assert (kind, number) == (RESULT, 5)
            assert decode_result(CALLS[call], content) is None
            assert noted.pop() == ControlChange(CALLS[call], given)
        engine.refusal = ModelLoadFailed("no")
        hand.send(frame(CALL, 6, (encode_call("load_model", ["simple", {}]),)))
        with pytest.raises(ModelLoadFailed, match="no"):
            decode_result(CALLS["load_model"], hand.next()[4])
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


def test_stop_sends_collected_frames(engine: ServedEngine, tmp_path: Path) -> None:
    with served(tmp_path, engine) as (path, server), ByHand.at(path).greet() as hand:
        state_in(hand.next())
        engine.live = False
        server.push_state()
        server.stop()
        assert not state_in(hand.next()).live
        assert hand.is_cut_off()


def test_accepting_resumes_after_descriptors_run_out(
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
    assert caplog.text.count("cannot accept a front end") == 3


class Pair:
    """One front end as the engine sees it, and the other end of its socket. Everything runs on the test's thread."""

    def __init__(self, engine: ServedEngine | None = None) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.engine = engine or ServedEngine()
        self.elsewhere: list[Callable[[], None]] = []
        self.front_end = FrontEndConnection(ours, self.engine, lambda *_: None, lambda *_: None, self.elsewhere.append)
        self.hand = ByHand(theirs).greet()
        assert self.front_end.read()

    def give(self, content: Buffer) -> None:
        """Send from the other end, and read it here."""
        self.hand.send(content)
        assert self.front_end.read()

    def ask_strings(self, number: int, count: int, **fields: Any) -> None:
        content = memoryview(pack_bytes([b"text"] * count))
        request = InferenceRequest("simple", [InputTensor("IN", "BYTES", (count,), content)], **fields)
        self.give(write_request(request, number, lambda content: None))

    def close(self) -> None:
        self.front_end.close()
        self.hand.sock.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_request_with_many_strings_does_not_block_others() -> None:
    asked: list[InferenceRequest] = []
    pair = Pair(ServedEngine(asked.append))
    pair.ask_strings(1, 20_000)
    pair.ask_strings(2, 20)
    pair.ask_strings(3, 20_000, correlation_id=7, sequence_start=True)
    assert [request.inputs[0].shape for request in asked] == [(20,), (20_000,)]
    assert asked[1].correlation_id == 7  # a sequence stays in its order
    (submit,) = pair.elsewhere
    submit()
    assert asked[2].inputs[0].shape == (20_000,)
    pair.give(frame(CANCEL, 1))
    assert pair.engine.cancelled == [asked[2]]
    pair.close()
