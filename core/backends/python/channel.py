"""The server's end of the socket to a stub process, and the memory that they share.

The thread that executes reads the socket while it waits for the outcomes of its batch, so that no other thread is woken
on the way. Between executions the watcher's thread reads it.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, monotonic_ns
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import orjson

from trident.core.backends.python.output_check import OutputCheck
from trident.core.backends.python.stub.trident_stub.wire import AGAIN as MARKED_AGAIN
from trident.core.backends.python.stub.trident_stub.wire import (
    CANCEL,
    CREDIT,
    EMPTY,
    EXECUTE,
    FAILED,
    FINAL,
    RECORD,
    RELEASE,
    RELEASED,
    RESPONSE,
    RESULT,
    START,
    STARTED,
    STOP,
    TO_SERVER,
    WAITS,
    WATCH,
    Description,
    Layout,
    LayoutNumbers,
    LayoutTable,
    Record,
    Share,
    ViewOf,
    read_record,
    tensors_of,
    write_record,
)
from trident.core.backends.python.stub.trident_stub.wire import LATER as MARKED_LATER
from trident.core.backends.python.watcher import Watched, Watcher
from trident.core.backends.tensors.split import client_shape
from trident.core.config.spec import ModelSpec
from trident.core.errors import (
    AlreadyLoaded,
    BackendFailed,
    InvalidRequest,
    ModelNotFound,
    ModelNotReady,
    RequestCancelled,
    ServerError,
    Unsupported,
)
from trident.core.inference.flushing import CollectedFlushes
from trident.core.inference.request import InferenceRequest, InputTensor, PackedInputs, Parameter
from trident.core.inference.response import Outputs, OutputTensor, PackedOutputs, ReceivedOutput
from trident.core.inference.streaming import AGAIN, LATER, DeferredOutcome, ResponseSender
from trident.core.inference.tensors import Buffer, Shape, TensorLayout, layout_of, wire_bytes
from trident.core.interprocess.frames import (
    LARGE,
    PADDING,
    BadFrame,
    FrameReader,
    SendQueue,
    frame,
    wait_readable,
    wait_writable,
)
from trident.core.interprocess.shared_memory import SharedMemory

# A sender gets new credit after so many responses, or when its client, who was slow, has room again.
_CREDIT_PORTION = 64
_COLLECTED_FLUSHES = CollectedFlushes()

OnFrame = Callable[[int, int, memoryview], None]


class StubGone(Exception):
    """The stub process ended, or does not speak this protocol. Its text is the reason."""


class StubSilent(StubGone):
    """The stub did not answer in time."""


class Asked(Protocol):
    """What the model asks of the server."""

    @property
    def on_frame(self) -> Mapping[int, OnFrame]:
        """What to call for each type of frame that the channel does not know itself."""
        ...

    def after_frames(self) -> None:
        """Called on the reading thread after all frames that came together."""
        ...


class _OpenRequest:
    """A request whose sender the model uses. `owed` is the credit for responses that were sent."""

    __slots__ = ("owed", "sender")

    def __init__(self, sender: ResponseSender) -> None:
        self.sender = sender
        self.owed = 0


class StubChannel:
    """`start` and `execute` on one thread at a time; any thread calls the other methods."""

    def __init__(
        self,
        sock: socket.socket,
        memory: SharedMemory,
        spec: ModelSpec,
        watcher: Watcher,
        check: OutputCheck,
    ) -> None:
        """Takes ownership of both. `sock` blocks."""
        self._sock = sock
        self._memory = memory
        self._reader = FrameReader(TO_SERVER, "the stub process")
        # Frames get their order under this lock, and layouts their numbers.
        self._writing = threading.Lock()
        self._numbers = LayoutNumbers()
        self._writer = RequestWriter(spec, self._numbers, memory.share)
        self._outcomes = OutcomeReader(spec, memory.received, check)
        self._queue = SendQueue(sock, self._blocked)
        # Held by the thread that reads.
        self._reading = threading.Lock()
        self._watched: Watched = watcher.watch(sock.fileno(), self._readable, self._flush)
        self._next = 1
        self._batch_sizes: Sequence[int] = ()
        self._senders: Sequence[ResponseSender] = ()
        self._first = 0
        self._finished: set[int] = set()
        self._result: list[Outcome | DeferredOutcome] | None = None
        self._open: dict[int, _OpenRequest] = {}
        self._started: tuple[bool, Any] | None = None
        self._on_frame: Mapping[int, OnFrame] = {}
        self._after_frames: Callable[[], None] = _nothing
        self._is_lost = False
        self.sent_ns = 0
        """Monotonic nanoseconds: when the socket had taken the last batch."""
        self.on_lost: Callable[[], None] = _nothing

    def answer(self, asked: Asked) -> None:
        """Let `asked` answer what the model asks."""
        self._on_frame = asked.on_frame
        self._after_frames = asked.after_frames

    # --- start, execute, stop

    def start(self, order: dict[str, Any], on_wait: Callable[[], None], wait_s: float) -> Any:
        """Send the order and wait for its result, a JSON value. `on_wait` is called each `wait_s` seconds meanwhile.

        Raises StubGone, and BackendFailed with the stub's reason.
        """
        with self._reading:
            self._send_now(frame(START, 0, (json.dumps(order).encode(),)))
            while self._started is None:
                try:
                    self._read(wait_s)
                except StubSilent:
                    on_wait()
        failed, result = self._started
        if failed:
            raise BackendFailed(result)
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
        try:
            with self._reading:
                self._first, self._batch_sizes, self._senders = self._next, batch_sizes, senders
                self._next += len(requests)
                with self._writing:
                    self._queue.append(self._writer.write(self._first, self._first, requests))
                self._send_now()
                self.sent_ns = monotonic_ns()
                return self._outcomes_of(self._next_result(limit_s))
        finally:
            self._batch_sizes = self._senders = ()
            self._finished.clear()
            self._watched.arm()

    def _next_result(self, limit_s: float | None) -> list[Outcome | DeferredOutcome]:
        end = None if limit_s is None else monotonic() + limit_s
        while True:
            self._read(None if end is None else max(0.0, end - monotonic()))
            result, self._result = self._result, None
            if result is not None:
                return result

    def _outcomes_of(self, result: list[Outcome | DeferredOutcome]) -> list[Outputs | Exception | DeferredOutcome]:
        found: list[Outputs | Exception | DeferredOutcome] = []
        for index, outcome in enumerate(result):
            if outcome is LATER:
                self._keep_open(index)
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

    def stop(self) -> None:
        """Ask the stub to finalize its model and to end. Does not wait."""
        self.send(frame(STOP, 0))

    # --- open requests

    def _find(self, number: int) -> _OpenRequest | None:
        """The request of this number; None if it has its final response. On the reading thread."""
        found = self._open.get(number)
        if found is None and 0 <= number - self._first < len(self._senders) and number not in self._finished:
            found = self._open_now(number, self._senders[number - self._first])
        return found

    def _keep_open(self, index: int) -> None:
        number = self._first + index
        if number not in self._open and number not in self._finished:
            self._open_now(number, self._senders[index])

    def _open_now(self, number: int, sender: ResponseSender) -> _OpenRequest:
        opened = self._open[number] = _OpenRequest(sender)
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

    def _give_credit(self, number: int, opened: _OpenRequest) -> None:
        with self._writing:
            owed, opened.owed = opened.owed, 0
            if not owed:
                return
            self._queue.append(frame(CREDIT, number, flags=owed))
        self._flush()

    def _respond(self, flags: int, number: int, content: memoryview) -> None:
        outcome = self._outcomes.response(content)
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

    def read_asked(self, content: memoryview) -> AskedRequest:
        """The request of the model in a frame. On the thread that reads. Raises BadFrame."""
        return self._outcomes.asked(content)

    def _watch(self, flags: int, number: int, content: memoryview) -> None:
        self._find(number)

    # --- the socket

    def send(self, frame: bytes) -> None:
        """Send a frame, at once or as soon as the socket takes it. Does not block."""
        self._queue.append(frame)
        self._flush()

    def write_records(self, write: Callable[[LayoutNumbers, Share], bytes]) -> None:
        """Send the frame that `write` makes. Does not block. Any thread."""
        with self._writing:
            if self._is_lost:
                return
            self._queue.append(write(self._numbers, self._memory.share))
        self._flush()

    def _flush(self) -> None:
        release = self._memory.release(RELEASE)
        if release:
            self._queue.append(release)
        self._queue.flush()

    def _blocked(self, is_blocked: bool) -> None:
        self._watched.want_to_write(is_blocked)

    def _send_now(self, frame: bytes = b"") -> None:
        """Send a frame, and wait until the socket has taken all."""
        if frame:
            self._queue.append(frame)
        self._flush()
        while self._queue.is_blocked and not self._is_lost:
            wait_writable(self._sock.fileno(), None)
            self._queue.flush()

    def _readable(self) -> None:
        """Read what has come between executions. On the watcher's thread."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            self._receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except (OSError, BadFrame):
            self._is_lost = True
            self.on_lost()
            return
        finally:
            self._reading.release()
        self._watched.arm()

    def _read(self, timeout_s: float | None) -> None:
        if self._is_lost:
            raise StubGone("the stub process ended")
        try:
            if timeout_s is not None and not wait_readable(self._sock.fileno(), timeout_s):
                raise StubSilent(f"it did not answer within {timeout_s:g} s")
            self._receive()
        except (OSError, BadFrame) as error:
            self._is_lost = True
            raise StubGone(str(error)) from None

    def _receive(self, socket_flags: int = 0) -> None:
        with _COLLECTED_FLUSHES:
            for kind, flags, _, number, content in self._reader.receive(self._sock, socket_flags):
                if kind == RESULT:
                    self._result = self._outcomes.result(content, self._batch_sizes)
                elif kind == RESPONSE:
                    self._respond(flags, number, content)
                elif kind == RELEASED:
                    self._memory.released(content, number)
                elif kind == WATCH:
                    self._watch(flags, number, content)
                elif kind == STARTED:
                    self._started = (bool(flags & FAILED), json.loads(bytes(content)))
                else:
                    on_frame = self._on_frame.get(kind)
                    if on_frame is not None:
                        on_frame(flags, number, content)
        self._after_frames()

    # --- the end

    def lose(self, error: ServerError) -> None:
        """The stub is gone: answer all open requests with `error`, and free socket and memory."""
        self._is_lost = True
        self._watched.end()
        self._queue.close()
        with suppress(OSError):
            # Wakes a thread that reads. A child that the model forked may hold the other end open.
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._reading:
            while self._open:
                _, opened = self._open.popitem()
                opened.sender.send(None, final=True, error=error)
            self._sock.close()
            # The channel refers to itself, so that it may stay for a while, but nothing else with it.
            self._batch_sizes = self._senders = ()
            self._on_frame, self._after_frames, self.on_lost = {}, _nothing, _nothing
        self._memory.close()


