"""One connection of a front end, to an engine that the test plays by hand."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from core.errors import InvalidRequest, OutOfMemory
from core.inference.request import InferenceRequest, InputTensor
from core.lifecycle.serving_phase import Phase, ServingPhase
from core.remote.calls.remote_error import EngineGone
from core.remote.calls.serialization import to_plain, write_plain
from core.remote.engine_state import EngineState
from core.remote.memory.tensor_block import LARGE
from core.remote.transport.connection import ENOUGH, LOST, Connection, NoRoom, gone
from core.remote.transport.frames import (
    CALL,
    CANCEL,
    HELLO,
    RELEASE,
    REQUEST,
    RESULT,
    STATE,
    TO_ENGINE,
    VERSION,
    BadFrame,
    FrameReader,
    frame,
)
from tests.unit.core.remote.connection_ends import HALF, MEMORY, Ends
from tests.unit.core.remote.remote_parts import SMALL, Answer, descriptors, filled, numbers


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    ends = Ends(tmp_path)
    yield ends
    ends.close()


# --- the greeting


def test_it_says_who_it_is(ends: Ends) -> None:
    assert ends.kind == HELLO
    assert orjson.loads(bytes(ends.greeting)) == [VERSION, HALF]
    assert ends.arena.size == MEMORY


def test_nobody_listens(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(OSError, match="No such file"):
        Connection(str(tmp_path / "nobody"), MEMORY, lambda state: None, lambda: None)
    assert descriptors() == before


def test_it_does_not_wait_where_many_others_do(tmp_path: Path) -> None:
    """The hub, and so every request, would wait with it."""
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


def test_memory_that_there_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "engine.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        before = descriptors()
        with pytest.raises(OutOfMemory, match="--http-worker-memory-bytes"):
            Connection(path, 1 << 60, lambda state: None, lambda: None)
        assert descriptors() == before


# --- memory


def test_memory_for_requests_lies_in_their_half_and_comes_back(ends: Ends) -> None:
    held = [ends.connection.allocate(HALF // 4) for _ in range(4)]
    assert all(each is not None for each in held)
    places = [ends.connection._arena.offset_of(each) for each in held if each is not None]
    assert sorted(place for place in places if place is not None) == [0, HALF // 4, HALF // 2, HALF * 3 // 4]
    assert ends.connection.allocate(1) is None
    view = memoryview(held.pop())  # type: ignore[arg-type]
    assert ends.connection.allocate(1) is None
    del view
    assert ends.connection.allocate(HALF // 4) is not None


def test_there_is_none_when_the_engine_is_lost(ends: Ends) -> None:
    ends.connection.lose("gone")
    assert ends.connection.allocate(100) is None


# --- requests


def test_small_inputs_travel_in_the_frame(ends: Ends) -> None:
    ends.submit(numbers(SMALL, id="an id"))
    _, request, placed = ends.next_request()
    assert (request.id, placed) == ("an id", 0)
    assert bytes(request.inputs[0].data) == SMALL.tobytes()


def test_a_large_input_is_copied_into_the_arena_and_its_place_kept_until_the_answer(ends: Ends) -> None:
    answer = ends.submit(numbers(filled(HALF, 7)))
    number, request, placed = ends.next_request()
    assert placed == 1
    assert (np.frombuffer(request.inputs[0].data, np.int32) == 7).all()
    assert ends.connection.allocate(1) is None
    ends.answer(number, final=False)
    assert ends.connection.allocate(1) is None
    ends.answer(number)
    assert answer.is_there
    assert ends.connection.allocate(HALF) is not None


def test_what_was_received_into_the_arena_is_not_copied(ends: Ends) -> None:
    memory = ends.connection.allocate(3 * LARGE)
    assert memory is not None
    body = memory.data
    memory[:] = 5
    inputs = [InputTensor("A", "UINT8", (LARGE,), body[10 : 10 + LARGE]), InputTensor("B", "UINT8", (9,), body[:9])]
    used = ends.connection._slots.used
    ends.submit(InferenceRequest("simple", inputs))
    assert ends.connection._slots.used == used
    _, request, placed = ends.next_request()
    assert placed == 1
    memory[10] = 6
    assert list(bytes(request.inputs[0].data)[:2]) == [6, 5]
    assert bytes(request.inputs[1].data) == b"\5" * 9


def test_an_input_that_never_has_room_goes_through_the_socket(ends: Ends) -> None:
    values = filled(HALF + 4, 3)
    ends.submit(numbers(values))
    received = b""
    while len(received) < values.nbytes:
        ends.connection.flush()
        received += ends.sock.recv(1 << 20)
    assert received.count(b"\3\0\0\0") == len(values)


def test_no_room_now(ends: Ends) -> None:
    memory = ends.connection.allocate(HALF)
    inputs = [InputTensor(name, "INT32", (LARGE // 4,), filled(LARGE)) for name in "AB"]
    with pytest.raises(NoRoom):
        ends.submit(InferenceRequest("simple", inputs))
    del memory
    assert ends.connection.allocate(HALF) is not None  # nor does it keep what it had found


def test_what_cannot_be_said(ends: Ends) -> None:
    request = numbers(SMALL)
    request.parameters = {"p": object()}  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest):
        ends.submit(request)
    ends.submit(numbers(SMALL))
    assert ends.next()[0] == REQUEST


def test_cancel(ends: Ends) -> None:
    ends.connection.cancel(Answer(numbers(SMALL)).pending)  # it was never submitted
    pending = ends.submit(numbers(SMALL)).pending
    number, _, _ = ends.next_request()
    ends.connection.cancel(pending)
    assert ends.next()[::3] == (CANCEL, number)
    ends.answer(number)
    ends.connection.cancel(pending)  # it is answered
    ends.connection.call(b"[]", lambda content: None)
    assert ends.next()[0] == CALL


def test_what_the_socket_does_not_take_is_sent_later_in_order(ends: Ends) -> None:
    count = 200
    for value in range(count):
        ends.submit(numbers(filled(LARGE - 4, value)))
    ends.connection.flush()
    assert ends.connection.wants_to_write
    found = [ends.next_request() for _ in range(count)]
    assert [int.from_bytes(request.inputs[0].data[:4], "little") for _, request, _ in found] == list(range(count))
    assert not ends.connection.wants_to_write


def test_many_are_sent_before_the_link_is_asked_to(ends: Ends) -> None:
    for _ in range(ENOUGH - 1):
        ends.submit(numbers(SMALL))
    ends.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        ends.sock.recv(1)
    ends.submit(numbers(SMALL))
    ends.submit(numbers(SMALL))
    sent = FrameReader(TO_ENGINE).feed(ends.sock.recv(1 << 20))
    assert [kind for kind, *_ in sent] == [REQUEST] * ENOUGH
    assert ends.wakes == ENOUGH + 1


def test_many_for_an_engine_that_has_gone(ends: Ends) -> None:
    ends.sock.close()
    answers = [ends.submit(numbers(SMALL)) for _ in range(ENOUGH)]
    assert not any(answer.responses for answer in answers)
    with pytest.raises(OSError):  # noqa: PT011 - whichever of them comes first
        ends.connection.read()
    ends.connection.lose("it ended")
    assert all(isinstance(answer.get().error, EngineGone) for answer in answers)


# --- what comes


def test_answers_find_their_requests(ends: Ends) -> None:
    answers = [ends.submit(numbers(SMALL, id=str(index))) for index in range(3)]
    numbered = [ends.next_request()[0] for _ in range(3)]
    for index in (2, 0, 1):
        ends.answer(numbered[index], SMALL + index)
    for index, answer in enumerate(answers):
        response = answer.get()
        assert (response.id, response.outputs[0].array.tolist()) == (str(index), (SMALL + index).tolist())


def test_many_answers_to_one_request(ends: Ends) -> None:
    answer = ends.submit(numbers(SMALL))
    number, _, _ = ends.next_request()
    for final in (False, False, True):
        ends.answer(number, SMALL, final=final)
    assert [response.final for response in answer.responses] == [False, False, True]


def test_the_memory_of_a_response_goes_back_when_nobody_has_it(ends: Ends) -> None:
    answer = ends.submit(numbers(SMALL))
    number, _, _ = ends.next_request()
    values = filled(LARGE, 9)
    ends.arena.view(HALF, LARGE)[:] = values.view(np.uint8)
    ends.answer(number, values, HALF)
    (output,) = answer.responses.pop().outputs
    assert output.array.tolist() == values.tolist()
    view = output.content()
    wakes = ends.wakes
    del output
    assert ends.wakes == wakes
    del view
    assert ends.wakes == wakes + 1
    assert ends.next()[::3] == (RELEASE, HALF)


def test_state_and_results(ends: Ends) -> None:
    state = EngineState(live=True, ready=True, generation=3, phase=ServingPhase(name=Phase.READY))
    ends.give(frame(STATE, 0, (write_plain(to_plain(state)),)))
    assert ends.states == [state]
    results: list[Any] = []
    number = ends.connection.call(b"[1]", results.append)
    assert ends.next()[::3] == (CALL, number)
    ends.give(frame(RESULT, number + 1, (b"nobody waits for it",)))
    ends.give(frame(RESULT, number, (b"true",)))
    ends.give(frame(RESULT, number, (b"a second time",)))
    assert [bytes(result).rstrip() for result in results] == [b"true"]


def test_a_result_that_nobody_waits_for_any_more(ends: Ends) -> None:
    results: list[Any] = []
    number = ends.connection.call(b"[1]", results.append)
    ends.connection.forget(number)
    ends.give(frame(RESULT, number, (b"true",)))
    assert results == []


@pytest.mark.parametrize("content", [b"x" * 16, frame(REQUEST, 1), frame(STATE, 0, (b"{}",)), frame(17, 99)])
def test_what_no_engine_sends(ends: Ends, content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - BadFrame, or what reads the content
        ends.give(content)


def test_a_response_outside_of_the_arena(ends: Ends) -> None:
    ends.submit(numbers(SMALL))
    number, _, _ = ends.next_request()
    with pytest.raises(BadFrame):
        ends.answer(number, filled(LARGE), MEMORY)


def test_the_end_is_an_error(ends: Ends) -> None:
    ends.sock.close()
    with pytest.raises(OSError, match="closed"):
        ends.connection.read()


# --- its loss


def test_whoever_waits_is_told(ends: Ends) -> None:
    answers = [ends.submit(numbers(SMALL)) for _ in range(3)]
    results: list[Any] = []
    ends.connection.call(b"[1]", results.append)
    ends.connection.lose("it has ended")
    for answer in answers:
        error = answer.get().error
        assert isinstance(error, EngineGone)
        assert "it has ended" in error.message
    assert results == [LOST]


def test_whoever_comes_later_is_told_too(ends: Ends) -> None:
    ends.connection.lose("gone")
    with pytest.raises(EngineGone):
        ends.submit(numbers(SMALL))
    results: list[Any] = []
    ends.connection.call(b"[1]", results.append)
    assert results == [LOST]
    ends.connection.flush()
    assert ends.connection._pending == {}


def test_its_memory_goes_when_nobody_has_it(tmp_path: Path) -> None:
    before = descriptors()
    ends = Ends(tmp_path)
    body = ends.connection.allocate(LARGE)
    assert body is not None
    body[:] = 5
    wakes = ends.wakes
    ends.close()
    assert (body == 5).all()  # whoever still reads it may
    del body
    assert ends.wakes == wakes  # the engine that it could be told to is gone
    assert descriptors() == before


def test_the_response_to_a_request_that_has_no_engine() -> None:
    response = gone(InferenceRequest("m", [], model_version=3, id="an id"), "it has ended")
    assert (response.id, response.model_name, response.model_version, response.final) == ("an id", "m", 3, True)
    assert response.error is not None
    assert response.error.hint is not None
