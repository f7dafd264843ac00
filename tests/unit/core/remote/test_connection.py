"""One connection of a front end to an engine that the test plays by hand, and the link with a thread of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.core.remote.remote_parts import LIMIT_S, PAGE, SMALL, Answer, descriptors, filled, numbers
from trident.core.errors import InvalidRequest, OutOfMemory
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import Array
from trident.core.interprocess.frames import LARGE, BadFrame, Frame, FrameReader, frame, released_offsets
from trident.core.interprocess.shared_memory import SharedMemory
from trident.core.remote.calls import EngineGone, EngineState
from trident.core.remote.connection import ENOUGH, LOST, Connection
from trident.core.remote.wire import (
    RELEASE,
    REQUEST,
    RESULT,
    TO_ENGINE,
    RequestReader,
    ResponseWriter,
)

MEMORY = 128 * PAGE
HALF = MEMORY // 2


class Ends:
    """A connection, and the engine's end of it. Everything runs on the test's thread."""

    def __init__(self, folder: Path, memory_bytes: int = MEMORY) -> None:
        path = str(folder / "engine.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen()
        self.states: list[EngineState] = []
        self.wakes = 0
        self.connection = Connection(path, memory_bytes, self.states.append, self._wake)
        self.sock, _ = self.listener.accept()
        self.sock.settimeout(LIMIT_S)
        self._reader = FrameReader(TO_ENGINE, "peer")
        content, (descriptor,), _, _ = socket.recv_fds(self.sock, 4096, 4)
        ((self.kind, _, _, _, self.greeting),) = self._reader.feed(content)
        self.shared_memory = SharedMemory.attach(descriptor)
        self._frames: list[Frame] = []
        self._requests = RequestReader(lambda offset, size: self.shared_memory.view(offset, size).data)

    def _wake(self) -> None:
        self.wakes += 1

    def next(self) -> Frame:
        """The next frame that the connection has sent."""
        self.connection.flush()
        while not self._frames:
            self._frames = self._reader.feed(self.sock.recv(1 << 20))
        return self._frames.pop(0)

    def next_request(self) -> tuple[int, InferenceRequest, int]:
        """The next request: its number, the request, and how many of its inputs are in shared memory."""
        kind, _, shared, number, content = self.next()
        assert kind == REQUEST
        return number, self._requests.read(content, shared), shared

    def give(self, content: bytes) -> None:
        """Send `content` as the engine, and let the connection read it."""
        self.sock.sendall(content)
        self.connection.read()

    def answer(
        self, number: int, values: Array | None = None, offset: int | None = None, *, final: bool = True
    ) -> None:
        outputs = [] if values is None else [OutputTensor("OUT", "INT32", values.shape, values)]
        response = InferenceResponse("simple", 1, outputs, final=final)
        self.give(ResponseWriter(lambda content: offset).write(response, number))

    def submit(self, request: InferenceRequest) -> Answer:
        answer = Answer(request)
        self.connection.submit(answer.pending)
        return answer

    def close(self) -> None:
        self.connection.lose("the test is over")
        self.shared_memory.close()
        self.sock.close()
        self.listener.close()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    ends = Ends(tmp_path)
    yield ends
    ends.close()


# --- the greeting


def test_connecting_does_not_block_on_a_full_backlog(tmp_path: Path) -> None:
    """It would block the hub, and so every request."""
    path = str(tmp_path / "busy")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        first = Connection(path, MEMORY, lambda state: None, lambda: None)
        before = descriptors()
        with pytest.raises(BlockingIOError):
            Connection(path, MEMORY, lambda state: None, lambda: None)
        assert descriptors() == before
        first.lose("the test is over")


def test_connecting_fails_without_memory(tmp_path: Path) -> None:
    path = str(tmp_path / "engine.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        before = descriptors()
        with pytest.raises(OutOfMemory, match="--http-worker-memory-bytes"):
            Connection(path, 1 << 60, lambda state: None, lambda: None)
        assert descriptors() == before


# --- memory


def test_a_lost_connection_gives_no_memory(ends: Ends) -> None:
    ends.connection.lose("gone")
    assert ends.connection.allocate(100) is None


# --- requests


def test_a_large_input_stays_in_shared_memory_until_the_answer(ends: Ends) -> None:
    answer = ends.submit(numbers(filled(HALF, 7)))
    number, request, shared = ends.next_request()
    assert shared == 1
    assert (np.frombuffer(request.inputs[0].data, np.int32) == 7).all()
    assert ends.connection.allocate(1) is None
    ends.answer(number, final=False)
    assert ends.connection.allocate(1) is None
    ends.answer(number)
    assert answer.is_there
    assert ends.connection.allocate(HALF) is not None


def test_an_input_that_was_received_into_shared_memory_is_not_copied(ends: Ends) -> None:
    memory = ends.connection.allocate(3 * LARGE)
    assert memory is not None
    body = memory.data
    memory[:] = 5
    inputs = [InputTensor("A", "UINT8", (LARGE,), body[10 : 10 + LARGE]), InputTensor("B", "UINT8", (9,), body[:9])]
    used = ends.connection._memory.pages.used
    ends.submit(InferenceRequest("simple", inputs))
    assert ends.connection._memory.pages.used == used
    _, request, shared = ends.next_request()
    assert shared == 1
    memory[10] = 6
    assert list(bytes(request.inputs[0].data)[:2]) == [6, 5]
    assert bytes(request.inputs[1].data) == b"\5" * 9


def test_submit_refuses_a_parameter_that_json_cannot_hold(ends: Ends) -> None:
    request = numbers(SMALL)
    request.parameters = {"p": object()}  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest):
        ends.submit(request)
    ends.submit(numbers(SMALL))
    assert ends.next()[0] == REQUEST


def test_requests_that_the_socket_does_not_take_are_sent_later_in_order(ends: Ends) -> None:
    count = 200
    for value in range(count):
        ends.submit(numbers(filled(LARGE - 4, value)))
    ends.connection.flush()
    assert ends.connection.wants_to_write
    found = [ends.next_request() for _ in range(count)]
    assert [int.from_bytes(request.inputs[0].data[:4], "little") for _, request, _ in found] == list(range(count))
    assert not ends.connection.wants_to_write


def test_many_requests_are_sent_without_the_link(ends: Ends) -> None:
    for _ in range(ENOUGH - 1):
        ends.submit(numbers(SMALL))
    ends.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        ends.sock.recv(1)
    ends.submit(numbers(SMALL))
    ends.submit(numbers(SMALL))
    sent = FrameReader(TO_ENGINE, "peer").feed(ends.sock.recv(1 << 20))
    assert [kind for kind, *_ in sent] == [REQUEST] * ENOUGH
    assert ends.wakes == ENOUGH + 1


def test_many_requests_for_a_lost_engine_do_not_raise(ends: Ends) -> None:
    ends.sock.close()
    answers = [ends.submit(numbers(SMALL)) for _ in range(ENOUGH)]
    assert not any(answer.responses for answer in answers)
    with pytest.raises(OSError):  # noqa: PT011 - whichever error is first
        ends.connection.read()
    ends.connection.lose("it ended")
    assert all(isinstance(answer.get().error, EngineGone) for answer in answers)


# --- from the engine


def test_the_memory_of_a_response_is_released_with_its_last_view(ends: Ends) -> None:
    answer = ends.submit(numbers(SMALL))
    number, _, _ = ends.next_request()
    values = filled(LARGE, 9)
    ends.shared_memory.view(HALF, LARGE)[:] = values.view(np.uint8)
    ends.answer(number, values, HALF)
    (output,) = answer.responses.pop().outputs
    assert output.array.tolist() == values.tolist()
    view = output.content()
    wakes = ends.wakes
    del output
    assert ends.wakes == wakes
    del view
    assert ends.wakes == wakes + 1
    kind, _, _, count, content = ends.next()
    assert (kind, released_offsets(content, count)) == (RELEASE, [HALF])


def test_a_forgotten_call_ignores_its_result(ends: Ends) -> None:
    results: list[Any] = []
    number = ends.connection.call(b"[1]", results.append)
    ends.connection.forget(number)
    ends.give(frame(RESULT, number, (b"true",)))
    assert results == []


@pytest.mark.parametrize("content", [b"x" * 16, frame(REQUEST, 1), frame(17, 99)])
def test_malformed_frames_of_the_engine_are_refused(ends: Ends, content: bytes) -> None:
    with pytest.raises(BadFrame):
        ends.give(content)


def test_a_response_outside_the_shared_memory_is_refused(ends: Ends) -> None:
    ends.submit(numbers(SMALL))
    number, _, _ = ends.next_request()
    with pytest.raises(BadFrame):
        ends.answer(number, filled(LARGE), MEMORY)


# --- its loss


def test_requests_and_calls_after_the_loss_fail(ends: Ends) -> None:
    ends.connection.lose("gone")
    with pytest.raises(EngineGone):
        ends.submit(numbers(SMALL))
    results: list[Any] = []
    ends.connection.call(b"[1]", results.append)
    assert results == [LOST]
    ends.connection.flush()
    assert ends.connection._pending == {}


def test_the_memory_of_a_lost_connection_is_freed_with_its_last_view(tmp_path: Path) -> None:
    before = descriptors()
    ends = Ends(tmp_path)
    body = ends.connection.allocate(LARGE)
    assert body is not None
    body[:] = 5
    wakes = ends.wakes
    ends.close()
    assert (body == 5).all()  # it can still be read
    del body
    assert ends.wakes == wakes  # there is no engine to release it to
    assert descriptors() == before