def _nothing() -> None: ...


_SEQUENCE_START, _SEQUENCE_END = 1, 2


class RequestWriter:
    """Makes the frame of a batch. Under the lock under which frames get their order.

    Inputs have the shapes that the model sees, and their bytes as they arrived.
    """

    def __init__(self, spec: ModelSpec, numbers: LayoutNumbers, share: Share) -> None:
        self._numbers = numbers
        self._share = share
        self._names = tuple(spec.outputs)
        self._reshaped = frozenset(name for name, tensor in spec.inputs.items() if tensor.model_dims is not None)

    def write(self, batch: int, first: int, requests: Sequence[InferenceRequest]) -> bytes:
        """The frame of batch number `batch`, whose requests are numbered from `first` on."""
        records: list[Any] = []
        find, packs = self._numbers.find, not self._reshaped
        for number, request in enumerate(requests, first):
            inputs = request.inputs
            if packs and type(inputs) is PackedInputs and inputs.layout.size < LARGE:
                layout = inputs.layout
                found = find((layout, request.outputs))
                if found is None:
                    found = self._add((layout, request.outputs), request, [each[:3] for each in layout.entries])
                if found[1]:
                    fields = request_fields(request)
                    size = layout.size
                    records.append(RECORD.pack(number, found[0], 0, 0, 0, len(fields), size))
                    if fields:
                        records += (fields, PADDING[len(fields) & 15])
                    records.append(inputs.content)
                    if size & 15:
                        records.append(PADDING[size & 15])
                    continue
            self._write(records, number, request)
        return frame(EXECUTE, batch, [self._numbers.head(len(requests)), *records])

    def _write(self, records: list[Any], number: int, request: InferenceRequest) -> None:
        tensors = [(tensor.name, tensor.datatype, self._shape(tensor)) for tensor in request.inputs]
        key = (*tensors, request.outputs)
        found = self._numbers.find(key)
        if found is None:
            found = self._add(key, request, tensors)
        contents = [_content(tensor) for tensor in request.inputs]
        write_record(records, number, found, contents, self._share, fields=request_fields(request))

    def _add(
        self, key: tuple[object, ...], request: InferenceRequest, tensors: list[tuple[str, str, Shape]]
    ) -> tuple[int, bool]:
        return self._numbers.add(key, tensors, request.outputs or self._names)

    def _shape(self, tensor: InputTensor) -> Shape:
        return tensor.array.shape if tensor.name in self._reshaped else tensor.shape


