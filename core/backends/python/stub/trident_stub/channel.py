"""The server, as this process has it: the stub's end of the socket, and what goes over it.

    Channel        sends frames and reads the server's; the memory that the two share
    ServerCalls    executes the batches that the server sends, and implements `trident_stub.server.Server`

No thread is there only to read. A thread that waits for something, such as the main thread for the next batch, reads
the socket until it is there, and hands out what it reads on the way. So a batch wakes one thread in this process.
Source: docs/spec/python-backend.md sections 4.3 and 4.4.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Callable

from .host import ModelHost
from .inference import InferenceRequest, InferenceResponse
from .model import TritonError, TritonModelException
from .tensor import Tensor
from .wire import (
    AGAIN,
    ANSWER,
    CALL,
    CANCEL,
    CREDIT,
    DECOUPLED,
    DROP,
    EMPTY,
    EXECUTE,
    FAILED,
    FINAL,
    FIRST_CREDIT,
    FIRST_CREDIT_BYTES,
    INFER,
    LATER,
    LOG,
    RECLAIM,
    RELEASE,
    RELEASED,
    REPLY,
    RESPONSE,
    RESULT,
    ROOM,
    TAKEN,
    TO_STUB,
    WAITS,
    WATCH,
    WITHIN,
    KnownLayouts,
    MessageLayout,
    Record,
    Records,
    SentLayouts,
    check_end,
    from_json,
    read_count,
    read_only_record,
    read_record,
    tensors_of,
    to_json,
)

if TYPE_CHECKING:
    from trident.core.interprocess.frames import BadFrame, FrameReader, frame
    from trident.core.interprocess.shared_memory import SharedMemory
else:
    from .frames import BadFrame, FrameReader, frame
    from .shared_memory import SharedMemory

# Takes the flags, the number and the content of a frame. Must be quick and must not send.
OnFrame = Callable[[int, int, memoryview], None]


class ServerGone(Exception):
    """The server closed the socket, or something went wrong on it: this process must end."""


class Channel:
    """Sends and reads frames. Any thread.

    Whatever goes wrong while frames are read or written ends the connection, so that no frame is taken for another one.
    """

    def __init__(self, sock: socket.socket, memory: int) -> None:
        """Speak over `sock`, which is in blocking mode. `memory` is the descriptor of the memory. Takes both."""
        self.memory = SharedMemory.attach(memory)
        self.layouts = KnownLayouts()
        self._sock = sock
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._numbers = SentLayouts()
        self.sending = threading.RLock()
        """Held while frames get their order. A signal handler, or the end of an object, may send within a send."""
        self._unsent: deque[bytes] = deque()
        self._is_sending = False
        # Frames sent in `together`; None outside of it.
        self._collected: list[bytes] | None = None
        self._changed = threading.Condition()
        self._is_reading = False
        self._gone = ""
        # Writable, as are the tensors in its frames: they belong to the model.
        self._frames = FrameReader(TO_STUB, "the server", bytearray, 0)  # type: ignore[arg-type]
        self._on_frame: Mapping[int, OnFrame] = {}
        # The conditions of callers of `read_until`, and the thread that waits in their place.
        self._wanted: list[Callable[[], bool]] = []
        self._reader: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """Close the socket in a process that the model forked: two processes would mix their frames on it."""
        self._sock.close()
        self._gone = "the model forked this process, which has no server: only the model's own process has one"
        # Other threads, which are not in this process, may have held them.
        self.sending, self._changed = threading.RLock(), threading.Condition()

    def listen(self, on_frame: Mapping[int, OnFrame]) -> None:
        self._on_frame = on_frame

    # --- to the server

    def send(self, kind: int, number: int, content: bytes = b"", flags: int = 0) -> None:
        """Send a frame whose content is JSON, or empty. Blocks until the socket has taken it.

        Raises ServerGone, and TritonModelException for content that no frame can have.
        """
        if len(content) > ROOM:
            raise TritonModelException(f"{len(content)} bytes are more than the {ROOM} that can be sent")
        with self.sending:
            self._send_all(frame(kind, number, (content,), flags=flags))

    def send_records(self, kind: int, number: int, write: Callable[[Records], None]) -> None:
        """Send a frame with the records that `write` adds. Blocks; raises ServerGone and what `write` raises."""
        with self.sending:
            records = Records(self._numbers, self.memory)
            write(records)
            try:
                content = self.memory.release(RELEASED) + records.frame(kind, number)
                self._send_all(content)
                self._numbers.sent()
            except BaseException as error:
                raise self._lose(error) from error

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send what any thread sends meanwhile as one piece, at the end. One thread at a time, which must not wait."""
        with self.sending:
            self._collected = []
        try:
            yield
        finally:
            with self.sending:
                collected, self._collected = self._collected, None
                if collected:
                    self._send_all(b"".join(collected))

    def _send_all(self, content: bytes) -> None:
        if self._gone:
            raise ServerGone(self._gone)
        if self._collected is not None:
            self._collected.append(content)
            return
        self._unsent.append(content)
        if self._is_sending:
            return  # the send that this one interrupts sends it, too, after what it sends now
        self._is_sending = True
        try:
            while self._unsent:
                self._sock.sendall(self._unsent.popleft())
        except BaseException as error:  # a part of a frame may be sent
            raise self._lose(error) from error
        finally:
            self._is_sending = False

    # --- from the server

    def wait(self, is_over: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Read frames until `is_over`, or for `timeout_s` seconds. Returns whether it is over. Raises ServerGone."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        changed = self._changed
        with changed:
            while not is_over():
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if self._gone:
                    raise ServerGone(self._gone)
                if self._is_reading:
                    changed.wait(left)
                    continue
                self._is_reading = True
                changed.release()
                try:
                    self._read(left)
                finally:
                    changed.acquire()
                    self._is_reading = False
                    changed.notify_all()
        return True

    def read_until(self, is_over: Callable[[], bool]) -> None:
        """As `wait`, but return at once and let another thread wait: an event loop, for example, must not."""
        with self._changed:
            self._wanted.append(is_over)
            if self._reader is None:
                self._reader = threading.Thread(target=self._read_wanted, name="trident reader", daemon=True)
                self._reader.start()
            self._changed.notify_all()

    def _read_wanted(self) -> None:
        def has_all() -> bool:
            self._wanted = [is_over for is_over in self._wanted if not is_over()]
            return not self._wanted

        with suppress(ServerGone):
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._wanted)
                self.wait(has_all)

    def take_in(self) -> None:
        """Read what has arrived, without waiting for more. Raises ServerGone."""
        with self._changed:
            if self._is_reading or self._gone:
                return
            self._is_reading = True
        try:
            self._read(0)
        finally:
            with self._changed:
                self._is_reading = False
                self._changed.notify_all()

    def wake(self) -> None:
        """Have each thread in `wait` ask again whether it is over, after something that no frame brought."""
        with self._changed:
            self._changed.notify_all()

    def _read(self, timeout_s: float | None) -> None:
        # A model's signal handler may raise while this thread waits: then nothing has been read.
        if not self._readable.poll(None if timeout_s is None else timeout_s * 1000):
            return
        try:
            for kind, flags, _, number, content in self._frames.receive(self._sock, socket.MSG_DONTWAIT):
                if kind == RELEASE:
                    self.memory.released(content, number)
                elif kind == RECLAIM:
                    self.memory.reclaim()
                else:
                    self._on_frame[kind](flags, number, content)
        except BlockingIOError:
            return
        except BaseException as error:
            raise self._lose(error) from error

    # --- the end

    def _lose(self, error: BaseException) -> ServerGone:
        """End the connection, so that the server learns of it, and print why, which the server logs."""
        if not self._gone:
            self._gone = str(error) or type(error).__name__
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            if not isinstance(error, ConnectionError):
                print(f"the connection to the server failed: {self._gone}", file=sys.stderr)
                if not isinstance(error, (OSError, BadFrame)):
                    traceback.print_exception(type(error), error, error.__traceback__)
        return ServerGone(self._gone)


