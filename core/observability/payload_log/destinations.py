"""Where the payload log goes: files of JSON Lines in a folder or an object store, or events to a collector."""

from __future__ import annotations

import http.client
import logging
import os
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import BinaryIO, Final
from urllib.parse import quote, urlsplit

import orjson

from trident.core.errors import ServerError
from trident.core.observability.payload_log.exchange import Exchange, utc
from trident.core.observability.payload_log.log import Ending
from trident.core.observability.tracing.trace import Loss, TraceCounts
from trident.core.options import PayloadLogOptions

_log = logging.getLogger("trident.payload-log")

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.2, 10.0


class Refused(Exception):
    """The receiver will not take this, however often it is sent; the argument says why."""


class Delivery:
    """Makes a call that sends exchanges until it succeeds, is refused, or the log ends. Logs when failures begin and
    end."""

    def __init__(self, name: str, counts: TraceCounts, ending: Ending) -> None:
        self._name = name
        self._counts = counts
        self._ending = ending
        self._is_failing = False

    def deliver(self, send: Callable[[], None], count: int) -> None:
        pause = 0.0
        while True:
            try:
                send()
            except (OSError, http.client.HTTPException, ServerError, Refused) as error:
                if not self._is_failing:
                    self._is_failing = True
                    _log.error("the payload log cannot be written to %s: %s", self._name, str(error) or repr(error))
                pause = min(_LAST_PAUSE_S, 2 * pause or _FIRST_PAUSE_S)
                if isinstance(error, Refused) or not self._ending.may_retry(pause):
                    self._counts.add_lost(Loss.NOT_WRITTEN, count)
                    return
            else:
                if self._is_failing:
                    self._is_failing = False
                    _log.info("the payload log is written to %s again", self._name)
                self._counts.add_written(count)
                return


# --- JSON Lines

_FOLDER_FILE_BYTES, _FOLDER_FILE_S = 64 << 20, 3600.0
_OBJECT_BYTES, _OBJECT_S = 8 << 20, 60.0


def _lines(exchanges: Sequence[Exchange], redacted: Collection[str]) -> bytes:
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    return b"".join([orjson.dumps(each.document(redacted), option=option) for each in exchanges])


def _file_name() -> str:
    """No two processes make the same one; in the order of time."""
    now = utc(time.time_ns()).translate(str.maketrans("", "", "-:."))
    return f"{now}-{socket.gethostname()}-{os.getpid()}.jsonl"


class Folder:
    """Implements Destination: appends to a file, which is followed by another at 64 MiB or after an hour."""

    def __init__(self, options: PayloadLogOptions, counts: TraceCounts, ending: Ending) -> None:
        self._options = options
        self._delivery = Delivery(options.target, counts, ending)
        self._file: BinaryIO | None = None
        self._begun_s = 0.0
        # How much of the file is whole lines: what a failed write left behind it is cut off.
        self._size = 0

    def write(self, exchanges: Sequence[Exchange]) -> None:
        if exchanges:
            self._delivery.deliver(partial(self._append, _lines(exchanges, self._options.redacted)), len(exchanges))

    def _append(self, content: bytes) -> None:
        if self._size >= _FOLDER_FILE_BYTES or time.monotonic() - self._begun_s >= _FOLDER_FILE_S:
            self.close()
        if self._file is None:
            os.makedirs(self._options.target, mode=0o700, exist_ok=True)
            path = os.path.join(self._options.target, _file_name())
            self._file = open(path, "xb", buffering=0, opener=partial(os.open, mode=0o600))  # noqa: SIM115
            self._begun_s, self._size = time.monotonic(), 0
        self._file.seek(self._size)
        self._file.truncate()
        left = memoryview(content)
        while left:  # a disk that is nearly full takes a part
            left = left[self._file.write(left) :]
        self._size += len(content)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class Objects:
    """Implements Destination: `put` stores an object, by its name below the target, at 8 MiB or once a minute."""

    def __init__(
        self, options: PayloadLogOptions, put: Callable[[str, bytes], None], counts: TraceCounts, ending: Ending
    ) -> None:
        self._redacted = options.redacted
        self._put = put
        self._delivery = Delivery(options.target, counts, ending)
        self._parts: list[bytes] = []
        self._count = self._size = 0
        self._begun_s = 0.0

    def write(self, exchanges: Sequence[Exchange]) -> None:
        if exchanges:
            if not self._parts:
                self._begun_s = time.monotonic()
            self._parts.append(_lines(exchanges, self._redacted))
            self._size += len(self._parts[-1])
            self._count += len(exchanges)
        if self._size >= _OBJECT_BYTES or (self._parts and time.monotonic() - self._begun_s >= _OBJECT_S):
            self.close()

    def close(self) -> None:
        if self._parts:
            self._delivery.deliver(partial(self._put, _file_name(), b"".join(self._parts)), self._count)
        self._parts, self._count, self._size = [], 0, 0


