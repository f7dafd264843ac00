"""The server's end of the socket to a stub process, and the memory that they share.

The thread that executes reads the socket while it waits for the outcomes of its batch, so that no other thread is woken
on the way. Between executions one thread of the server reads it, the watcher's, which watches the files of all stub
processes: their sockets, what models print, and the ends of the processes.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, monotonic_ns
from typing import Any

from trident.core.backends.python.batches import Outcome, OutcomeReader, OutputCheck, write_batch
from trident.core.backends.python.stub.trident_stub.wire import (
    CANCEL,
    CREDIT,
    EXECUTE,
    FAILED,
    RECLAIM,
    RELEASE,
    RELEASED,
    RESPONSE,
    RESULT,
    START,
    STARTED,
    STOP,
    TO_SERVER,
    WATCH,
    Records,
    SentLayouts,
    count_frame,
    from_json,
    to_json,
)
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, ServerError, readable
from trident.core.inference.pending_request import AGAIN, LATER, CollectedFlushes, DeferredOutcome, ResponseSender
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import Outputs
from trident.core.interprocess.frames import BadFrame, FrameReader, SendQueue, frame, wait_readable, wait_writable
from trident.core.interprocess.shared_memory import SharedMemory

_log = logging.getLogger("trident.backends.python")

Call = Callable[[], None]
OnError = Callable[[Exception], None]


def _nothing(*arguments: object) -> None: ...


class FileWatcher:
    """Starts its thread with the first file, and ends it with the last one. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[int, WatchedFile] = {}
        self._epoll: select.epoll | None = None
        self._wake = -1

    def watch(
        self, descriptor: int, on_readable: Call, on_error: OnError, on_writable: Call | None = None
    ) -> WatchedFile:
        """Watch a file, which is not armed yet. The calls are made on the watcher's thread, and must be quick.

        `on_error` is told what the others raise.
        """
        with self._lock:
            if self._epoll is None:
                epoll, wake = select.epoll(), os.eventfd(0, os.EFD_CLOEXEC)
                epoll.register(wake, select.EPOLLIN)
                thread = threading.Thread(
                    target=self._run, args=(epoll, wake), name="trident-python-models", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # there are too many
                    epoll.close()
                    os.close(wake)
                    raise
                self._epoll, self._wake = epoll, wake
            file = WatchedFile(self, self._epoll, descriptor, on_readable, on_error, on_writable)
            for each in file.descriptors:
                self._files[each] = file
            return file

    def remove(self, file: WatchedFile) -> None:
        with self._lock:
            for each in file.descriptors:
                if self._files.get(each) is file:
                    del self._files[each]
            if not self._files and self._epoll is not None:
                os.eventfd_write(self._wake, 1)
                self._epoll = None

    def _run(self, epoll: select.epoll, wake: int) -> None:
        try:
            while True:
                for descriptor, _ in epoll.poll():
                    if descriptor == wake:
                        return
                    file = self._files.get(descriptor)
                    if file is not None:
                        file.call(descriptor)
        finally:
            epoll.close()
            os.close(wake)


class WatchedFile:
    """A file that the watcher watches. Any thread.

    Writing is watched on a duplicate, because epoll knows each file once.
    """

    def __init__(
        self,
        watcher: FileWatcher,
        epoll: select.epoll,
        descriptor: int,
        on_readable: Call,
        on_error: OnError,
        on_writable: Call | None,
    ) -> None:
        self._watcher = watcher
        self._epoll = epoll
        self._on_readable = on_readable
        self._on_error = on_error
        self._on_writable = on_writable
        self._descriptor = descriptor
        self._duplicate = -1 if on_writable is None else os.dup(descriptor)
        self._lock = threading.Lock()
        self._has_ended = False
        self.descriptors = [descriptor] if on_writable is None else [descriptor, self._duplicate]
        epoll.register(descriptor, select.EPOLLONESHOT)
        if on_writable is not None:
            epoll.register(self._duplicate, select.EPOLLONESHOT)

    def arm(self) -> None:
        """Call `on_readable` once, as soon as there is something to read."""
        self._modify(self._descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def disarm(self) -> None:
        """Do not call `on_readable`. A call that has begun goes on."""
        self._modify(self._descriptor, select.EPOLLONESHOT)

    def want_to_write(self, wanted: bool) -> None:
        """Call `on_writable` as long as the file takes something, if `wanted`."""
        self._modify(self._duplicate, select.EPOLLOUT if wanted else select.EPOLLONESHOT)

    def _modify(self, descriptor: int, events: int) -> None:
        with self._lock:
            if not self._has_ended:
                self._epoll.modify(descriptor, events)

    def call(self, descriptor: int) -> None:
        """Make the call for an event. On the watcher's thread, which has the other files of the server, too."""
        try:
            if descriptor == self._descriptor:
                self._on_readable()
            elif self._on_writable is not None:
                self._on_writable()
        except Exception as error:
            try:
                self._on_error(error)
            except Exception:
                _log.exception("the process of a Python model could not be ended")

    def end(self) -> None:
        """Watch it no longer. To be called before it is closed."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            for each in self.descriptors:
                self._epoll.unregister(each)
            if self._duplicate >= 0:
                os.close(self._duplicate)
            # Avoids a cycle: the watched file refers to this.
            self._on_readable, self._on_error, self._on_writable = _nothing, _nothing, None
        self._watcher.remove(self)


# --- the channel

# A sender gets new credit after so many responses, or when its client, which was slow, takes responses again.
_CREDIT_PORTION = 64
_COLLECTED_FLUSHES = CollectedFlushes()

OnFrame = Callable[[int, int, memoryview], None]


class StubGone(Exception):
    """The stub process ended, or closed its socket. Its text is the reason."""


class StubFaulty(StubGone):
    """The stub sent an invalid or unexpected frame: its process must end."""


class StubSilent(StubGone):
    """The stub did not answer in time."""


class _OpenSender:
    """A request whose sender the model uses. `owed` is the credit for responses that were sent."""

    __slots__ = ("owed", "sender")

    def __init__(self, sender: ResponseSender) -> None:
        self.sender = sender
        self.owed = 0


class StubChannel:
    """`start` and `execute` on one thread at a time; any thread calls the other methods.

    Whatever goes wrong while a frame is read or written loses the channel: no frame is read after it, and `lose` must
    follow. `on_lost` is told the reason, on any thread, unless a call here raises it.
    """

    def __init__(
        self,
        sock: socket.socket,
        memory: SharedMemory,
        spec: ModelSpec,
        watcher: FileWatcher,
        check: OutputCheck,
    ) -> None:
        """Takes ownership of both. `sock` blocks."""
        self._sock = sock
        self._memory = memory
        self._reader = FrameReader(TO_SERVER, "the stub process", most_shared=0)
        # Frames get their order under this lock, and layouts their numbers.
        self._writing = threading.Lock()
        self._numbers = SentLayouts()
        self._model, self._names = spec.name, tuple(spec.outputs)
        self._reshaped = frozenset(name for name, tensor in spec.inputs.items() if tensor.model_dims is not None)
        self.outcomes = OutcomeReader(spec, memory.received, check)
        """Reads records, on the reading thread."""
        self._queue = SendQueue(sock, lambda is_blocked: self._watched.want_to_write(is_blocked))
        # Held by the thread that reads.
        self._reading = threading.Lock()
        self._watched: WatchedFile = watcher.watch(sock.fileno(), self._readable, self._failed, self._flush)
        # Requests have numbers of their own; those of the open batch begin with `_first`, which is also its number.
        self._next = 1
        self._first = 0
        self._batch_sizes: Sequence[int] = ()
        self._senders: Sequence[ResponseSender] = ()
        self._finished: set[int] = set()
        self._result: list[Outcome | DeferredOutcome] | None = None
        self._open: dict[int, _OpenSender] = {}
        self._is_starting = False
        self._started: tuple[bool, Any] | None = None
        self._on_frame: Mapping[int, OnFrame] = {}
        self._after_frames: Callable[[], None] = _nothing
        self.lost: StubGone | None = None
        """Why no frame is read or written any more."""
        self.sent_ns = 0
        """Monotonic nanoseconds: when the socket had taken the last batch."""
        self.on_lost: Callable[[StubGone], None] = _nothing

    def listen(self, on_frame: Mapping[int, OnFrame], after_frames: Callable[[], None]) -> None:
        """Set the callbacks for the other types of frames, and for the end of frames that came together.

        On the thread that reads, which must not wait.
        """
        self._on_frame = on_frame
        self._after_frames = after_frames

    # --- start, execute, stop

    def start(self, order: dict[str, Any], on_wait: Callable[[], None], wait_s: float) -> Any:
        """Send the order and wait for its result, a JSON value. `on_wait` is called each `wait_s` seconds meanwhile.

        Raises StubGone, and BackendFailed with the stub's reason.
        """
        with self._reading:
            self._is_starting = True
            self._send_now(frame(START, 0, (to_json(order),)))
            while self._started is None:
                if wait_readable(self._sock.fileno(), wait_s):
                    self._read()
                else:
                    on_wait()
            self._is_starting = False
        failed, result = self._started
        if failed:
            raise BackendFailed(readable(str(result)))
        self._watched.arm()
        return result

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender],
        limit_s: float | None,
    ) -> list[Outputs | Exception | DeferredOutcome]:
        """Execute a batch, and block until the outcome of each request is known.

        Raises StubSilent after `limit_s` seconds without it, and StubGone; `lose` must follow.
        """
        self._watched.disarm()
        outcomes: list[Outputs | Exception | DeferredOutcome] = []
        try:
            with self._reading:
                first = self._next
                with self._writing:
                    records = Records(self._numbers, self._memory)
                    refused = write_batch(records, first, requests, self._model, self._names, self._reshaped)
                    if len(refused) < len(requests):
                        self._queue.append(records.frame(EXECUTE, first))
                        self._numbers.sent()
                if refused:
                    sent = [index for index in range(len(requests)) if index not in refused]
                    batch_sizes = [batch_sizes[index] for index in sent]
                    senders = [senders[index] for index in sent] if senders else ()
                self._first, self._batch_sizes, self._senders = first, batch_sizes, senders
                self._next = first + len(batch_sizes)
                if batch_sizes:
                    self._send_now()
                self.sent_ns = monotonic_ns()
                if batch_sizes:
                    outcomes = self._outcomes_of(self._next_result(limit_s))
        except StubGone:
            raise
        except BaseException as error:
            raise self._lose(error) from error
        finally:
            self._batch_sizes = self._senders = ()
            self._finished.clear()
            self._watched.arm()
        if not refused:
            return outcomes
        executed = iter(outcomes)
        return [refused[index] if index in refused else next(executed) for index in range(len(requests))]

    def _next_result(self, limit_s: float | None) -> list[Outcome | DeferredOutcome]:
        end = None if limit_s is None else monotonic() + limit_s
        while True:
            if end is not None and not wait_readable(self._sock.fileno(), max(0.0, end - monotonic())):
                self.lost = self.lost or StubSilent(f"it did not answer within {limit_s:g} s")
                raise self.lost
            self._read()
            result, self._result = self._result, None
            if result is not None:
                return result

    def _outcomes_of(self, result: list[Outcome | DeferredOutcome]) -> list[Outputs | Exception | DeferredOutcome]:
        found: list[Outputs | Exception | DeferredOutcome] = []
        for index, outcome in enumerate(result):
            if outcome is LATER:
                number = self._first + index
                if number not in self._open and number not in self._finished:
                    self._open_now(number, self._senders[index])
                found.append(LATER)
                continue
            if outcome is AGAIN:
                found.append(AGAIN)
            elif outcome.error is not None:
                found.append(outcome.error)
            elif outcome.parameters:
                sender = self._senders[index]
                sender.send(outcome.outputs, final=True, parameters=outcome.parameters)
                found.append(LATER)
            else:
                found.append(outcome.outputs if outcome.outputs is not None else [])
            if self._open:
                self._open.pop(self._first + index, None)
        return found

    def release_memory(self) -> None:
        if self.lost is None:
            self._flush()  # tells the stub what it may free
            self.send(frame(RECLAIM, 0))
            self._memory.reclaim()

    def stop(self) -> None:
        self.send(frame(STOP, 0))

    # --- open requests

    def _find(self, number: int) -> _OpenSender | None:
        """Return the request with this number, or None if it has its final response. On the reading thread.

        Raises BadFrame if there was none.
        """
        found = self._open.get(number)
        if found is None:
            if not 0 < number < self._next:
                raise BadFrame(f"request {number}, which the process did not get")
            if 0 <= number - self._first < len(self._senders) and number not in self._finished:
                found = self._open_now(number, self._senders[number - self._first])
        return found

    def _open_now(self, number: int, sender: ResponseSender) -> _OpenSender:
        opened = self._open[number] = _OpenSender(sender)
        sender.watch(partial(self._changed, number))
        return opened

    def _changed(self, number: int) -> None:
        """The request was cancelled, or its client took responses. Any thread."""
        opened = self._open.get(number)
        if opened is None:
            return
        if opened.sender.is_cancelled:
            self.send(frame(CANCEL, number))
        else:
            self._give_credit(number, opened)

    def _give_credit(self, number: int, opened: _OpenSender) -> None:
        with self._writing:
            owed, opened.owed = opened.owed, 0
            if not owed:
                return
            self._queue.append(count_frame(CREDIT, number, owed))
        self._flush()

    def _respond(self, number: int, content: memoryview) -> None:
        outcome = self.outcomes.response(number, content)
        opened = self._find(number)
        if opened is None:
            return
        if outcome.is_final:
            del self._open[number]
            self._finished.add(number)
        sender = opened.sender
        sender.send(outcome.outputs, final=outcome.is_final, error=outcome.error, parameters=outcome.parameters)
        if not outcome.is_final:
            with self._writing:
                opened.owed += 1
            if (outcome.waits or opened.owed >= _CREDIT_PORTION) and not sender.is_full:
                self._give_credit(number, opened)

    # --- the socket

    def send(self, frame: bytes) -> None:
        """Send a frame, at once or as soon as the socket takes it. Does not block. Any thread."""
        self._queue.append(frame)
        self._flush()

    def send_records(self, kind: int, number: int, write: Callable[[Records], None]) -> None:
        """Send a frame of the records that `write` adds. Does not block, and raises nothing. Any thread."""
        try:
            with self._writing:
                if self.lost is not None:
                    return
                records = Records(self._numbers, self._memory)
                write(records)
                self._queue.append(records.frame(kind, number))
                self._numbers.sent()
        except Exception as error:
            self._failed(error)
        else:
            self._flush()

    def _flush(self) -> None:
        try:
            release = self._memory.release(RELEASE)
            if release:
                self._queue.append(release)
            self._queue.flush()
        except Exception as error:
            self._failed(error)

    def _send_now(self, frame: bytes = b"") -> None:
        """Send a frame, and wait until the socket has taken all."""
        if frame:
            self._queue.append(frame)
        self._flush()
        while self._queue.is_blocked and self.lost is None:
            wait_writable(self._sock.fileno(), None)
            self._queue.flush()

    def _readable(self) -> None:
        """Read frames between executions. On the watcher's thread."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            self._receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        finally:
            self._reading.release()
        self._watched.arm()

    def _read(self) -> None:
        """Wait for the next frames. Raises StubGone."""
        try:
            self._receive()
        except StubGone:
            raise
        except BaseException as error:
            raise self._lose(error) from error

    def _receive(self, socket_flags: int = 0) -> None:
        if self.lost is not None:
            raise self.lost
        with _COLLECTED_FLUSHES:
            for kind, flags, _, number, content in self._reader.receive(self._sock, socket_flags):
                if kind == RESULT:
                    if not self._batch_sizes or number != self._first or self._result is not None:
                        raise BadFrame(f"the result of batch {number}, which is not open")
                    self._result = self.outcomes.result(number, content, self._batch_sizes)
                elif kind == RESPONSE:
                    self._respond(number, content)
                elif kind == RELEASED:
                    self._memory.released(content, number)
                elif kind == WATCH:
                    self._find(number)
                elif kind == STARTED:
                    if not self._is_starting or self._started is not None:
                        raise BadFrame("a second result of the start")
                    self._started = (bool(flags & FAILED), from_json(content))
                else:
                    self._on_frame[kind](flags, number, content)
        self._after_frames()

    # --- the end

    def _lose(self, error: BaseException) -> StubGone:
        """Note why the channel is lost; the first reason counts. Returns it."""
        if self.lost is None:
            if isinstance(error, StubGone):
                self.lost = error
            elif isinstance(error, BadFrame):
                self.lost = StubFaulty(f"it sent a wrong frame: {error}")
            elif isinstance(error, OSError):
                self.lost = StubGone(str(error))
            else:
                _log.error("frames of a Python model's process could not be handled", exc_info=error)
                self.lost = StubFaulty(f"its frames could not be handled: {type(error).__name__}: {error}")
        return self.lost

    def _failed(self, error: Exception) -> None:
        self.on_lost(self._lose(error))

    def read_rest(self) -> None:
        """Read the last frames of an ended process, unless another thread does."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            while True:
                self._receive(socket.MSG_DONTWAIT)
        except (OSError, StubGone):
            pass  # that was all
        except Exception as error:
            self._lose(error)
        finally:
            self._reading.release()

    def lose(self, error: ServerError) -> None:
        """The stub is gone: answer all open requests with `error`, and free socket and memory."""
        self.lost = self.lost or StubGone("the stub process ended")
        self._watched.end()
        self._queue.close()
        with suppress(OSError):
            # Wakes a thread that reads. A child that the model forked may hold the other end open.
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._reading:
            while self._open:
                _, opened = self._open.popitem()
                try:
                    opened.sender.send(None, final=True, error=error)
                except Exception:
                    _log.exception("a request to a Python model could not be answered")
            self._sock.close()
            # The channel refers to itself, so that it may stay for a while, but nothing else with it.
            self._batch_sizes = self._senders = ()
            self._on_frame, self._after_frames, self.on_lost = {}, _nothing, _nothing
        self._memory.close()