# Characters of a line of the log.
_LONGEST_LINE = 1 << 20

# Takes the size of a response in bytes, and returns flags for its record.
Count = Callable[[int], int]


class SenderCredit:
    """A request without its final response. Its sender waits while the server has taken too little of what was sent.

    One thread at a time calls `send`, and the thread that reads calls `take`: each has counters of its own.
    """

    __slots__ = ("_sent", "_sent_bytes", "_sizes", "_taken", "_taken_bytes", "is_cancelled", "is_watched")

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._sent = self._sent_bytes = 0
        self._taken = self._taken_bytes = 0
        self.is_cancelled = False
        self.is_watched = False

    @property
    def may_send(self) -> bool:
        has_credit = self._sent - self._taken < FIRST_CREDIT
        return (has_credit and self._sent_bytes - self._taken_bytes < FIRST_CREDIT_BYTES) or self.is_cancelled

    def send(self, size: int) -> int:
        """Count a response of `size` bytes. Returns WAITS if the next one needs credit."""
        self._sizes.append(size)
        self._sent += 1
        self._sent_bytes += size
        return 0 if self.may_send else WAITS

    def take(self, count: int) -> None:
        """Note that the server has taken the oldest `count` responses. Raises BadFrame if there are fewer."""
        if count > self._sent - self._taken:
            raise BadFrame(f"credit for {count} responses, and {self._sent - self._taken} were sent")
        for _ in range(count):
            self._taken += 1
            self._taken_bytes += self._sizes.popleft()