# --- CloudEvents, as KServe's agent posts them: pkg/logger/worker.go and handler.go of kserve/kserve

COLLECTOR_THREADS: Final = 4
_TIMEOUT_S = 10.0
_REQUEST, _RESPONSE = (f"org.kubeflow.serving.inference.{kind}" for kind in ("request", "response"))
# The characters that a header has as they are, by the binding of CloudEvents to HTTP.
_PLAIN: Final = "!#$&'()*+,-./:;<=>?@[]^_`{|}~ "
# Of statuses from 400 to 499.
_MAY_PASS = (408, 425, 429)

Event = tuple[dict[str, str], bytes]


class Collector:
    """Implements Destination: an event for each request and each of its responses, without those with an error."""

    def __init__(self, options: PayloadLogOptions, counts: TraceCounts, ending: Ending) -> None:
        self._options = options
        self._delivery = Delivery(options.target, counts, ending)
        self._url = urlsplit(options.target)
        self._connection: http.client.HTTPConnection | None = None
        fixed = {"inferenceservicename": options.service, "namespace": options.namespace, "component": "predictor"}
        self._fixed = {
            "ce-specversion": "1.0",
            "ce-source": socket.gethostname(),
            "ce-metadata": "{}",
            **{f"ce-{name}": value for name, value in fixed.items() if value},
        }

    def write(self, exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            self._delivery.deliver(partial(self._post_all, list(self._events(exchange))[::-1]), 1)

    def _events(self, exchange: Exchange) -> Iterator[Event]:
        redacted = self._options.redacted
        answers = [each for each in exchange.responses(redacted) if "error" not in each]
        names = {"model_name": exchange.model, "model_version": str(exchange.version)}
        own = {
            "Content-Type": "application/json",
            "ce-id": str(uuid.uuid4()),
            "ce-time": exchange.time,
            "ce-inferenceservicename": quote(exchange.model, safe=_PLAIN),
            **self._fixed,
        }
        for kind, document in ((_REQUEST, exchange.request(redacted)), *((_RESPONSE, each) for each in answers)):
            headers = {**own, "ce-type": kind, "ce-recordedtime": utc(time.time_ns())}
            yield headers, orjson.dumps({**names, **document}, option=orjson.OPT_SERIALIZE_NUMPY)

    def _post_all(self, events: list[Event]) -> None:
        """Post the events, the last one first, and remove each that was taken."""
        while events:
            is_reused = self._connection is not None
            try:
                status = self._ask(*events[-1])
            except (OSError, http.client.HTTPException):
                self.close()
                if not is_reused:
                    raise
                status = self._ask(*events[-1])  # it had closed a connection that was idle
            if 300 <= status < 500 and status not in _MAY_PASS:
                raise Refused(f"it answers {status} to an event")
            if status >= 300:
                raise OSError(f"it answers {status}")
            events.pop()

    def _ask(self, headers: dict[str, str], body: bytes) -> int:
        connection, url = self._connection, self._url
        if connection is None:
            host = url.hostname or ""
            if url.scheme == "https":
                connection = http.client.HTTPSConnection(
                    host, url.port, timeout=_TIMEOUT_S, context=ssl.create_default_context()
                )
            else:
                connection = http.client.HTTPConnection(host, url.port, timeout=_TIMEOUT_S)
            self._connection = connection
        connection.request("POST", f"{url.path or '/'}{f'?{url.query}' if url.query else ''}", body, headers)
        response = connection.getresponse()
        response.read(1 << 16)
        if not response.isclosed():  # longer than anything that is said to an event
            self.close()
        return response.status

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