def _content(tensor: InputTensor) -> Buffer:
    content = tensor.data
    return content if type(content) is memoryview else wire_bytes(np.ascontiguousarray(content))


def request_fields(request: InferenceRequest) -> bytes:
    """The JSON object of what few requests have; empty for a request without any of it."""
    if not (
        request.id
        or request.parameters
        or request.correlation_id
        or request.timeout_us
        or request.sequence_start
        or request.sequence_end
        or request.trace
    ):
        return b""
    fields: dict[str, object] = {}
    if request.id:
        fields["id"] = request.id
    if request.parameters:
        fields["parameters"] = request.parameters
    if request.correlation_id:
        fields["correlation_id"] = request.correlation_id
    if request.timeout_us:
        fields["timeout"] = request.timeout_us
    flags = (_SEQUENCE_START if request.sequence_start else 0) | (_SEQUENCE_END if request.sequence_end else 0)
    if flags:
        fields["flags"] = flags
    trace = request.trace
    if trace is not None:
        fields["trace"] = [trace.number, trace.context_json()]
    try:
        return orjson.dumps(fields)
    except TypeError:  # half a surrogate pair, an integer of more than 64 bits
        return json.dumps(fields).encode()


# By the numbers of TritonError.
_ERRORS: tuple[type[ServerError], ...] = (
    ServerError,
    BackendFailed,
    ModelNotFound,
    InvalidRequest,
    ModelNotReady,
    Unsupported,
    AlreadyLoaded,
    RequestCancelled,
)


