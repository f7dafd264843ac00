"""InvokeEndpointWithBidirectionalStream: payload parts of the caller to frames for the container, and back.

The platform speaks HTTP/2 to callers. Here a call is one of HTTP/1.1: its body and its answer are event streams in
chunks, which go on at the same time.
Source: docs/spec/sagemaker.md section A8.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from botocore.eventstream import EventStreamBuffer, ParserError
from botocore.eventstream import EventStreamMessage as Event
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from trident.app.emulators.container import HOST, BreachReport, ContainerFault
from trident.app.emulators.sagemaker.invocation import PREFIX, model_error, payload_part, stream_error

_DEFAULT_PATH = "invocations-bidirectional-stream"
_PATH, _QUERY = (PREFIX + name for name in ("Model-Invocation-Path", "Model-Query-String"))
_PING_S = 60.0
_UNANSWERED_PINGS = 5
_NORMAL = 1000
# Bytes of the sizes at the beginning of an event.
_PRELUDE = 12


class BidirectionalStream:
    """The WebSocket to the container that listens on `port`. A context manager; inside, the socket is open.

    `within_s`: the time of the whole stream. Raises ApiError if the container does not open the socket.
    """

    def __init__(self, port: int, headers: Mapping[str, str], connect_s: float, within_s: float) -> None:
        given = {name.lower(): value for name, value in headers.items()}
        path = given.get(_PATH.lower(), _DEFAULT_PATH).lstrip("/")
        query = given.get(_QUERY.lower(), "").lstrip("?")
        self._address = f"ws://{HOST}:{port}/{path}" + (f"?{query}" if query else "")
        self._connect_s = connect_s
        self._within_s = within_s
        self._is_over = False
        self._held = contextlib.ExitStack()

    def __enter__(self) -> BidirectionalStream:
        try:
            opening = connect(
                self._address,
                open_timeout=self._connect_s + _PING_S,
                ping_interval=_PING_S,
                ping_timeout=_UNANSWERED_PINGS * _PING_S,
                max_size=None,
                compression=None,
                proxy=None,
            )
            self._socket = self._held.enter_context(opening)
        except InvalidStatus as refused:
            answer = refused.response
            raise model_error(answer.status_code, bytes(answer.body or b"").decode(errors="replace")) from refused
        except (OSError, InvalidHandshake, EOFError) as error:
            raise model_error(0, f"the container opened no WebSocket: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._held.close()

    def send_all(self, body: BinaryIO) -> None:
        """Send the caller's parts until its body ends, and then close the socket. On a thread of its own."""
        with contextlib.suppress(ConnectionClosed, OSError, ParserError):
            events = _events(body)
            for event in events:
                is_text = event.headers.get("DataType") == "UTF8"
                if event.headers.get("CompletionState") == "PARTIAL":
                    _send_fragments(self._socket, event, events, is_text=is_text)
                else:
                    self._socket.send(event.payload, text=is_text)
        self._is_over = True
        self._socket.close(_NORMAL)

    def answers(self, body: BinaryIO, report: BreachReport) -> Iterator[bytes]:
        """Send the parts of `body` meanwhile; gives the events for the caller."""
        threading.Thread(target=self.send_all, args=[body], daemon=True).start()
        timer = threading.Timer(self._within_s, self._time_out)
        timer.daemon = True
        timer.start()
        try:
            while True:
                yield from _parts(self._socket)
        except ConnectionClosed as closed:
            if self._is_over:
                return
            received = closed.rcvd
            if received is None:
                fault = ContainerFault("broke the stream off, or did not answer pings")
                report.add(f"a bidirectional stream: the container {fault}")
                yield stream_error(f"the container {fault}", "StreamBroken")
            elif received.code != _NORMAL:
                yield stream_error(received.reason, str(int(received.code)))
        finally:
            timer.cancel()

    def _time_out(self) -> None:
        self._is_over = True
        self._socket.close(_NORMAL, "the longest time of a stream is over")


def _send_fragments(socket: ClientConnection, first: Event, events: Iterator[Event], *, is_text: bool) -> None:
    def fragments() -> Iterator[bytes]:
        yield first.payload
        for event in events:
            yield event.payload
            if event.headers.get("CompletionState") != "PARTIAL":
                return

    socket.send(fragments(), text=is_text)


def _parts(socket: ClientConnection) -> Iterator[bytes]:
    """The events for the fragments of the next message."""
    kept: str | bytes | None = None
    is_whole = True
    for fragment in socket.recv_streaming():
        if kept is not None:
            is_whole = False
            yield _part(kept, "PARTIAL")
        kept = fragment
    yield _part(kept or b"", "" if is_whole else "COMPLETE")


def _part(fragment: str | bytes, state: str) -> bytes:
    is_text = isinstance(fragment, str)
    headers = {"DataType": "UTF8" if is_text else "BINARY"} | ({"CompletionState": state} if state else {})
    return payload_part(fragment.encode() if isinstance(fragment, str) else fragment, headers)


def _events(body: BinaryIO) -> Iterator[Event]:
    """The events in a body. Raises ParserError for anything else."""
    buffer = EventStreamBuffer()
    # No more than an event is read at once, because `read` waits for as many bytes.
    while prelude := body.read(_PRELUDE):
        buffer.add_data(prelude)
        next(buffer, None)  # raises for a size that no event has
        buffer.add_data(body.read(int.from_bytes(prelude[:4]) - _PRELUDE))
        for event in buffer:
            if ":chunk-signature" not in event.headers:
                yield event
            elif not event.payload:  # the empty one that ends the stream
                return
            else:  # the SDK signs an event by wrapping it
                inner = EventStreamBuffer()
                inner.add_data(event.payload)
                yield from inner
