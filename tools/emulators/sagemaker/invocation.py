"""One call of the runtime API: its headers, the events of its streams, its errors, and the stream in both directions.

Source: docs/spec/sagemaker.md sections A3, A8 and A10.
"""

from __future__ import annotations

import base64
import contextlib
import re
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import BinaryIO
from urllib.parse import parse_qsl

import orjson
from botocore.eventstream import EventStreamBuffer, ParserError
from botocore.eventstream import EventStreamMessage as Event
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from trident.tools.emulators.container import HOST, BreachReport, ContainerFault

PREFIX = "X-Amzn-SageMaker-"
CUSTOM_ATTRIBUTES = PREFIX + "Custom-Attributes"
TARGET_MODEL = PREFIX + "Target-Model"
INFERENCE_ID = PREFIX + "Inference-Id"
COMPONENT = PREFIX + "Inference-Component"
PREFIX_AWARE_ID = PREFIX + "Prefix-Aware-Id"
SESSION = PREFIX + "Session-Id"
NEW_SESSION = PREFIX + "New-Session-Id"
CLOSED_SESSION = PREFIX + "Closed-Session-Id"

_VISIBLE_TEXT = re.compile(r"[\x20-\x7e\t]{0,1024}")
_SESSION = r"[a-zA-Z0-9](-*[a-zA-Z0-9])*"
NAME = re.compile(r"(?=.{1,63}\Z)[a-zA-Z0-9](-*[a-zA-Z0-9])*")

# All other headers are removed.
REQUEST_HEADERS: Mapping[str, re.Pattern[str]] = {
    "Content-Type": _VISIBLE_TEXT,
    "Accept": _VISIBLE_TEXT,
    CUSTOM_ATTRIBUTES: _VISIBLE_TEXT,
    INFERENCE_ID: re.compile(r"[\x21-\x7e][\x20-\x7e]{0,63}"),
    TARGET_MODEL: re.compile(r"[\x21-\x7e][\x20-\x7e]{0,1023}"),
    PREFIX + "Target-Variant": NAME,
    PREFIX + "Target-Container-Hostname": NAME,
    COMPONENT: NAME,
    PREFIX + "Enable-Explanations": re.compile(r"[\x20-\x7e]{1,64}"),
    PREFIX_AWARE_ID: re.compile(r"[\x21-\x7e][\x20-\x7e]{0,63}"),
    SESSION: re.compile(rf"(?=.{{1,256}}\Z)(NEW_SESSION|{_SESSION})"),
}
RESPONSE_HEADERS: Mapping[str, re.Pattern[str]] = {
    "Content-Type": _VISIBLE_TEXT,
    CUSTOM_ATTRIBUTES: _VISIBLE_TEXT,
    NEW_SESSION: re.compile(
        rf"(?=.{{1,256}}\Z){_SESSION};\sExpires=[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}Z"
    ),
    CLOSED_SESSION: re.compile(rf"(?=.{{1,256}}\Z){_SESSION}"),
}


@dataclass(frozen=True, slots=True)
class Invocation:
    """`headers` and `body` as the container of one model receives them at `path`.

    `target_model` is "" if the caller named none. `within_s` 0 means the platform's limit for the time of a call.
    """

    headers: Mapping[str, str]
    body: bytes
    target_model: str = ""
    within_s: float = 0.0
    path: str = "/invocations"


def read_invocation(headers: Mapping[str, str], body: bytes, *, is_stream: bool = False) -> Invocation:
    """Read a call; names in `headers` may have any case. Raises ApiError for a header that the platform refuses."""
    given = {name.lower(): value for name, value in headers.items()}
    passed = {}
    for name, form in REQUEST_HEADERS.items():
        value = given.get(name.lower())
        # Streaming and asynchronous calls have names of their own for these two.
        if is_stream and name in ("Content-Type", "Accept"):
            value = given.get((PREFIX + name).lower(), value if name == "Content-Type" else None)
        if value is None:
            continue
        if not form.fullmatch(value):
            raise validation_error(f"the header {name} is malformed or longer than the platform allows")
        passed[name] = value
    return Invocation(passed, body, passed.get(TARGET_MODEL, ""))


def passed_back(headers: Iterable[tuple[str, str]], report: BreachReport) -> dict[str, str]:
    """The headers of the container's answer that reach the caller. A malformed one is a breach and is removed."""
    known = {name.lower(): name for name in RESPONSE_HEADERS}
    passed = {}
    for given, value in headers:
        name = known.get(given.lower())
        if name is None:
            continue
        if RESPONSE_HEADERS[name].fullmatch(value):
            passed[name] = value
        else:
            report.add(f"the container's answer has a malformed or too long header {name}: {value[:80]}")
    return passed


_LONGEST_MESSAGE = 64 << 10
_CLIENT_ERRORS = range(400, 500)