# Numbers of rows that say something else.
ANY: Final = -1
UNEQUAL: Final = -2


class Outcome(NamedTuple):
    """What a record says of a request: outputs, an error, or neither. `waits`: its sender waits for credit."""

    outputs: Outputs | None
    error: ServerError | None
    parameters: dict[str, Parameter] | None
    is_final: bool
    waits: bool = False


class AskedRequest(NamedTuple):
    """A request of the model to another one: its record, its inputs, and the outputs that it wants."""

    record: Record
    inputs: list[tuple[Description, memoryview]]
    requested: tuple[str, ...]


class _Outputs:
    """A layout that the stub has sent; `judge` makes it one of outputs, as the client sees them.

    `packed` is that of outputs which follow each other in a record; None if some of them are not in the configuration
    and are dropped. `rows` is the number of rows of each; ANY if they need not have that of the batch, otherwise
    UNEQUAL if they differ. `fault` is why they are refused; "" if they are not.
    """

    def __init__(self, tensors: tuple[Description, ...], requested: tuple[str, ...]) -> None:
        self.layout = layout = Layout(tensors, requested)
        self.size = layout.size
        self.sizes = layout.sizes
        self.is_judged = False
        self.tensors: list[tuple[str, str, Shape] | None] = []
        self.packed: TensorLayout | None = None
        self.rows = ANY
        self.fault = ""

    def judge(self, spec: ModelSpec, check: OutputCheck) -> None:
        self.is_judged = True
        has_batch = spec.max_batch_size > 0
        rows: set[int] = set()
        for name, datatype, shape in self.layout.tensors:
            self.fault = self.fault or check.fault(name, datatype, shape)
            output = spec.outputs.get(name)
            known = None if output is None else (name, datatype, client_shape(output, shape, has_batch))
            self.tensors.append(known)
            if known is not None and has_batch and not spec.decoupled and shape:
                rows.add(shape[0])
        if rows:
            self.rows = rows.pop() if len(rows) == 1 else UNEQUAL
        described = [(*each, size) for each, size in zip(self.tensors, self.sizes, strict=True) if each is not None]
        if self.layout.size >= 0 and len(described) == len(self.tensors) and not self.fault:
            self.packed = layout_of(described)