class ServerCalls:
    """Implements Server. Any thread."""

    def __init__(self, channel: Channel, on_batch: Callable[[int, list[InferenceRequest]], None]) -> None:
        """`on_batch` gets the number and the requests of each batch, on the thread that reads."""
        self._channel = channel
        self._on_batch = on_batch
        # None until somebody asks about the request.
        self._open: dict[int, SenderCredit | None] = {}
        self._opening = threading.Lock()
        self._last_request = 0
        # Of calls and of requests to other models, which are sent in the order of their numbers.
        self._numbers = itertools.count(1)
        self._last_number = 0
        self._answers: dict[int, tuple[bool, Any] | None] = {}
        self._replies: dict[int, Replies] = {}
        self.together = channel.together
        self.on_frame = {
            EXECUTE: self._arrived,
            CANCEL: self._cancelled,
            CREDIT: self._credited,
            ANSWER: self._answered,
            REPLY: self._replied,
        }

    # --- batches

    def execute(self, host: ModelHost, number: int, requests: list[InferenceRequest]) -> None:
        """Execute batch `number` and send the outcomes. The main thread only. Raises ServerGone."""
        responses = host.execute(requests)

        def write(records: Records) -> None:
            for request, response in zip(requests, responses):
                if response is not None:
                    self.close(request._number)
                    self.write(records, request._number, response, FINAL)
                elif host.is_rescheduled(request):
                    self.close(request._number)
                    records.add_mark(request._number, AGAIN)
                else:
                    records.add_mark(request._number, LATER)

        self._channel.send_records(RESULT, number, write)

    def _arrived(self, flags: int, number: int, content: memoryview) -> None:
        """Read the requests of a batch as they come: the layouts of later frames follow on from theirs."""
        layouts = self._channel.layouts
        count, at = layouts.read_head(content)
        if not count or number <= self._last_request:
            raise BadFrame(f"batch {number} of {count} requests after request {self._last_request}")
        arrived = InferenceRequest._arrived
        requests: list[InferenceRequest] = []
        for due in range(number, number + count):
            record, at = read_record(content, at)
            if record.number != due:
                raise BadFrame(f"request {record.number} where {due} follows")
            layout = layouts.find(record.layout)
            self._open[due] = None
            requests.append(arrived(due, self.tensors(layout, record), layout.requested, record.fields))
        check_end(content, at, number)
        self._last_request = number + count - 1
        self._on_batch(number, requests)

    # --- requests and their responses

    @property
    def has_open(self) -> bool:
        return bool(self._open)

    def close(self, number: int) -> None:
        self._open.pop(number, None)

    def send(self, request_number: int, response: InferenceResponse | None, final: bool) -> None:
        request = self._open_request(request_number)
        if request is None:  # the server ended it
            return
        if final:
            self.close(request_number)
        elif not request.may_send:
            self._channel.wait(lambda: request.may_send)
        flags = FINAL if final else 0
        count = None if final else request.send
        self._channel.send_records(
            RESPONSE, request_number, lambda records: self.write(records, request_number, response, flags, count)
        )

    def write(
        self,
        records: Records,
        number: int,
        response: InferenceResponse | None,
        flags: int,
        count: Count | None = None,
    ) -> None:
        """Add the record of a response or, for None, of the end of the responses. `count` gets its size.

        A response that cannot be sent becomes an error of its request.
        """
        if response is None:
            records.add_mark(number, flags | EMPTY)
            return
        error = response.error()
        if error is None:
            try:
                tensors = response.output_tensors()
                contents = [tensor._contents() for tensor in tensors]
                fields = to_json(response._parameters) if response._parameters else b""
                if count is not None:
                    flags, count = flags | count(sum(map(len, contents))), None
                described = tuple([tensor._description() for tensor in tensors])
                records.add_tensors(number, described, contents, flags=flags, fields=fields)
                return
            except TritonModelException as failure:
                error = TritonError(str(failure))
            except Exception as failure:
                error = TritonError(f"the response cannot be sent: {failure}")
        if count is not None:
            flags |= count(0)
        records.add_failure(number, error.code(), error.message(), flags)

    def is_cancelled(self, request_number: int) -> bool:
        request = self._open_request(request_number)
        if request is None:
            return False
        if not request.is_watched:
            request.is_watched = True
            self._channel.send(WATCH, request_number)
        self._channel.take_in()
        return request.is_cancelled

    def is_full(self, request_number: int) -> bool:
        request = self._open_request(request_number)
        return request is not None and not request.may_send

    def _open_request(self, number: int) -> SenderCredit | None:
        try:
            request = self._open[number]
        except KeyError:
            return None
        if request is not None:
            return request
        with self._opening:  # two threads may ask about one request for the first time at once
            try:
                made = self._open[number] or SenderCredit()
            except KeyError:
                return None
            self._open[number] = made
            return made

    def _asked(self, number: int) -> SenderCredit | None:
        """The request that a frame names; None if it is done. Raises BadFrame if there was none."""
        if not 0 < number <= self._last_request:
            raise BadFrame(f"request {number}, which the server did not send")
        return self._open_request(number)

    def _cancelled(self, flags: int, number: int, content: memoryview) -> None:
        request = self._asked(number)
        if request is not None:
            request.is_cancelled = True

    def _credited(self, flags: int, number: int, content: memoryview) -> None:
        request = self._asked(number)
        if request is not None:
            request.take(read_count(content))

    # --- log and calls

    def log(self, level: int, message: str, file: str, line: int) -> None:
        if len(message) > _LONGEST_LINE:
            message = f"{message[:_LONGEST_LINE]}... ({len(message)} characters in all)"
        self._channel.send(LOG, 0, to_json([int(level), message, file, line]))

    def call(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        content = to_json([name, fields])
        with self._channel.sending:
            number = self._last_number = next(self._numbers)
            self._answers[number] = None
            self._channel.send(CALL, number, content)
        try:
            self._channel.wait(lambda: self._answers[number] is not None)
        finally:
            answer = self._answers.pop(number)
        assert answer is not None
        failed, result = answer
        if failed:
            raise TritonModelException(result)
        return result  # type: ignore[no-any-return]

    def _answered(self, flags: int, number: int, content: memoryview) -> None:
        if not 0 < number <= self._last_number:
            raise BadFrame(f"the answer to call {number}, which was not sent")
        if number in self._answers:  # the model may have stopped waiting
            self._answers[number] = (bool(flags & FAILED), from_json(content))

    # --- requests to other models

    def infer(self, request: InferenceRequest, decoupled: bool, within: bool) -> Replies:
        set_fields = {name: value for name, value in request._description().items() if value or name == "model_version"}
        fields = to_json(set_fields)
        requested = tuple(request._requested)
        described = tuple([tensor._description() for tensor in request.inputs()])
        contents = [tensor._contents() for tensor in request.inputs()]
        flags = (DECOUPLED if decoupled else 0) | (WITHIN if within else 0)
        with self._channel.sending:
            number = self._last_number = next(self._numbers)
            replies = self._replies[number] = Replies(self._channel, number)
            try:
                self._channel.send_records(
                    INFER,
                    number,
                    lambda records: records.add_tensors(
                        number, described, contents, requested, flags=flags, fields=fields
                    ),
                )
            except ServerGone:
                raise
            except Exception as error:
                del self._replies[number]
                raise TritonModelException(f"the request cannot be sent: {error}") from error
        return replies

    def _replied(self, flags: int, number: int, content: memoryview) -> None:
        count, at = self._channel.layouts.read_head(content)
        record = read_only_record(content, at, number, count)
        replies = self._replies.get(number)
        if replies is None:
            raise BadFrame(f"a reply to request {number}, which is not open")
        if record.flags & FINAL:
            del self._replies[number]
        if record.flags & FAILED:
            response = InferenceResponse(error=TritonError(record.text, record.layout))
        else:
            response = InferenceResponse(self.tensors(self._channel.layouts.find(record.layout), record))
            if record.fields:
                response._parameters = from_json(record.fields)
        replies.add(response, bool(record.flags & FINAL))

    def tensors(self, layout: MessageLayout, record: Record) -> list[Tensor]:
        """The tensors of a record that was read, as views of what was received. Raises BadFrame."""
        view = Tensor._view
        if record.places or layout.size < 0:
            contents = tensors_of(record, layout.sizes, self._channel.memory.received)
            return [view(*tensor, content) for tensor, content in zip(layout.tensors, contents)]
        run = record.run
        if len(run) != layout.size:
            raise BadFrame(f"{len(run)} bytes of tensors that have {layout.size}")
        return [view(name, datatype, shape, run[start:end]) for name, datatype, shape, start, end in layout.spans]


class Replies:
    """The replies to one request of the model. Implements ResponseStream. Any thread."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._arrived: deque[InferenceResponse] = deque()
        self._is_over = False
        self._listeners: list[Callable[[], None]] = []

    def add(self, response: InferenceResponse, final: bool) -> None:
        """Add a response, on the thread that reads the channel."""
        self._arrived.append(response)
        self._is_over = final
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def _has_next(self) -> bool:
        return bool(self._arrived) or self._is_over

    def next(self, timeout: float | None = None) -> InferenceResponse | None:
        if not self._channel.wait(self._has_next, timeout):
            raise TimeoutError(f"no response came in {timeout} seconds")
        try:
            response = self._arrived.popleft()
        except IndexError:
            return None
        if not self._is_over:
            self._channel.send(TAKEN, self._number)
        return response

    def cancel(self) -> None:
        if not self._is_over:
            self._channel.send(DROP, self._number)

    def add_listener(self, callback: Callable[[], None]) -> None:
        self._listeners.append(callback)
        if not self._has_next():
            # The listener does not read, and perhaps no other thread does.
            self._channel.read_until(self._has_next)
        elif callback in self._listeners:
            self._listeners.remove(callback)
            callback()