class ApiError(Exception):
    """`kind` is the class of the SDK's exception, `members` are its fields besides the message."""

    def __init__(self, status: int, kind: str, message: str, members: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.members = dict(members or {})

    def body(self) -> bytes:
        return orjson.dumps({**self.members, "Message": self.message})


def validation_error(message: str) -> ApiError:
    return ApiError(400, "ValidationError", message)


def endpoint_deleted() -> ApiError:
    """The error for a call while the emulator ends, when the container gets no more requests."""
    return validation_error("The endpoint is being deleted")


def model_not_ready(message: str) -> ApiError:
    return ApiError(429, "ModelNotReadyException", message)


def model_error(status: int, original: str) -> ApiError:
    """The error for an answer of the container with `status` and the text `original`; status 0 means no answer."""
    original = original[:_LONGEST_MESSAGE]
    whose = "client" if status in _CLIENT_ERRORS else "server"
    message = f'Received {whose} error ({status}) from primary with message "{original}".'
    return ApiError(424, "ModelError", message, {"OriginalStatusCode": status, "OriginalMessage": original})


# --- OpenAI's API: callers have a bearer token, and the container's answers are passed on as they are

OPENAI_PATH = "/v1/chat/completions"
_TOKEN = "sagemaker-api-key-"
_SIGNED = "sagemaker.amazonaws.com/?"


def openai_error(error: ApiError) -> tuple[int, bytes]:
    """The status and body of an error as OpenAI's clients read it: the container's status, if it gave one."""
    is_model = error.kind == "ModelError"
    found = {
        "message": error.message,
        "type": "server_error" if is_model else "invalid_request_error",
        "code": "model_error" if is_model else "access_denied" if error.status == 403 else "validation_error",
    }
    return int(str(error.members.get("OriginalStatusCode") or error.status)), orjson.dumps({"error": found})


def check_token(authorization: str) -> None:
    """Check the header of a caller of OpenAI's API: a token of the SDK's `generate_token`, in its time.

    A token is a presigned request of the action CallWithBearerToken. Its signature is not checked. Raises ApiError.
    """
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.startswith(_TOKEN):
        raise access_denied("the route takes 'Authorization: Bearer TOKEN', made by sagemaker.core's generate_token")
    try:
        signed = base64.b64decode(token.removeprefix(_TOKEN), validate=True).decode()
        given = dict(parse_qsl(signed.removeprefix(_SIGNED), strict_parsing=True))
        begun = datetime.strptime(given["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        lasts_s = int(given["X-Amz-Expires"])
        _, _, _, service, _ = given["X-Amz-Credential"].split("/")
    except (ValueError, KeyError) as error:
        raise access_denied(f"the bearer token is not one of generate_token: {error}") from None
    if not signed.startswith(_SIGNED) or (given.get("Action"), service) != ("CallWithBearerToken", "sagemaker"):
        raise access_denied("the bearer token was made for another service")
    if not 0 < lasts_s <= _LONGEST_TOKEN_S or datetime.now(UTC) > begun + timedelta(seconds=lasts_s):
        raise access_denied(f"the bearer token of {begun:%Y-%m-%dT%H:%M:%SZ} was valid for {lasts_s} s")


def access_denied(message: str) -> ApiError:
    return ApiError(403, "AccessDeniedException", message)


_LONGEST_TOKEN_S = 12 * 3600

# --- event streams

MEDIA_TYPE = "application/vnd.amazon.eventstream"
LARGEST_PART = 1 << 20
"""Bytes of payload in one event; the SDK refuses events of more than 24 MiB."""

_OCTETS = "application/octet-stream"
_TEXT = 7
_OVERHEAD = 16


def payload_part(body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    kind = {":message-type": "event", ":event-type": "PayloadPart", ":content-type": _OCTETS}
    return encode({**kind, **(headers or {})}, body)


def stream_error(message: str, code: str) -> bytes:
    """The event that ends a stream that the container broke off."""
    headers = {":message-type": "exception", ":exception-type": "ModelStreamError", ":content-type": "application/json"}
    return encode(headers, orjson.dumps({"Message": message, "ErrorCode": code}))


def encode(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Encode one event. Names have at most 255 bytes, values 32,767."""
    block = b""
    for name, value in ((name.encode(), value.encode()) for name, value in headers.items()):
        block += struct.pack(f">B{len(name)}sBH", len(name), name, _TEXT, len(value)) + value
    prelude = struct.pack(">II", _OVERHEAD + len(block) + len(payload), len(block))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + block + payload
    return message + struct.pack(">I", zlib.crc32(message))


# --- the stream in both directions: payload parts of the caller to frames for the container, and back

# The platform speaks HTTP/2 to callers. Here a call is one of HTTP/1.1: its body and its answer are event streams in
# chunks, which go on at the same time.
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

            def fragments(event: Event) -> Iterator[bytes]:
                """The fragments of the message that begins with `event`."""
                yield event.payload
                while event.headers.get("CompletionState") == "PARTIAL" and (following := next(events, None)):
                    event = following
                    yield event.payload

            for event in events:
                is_whole = event.headers.get("CompletionState") != "PARTIAL"
                content = event.payload if is_whole else fragments(event)
                self._socket.send(content, text=event.headers.get("DataType") == "UTF8")
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


def _parts(socket: ClientConnection) -> Iterator[bytes]:
    """The events for the fragments of the next message."""

    def part(fragment: str | bytes, **state: str) -> bytes:
        if isinstance(fragment, str):
            return payload_part(fragment.encode(), {"DataType": "UTF8", **state})
        return payload_part(fragment, {"DataType": "BINARY", **state})

    kept: str | bytes | None = None
    state: dict[str, str] = {}
    for fragment in socket.recv_streaming():
        if kept is not None:
            state = {"CompletionState": "COMPLETE"}
            yield part(kept, CompletionState="PARTIAL")
        kept = fragment
    yield part(kept or b"", **state)


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