class OutcomeReader:
    """Reads the records of one stub. One thread at a time."""

    def __init__(self, spec: ModelSpec, view_of: ViewOf, check: OutputCheck) -> None:
        self._model = spec.name
        self._spec = spec
        self._view_of = view_of
        self._check = check
        self._table = LayoutTable(_Outputs)

    def result(self, content: memoryview, batch_sizes: Sequence[int]) -> list[Outcome | DeferredOutcome]:
        """The outcome of each request of a batch, of which these are the sizes. Raises BadFrame."""
        records, at = self._table.read_head(content)
        if records != len(batch_sizes):
            raise BadFrame(f"{records} outcomes for {len(batch_sizes)} requests")
        layouts, unpack = self._table.layouts, RECORD.unpack_from
        found: list[Outcome | DeferredOutcome] = []
        end = len(content)
        for batch_size in batch_sizes:
            if end - at < 32:
                raise BadFrame("a result that ends too early")
            _, number, flags, places, text, fields, size = unpack(content, at)
            if flags == FINAL and not (places or text or fields):
                layout = layouts.get(number)
                if layout is not None and not layout.is_judged:
                    layout.judge(self._spec, self._check)
                if (
                    layout is not None
                    and layout.packed is not None
                    and layout.size == size
                    and (layout.rows == batch_size or layout.rows == ANY)
                ):
                    start = at + 32
                    at = (start + size + 15) & -16
                    if at > end:
                        raise BadFrame("a result that is shorter than its outputs")
                    found.append(Outcome(PackedOutputs(layout.packed, content[start : start + size]), None, None, True))
                    continue
            record, at = read_record(content, at)
            if record.flags & (MARKED_LATER | MARKED_AGAIN):
                found.append(AGAIN if record.flags & MARKED_AGAIN else LATER)
            else:
                found.append(self.outcome(record, batch_size))
        return found

    def response(self, content: memoryview) -> Outcome:
        """The one record of a frame. Raises BadFrame."""
        _, at = self._table.read_head(content)
        return self.outcome(read_record(content, at)[0])

    def asked(self, content: memoryview) -> AskedRequest:
        """The request of the model to another one. Raises BadFrame."""
        _, at = self._table.read_head(content)
        record, _ = read_record(content, at)
        known = self._known(record)
        contents = self._contents(record, known)
        return AskedRequest(record, list(zip(known.layout.tensors, contents, strict=True)), known.layout.requested)

    def outcome(self, record: Record, batch_size: int = ANY) -> Outcome:
        is_final, waits = bool(record.flags & FINAL), bool(record.flags & WAITS)
        if record.flags & FAILED:
            return Outcome(None, self._error(record), None, is_final, waits)
        if record.flags & EMPTY:
            return Outcome(None, None, None, is_final)
        layout = self._known(record)
        if not layout.is_judged:
            layout.judge(self._spec, self._check)
        fault = layout.fault
        if not fault and batch_size != ANY and layout.rows not in (ANY, batch_size):
            fault = self._rows_fault(layout, batch_size)
        if fault:
            return Outcome(None, BackendFailed(fault, model=self._model), None, is_final, waits)
        parameters = orjson.loads(record.fields) if record.fields else None
        return Outcome(self._outputs(record, layout), None, parameters, is_final, waits)

    def _rows_fault(self, layout: _Outputs, batch_size: int) -> str:
        fault = ""
        for name, _, shape in layout.layout.tensors:
            if name in self._spec.outputs and shape and shape[0] != batch_size:
                fault = fault or self._check.rows_fault(name, shape[0], batch_size)
        return fault

    def _outputs(self, record: Record, layout: _Outputs) -> Outputs:
        if not record.places and layout.packed is not None and layout.size == len(record.run):
            return PackedOutputs(layout.packed, record.run)
        contents = self._contents(record, layout)
        outputs: list[OutputTensor] = []
        for described, content in zip(layout.tensors, contents, strict=True):
            if described is not None:
                name, datatype, shape = described
                outputs.append(ReceivedOutput(name, datatype, shape, content))
        return outputs

    def _known(self, record: Record) -> _Outputs:
        found: _Outputs | None = self._table.layouts.get(record.layout)
        if found is None:
            raise BadFrame(f"the unknown layout {record.layout}")
        return found

    def _contents(self, record: Record, known: _Outputs) -> list[memoryview]:
        if record.places:
            return tensors_of(record, known.sizes, self._view_of)
        if known.size != len(record.run):
            raise BadFrame(f"{len(record.run)} bytes of tensors that have {known.size}")
        return [record.run[start:end] for _, _, _, start, end in known.layout.spans]

    def _error(self, record: Record) -> ServerError:
        kind = _ERRORS[record.layout] if record.layout < len(_ERRORS) else BackendFailed
        return kind(record.text, model=self._model)
