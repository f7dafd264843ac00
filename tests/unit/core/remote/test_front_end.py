"""One front end as the engine sees it, over a real socket."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.unit.core.remote.remote_parts import (
    PAGE,
    SHARED,
    SMALL,
    ByHand,
    ServedEngine,
    descriptors,
    numbers,
    sealed_memory,
)
from trident.core.errors import RequestCancelled
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.streaming import StreamedRequest
from trident.core.inference.tensors import Buffer, pack_bytes
from trident.core.interprocess.frames import LARGE, BadFrame, frame, release_frame
from trident.core.remote.front_end import FrontEnd
from trident.core.remote.wire import (
    ACK,
    CANCEL,
    FAILED,
    FINAL,
    RELEASE,
    RESPONSE,
    STREAMED,
    RequestWriter,
)


class Pair:
    """The engine's view of a front end, and the other end of its socket. Everything runs on the test's thread."""

    def __init__(self, engine: ServedEngine | None = None) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.engine = engine or ServedEngine()
        self.calls: list[tuple[int, bytes]] = []
        self.blocked: list[bool] = []
        self.elsewhere: list[Callable[[], None]] = []
        self.front_end = FrontEnd(
            ours,
            self.engine,
            lambda _, number, content: self.calls.append((number, bytes(content).rstrip())),
            lambda _, blocked: self.blocked.append(blocked),
            self.elsewhere.append,
        )
        self.hand = ByHand(theirs)

    def greet(self) -> Pair:
        self.hand.greet()
        assert self.front_end.read()
        return self

    def give(self, content: Buffer) -> None:
        """Send from the other end, and read it here."""
        self.hand.send(content)
        assert self.front_end.read()

    def ask(self, number: int, values: Any) -> None:
        self.give(RequestWriter().write(numbers(np.asarray(values, np.int32)), number, lambda content: None))

    def ask_strings(self, number: int, count: int, **fields: Any) -> None:
        content = memoryview(pack_bytes([b"text"] * count))
        request = InferenceRequest("simple", [InputTensor("IN", "BYTES", (count,), content)], **fields)
        self.give(RequestWriter().write(request, number, lambda content: None))

    def close(self) -> None:
        self.front_end.close()
        self.hand.sock.close()


@pytest.fixture
def stranger() -> Iterator[Pair]:
    """A front end that has not greeted."""
    stranger = Pair()
    yield stranger
    stranger.close()


@pytest.fixture
def pair(stranger: Pair) -> Pair:
    return stranger.greet()


def large(value: int, size: int = LARGE) -> OutputTensor:
    array = np.full(size // 4, value, np.int32)
    return OutputTensor("OUT", "INT32", array.shape, array)


# --- the greeting


def test_memory_that_can_shrink_is_refused(stranger: Pair) -> None:
    before = descriptors()
    stranger.hand.send_hello([sealed_memory(seals=0)])
    with pytest.raises(ValueError, match="sealed"):
        stranger.front_end.read()
    assert descriptors() == before


def test_a_stranger_without_memory_is_refused(stranger: Pair) -> None:
    stranger.hand.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    with pytest.raises(BadFrame):
        stranger.front_end.read()


# --- requests


class Writing:
    """A model that writes its output where it is sent from, and keeps it."""

    def __init__(self, pair: Pair) -> None:
        self.written: list[Any] = []
        pair.engine.respond = self.respond

    def respond(self, request: InferenceRequest) -> InferenceResponse:
        assert request.output_memory is not None
        room = request.output_memory(LARGE)
        assert room is not None
        array = room.view(np.int32)
        array[:] = 7
        self.written.append(array)
        return InferenceResponse("m", 1, [OutputTensor("OUT", "INT32", array.shape, array)])


def ask_shared(pair: Pair, number: int) -> None:
    """A request with a tensor in the shared memory."""
    pair.give(RequestWriter().write(numbers(np.zeros(LARGE, np.int32)), number, lambda content: 0))


def test_an_output_that_was_written_into_the_shared_memory_is_not_copied(pair: Pair) -> None:
    model = Writing(pair)
    ask_shared(pair, 1)
    offset = int.from_bytes(pair.hand.next()[4][8:16], "little")
    # It is the first of the half, and nothing else was allocated.
    assert offset == SHARED // 2
    model.written[0][:] = 9
    assert pair.front_end._view_of(offset, 4).tolist() == [9, 0, 0, 0]
    pair.give(release_frame(RELEASE, [offset]))
    # What the engine still refers to does not keep the memory from the next one, nor frees that when it goes.
    ask_shared(pair, 2)
    assert int.from_bytes(pair.hand.next()[4][8:16], "little") == offset
    del model.written[0]
    ask_shared(pair, 3)
    assert int.from_bytes(pair.hand.next()[4][8:16], "little") == offset + LARGE


def test_memory_of_an_output_that_is_not_sent_is_free_again(pair: Pair) -> None:
    model = Writing(pair)

    def fail(request: InferenceRequest) -> InferenceResponse:
        model.respond(request)
        return InferenceResponse.failed(request, RequestCancelled("the model failed"))

    pair.engine.respond = fail
    ask_shared(pair, 1)
    assert pair.hand.next()[1] & FAILED
    model.written.clear()
    pair.engine.respond = model.respond
    ask_shared(pair, 2)
    assert int.from_bytes(pair.hand.next()[4][8:16], "little") == SHARED // 2


def test_responses_go_through_the_socket_when_their_half_is_full(pair: Pair) -> None:
    pair.engine.respond = lambda request: InferenceResponse("m", 1, [large(7)])
    room = SHARED // 2 // LARGE
    for number in range(room + 1):
        pair.ask(number, [0])
    frames = [pair.hand.next() for _ in range(room + 1)]
    assert [shared for _, _, shared, _, _ in frames] == [1] * room + [0]
    pair.give(release_frame(RELEASE, [int.from_bytes(frames[2][4][8:16], "little")]))
    pair.ask(99, [0])
    assert pair.hand.next()[4][8:16] == frames[2][4][8:16]


def test_an_output_that_cannot_be_sent_becomes_an_error(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.engine.respond = lambda request: InferenceResponse("m", 1, [], parameters={"p": object()})  # type: ignore[dict-item]
    pair.ask(1, [0])
    assert pair.hand.next()[1] == FINAL | FAILED
    assert "unexpected error" in caplog.text


def test_responses_are_collected_until_the_flush(pair: Pair) -> None:
    pair.engine.respond = lambda request: None
    pair.ask(1, [0])
    pair.front_end._respond(1, InferenceResponse("m", 1, []))
    pair.hand.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        pair.hand.sock.recv(1)
    pair.front_end.flush()
    pair.hand.sock.settimeout(30)
    assert pair.hand.next()[0] == RESPONSE


def test_a_request_with_many_strings_lets_the_others_pass() -> None:
    asked: list[InferenceRequest] = []
    pair = Pair(ServedEngine(asked.append)).greet()
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


def test_cancel_reaches_the_engine(pair: Pair) -> None:
    pair.engine.respond = lambda request: None
    pair.ask(1, [0])
    pair.give(frame(CANCEL, 2))  # already answered, or never submitted: no error
    assert pair.engine.calls == []
    pair.give(frame(CANCEL, 1))
    assert pair.engine.calls == [("cancel", "simple")]
    assert pair.hand.next()[1] == FINAL | FAILED


def test_acknowledgements_reach_the_request(pair: Pair) -> None:
    taken: list[int] = []

    def submit(pending: PendingRequest) -> None:
        assert isinstance(pending, StreamedRequest)
        pending.on_take = lambda request, count: taken.append(count)

    pair.engine.submit = submit  # type: ignore[method-assign]
    pair.give(RequestWriter().write(numbers(SMALL), 1, lambda content: None, STREAMED))
    pair.give(frame(ACK, 2, (b"1",)))  # already answered: no error
    pair.give(frame(ACK, 1, (b"3",)))
    assert taken == [3]


def test_deferred_calls_are_made_after_all_requests_of_a_read_even_if_it_fails(pair: Pair) -> None:
    events: list[str] = []

    def submit(pending: PendingRequest) -> None:
        assert pending.defer is not None
        events.append("submitted")
        pending.defer(lambda: events.append("called"))

    pair.engine.submit = submit  # type: ignore[method-assign]
    write = RequestWriter().write
    first, second = (write(numbers(np.zeros(1, np.int32)), number, lambda content: None) for number in (1, 2))
    pair.give(first + second)
    assert events == ["submitted", "submitted", "called", "called"]
    events.clear()
    with pytest.raises(BadFrame):
        pair.give(write(numbers(np.zeros(1, np.int32)), 3, lambda content: None) + release_frame(RELEASE, [PAGE]))
    assert events == ["submitted", "called"]


def test_a_second_release_is_refused(pair: Pair) -> None:
    pair.engine.respond = lambda request: InferenceResponse("m", 1, [large(7)])
    pair.ask(1, [0])
    offset = int.from_bytes(pair.hand.next()[4][8:16], "little")
    pair.give(release_frame(RELEASE, [offset]))
    with pytest.raises(BadFrame):
        pair.give(release_frame(RELEASE, [offset]))


# --- a front end that does not read


# --- its end


def test_close_cancels_requests_and_frees_memory() -> None:
    before = descriptors()
    pair = Pair().greet()
    pair.engine.respond = lambda request: None
    for number in range(3):
        pair.ask(number, [0])
    pair.close()
    assert pair.engine.calls == [("cancel", "simple")] * 3
    assert descriptors() == before


def test_a_response_after_the_end_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair().greet()
    pair.engine.respond = lambda request: None
    pair.ask(1, [0])
    request = pair.front_end._pending[1]
    pair.close()
    pair.front_end._respond(1, InferenceResponse("m", 1, [large(1)], error=None))
    pair.front_end._respond(1, InferenceResponse("m", 1, [], error=RequestCancelled("gone")))
    pair.front_end.send(b"x")
    assert request.flush is not None
    request.flush()
    assert caplog.text == ""
