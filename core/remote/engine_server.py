"""The engine's end of the sockets: accepts front ends, reads their requests and calls, and sends them its state.

Source: docs/architecture.md section 5.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from trident.core.borders import expected, guarded
from trident.core.engine.protocol import Engine, HoldChange, ServedModel
from trident.core.errors import ModelCold
from trident.core.inference.pending_request import CancelCause, Deferred, PendingRequest, StreamedRequest
from trident.core.inference.response import InferenceResponse, Origin
from trident.core.interprocess.frames import LARGE, BadFrame, Frame, FrameReader, SendQueue, frame
from trident.core.interprocess.shared_memory import SharedMemory
from trident.core.lifecycle.state import Phase
from trident.core.observability.log import log_levels
from trident.core.observability.tracing.trace import TraceEvent
from trident.core.remote.calls import (
    EngineMethod,
    EngineState,
    decode_call,
    encode_failure,
    encode_result,
    from_plain,
    read_plain,
    to_plain,
    write_plain,
)
from trident.core.remote.changes import ControlChange
from trident.core.remote.wire import (
    ACK,
    CALL,
    CANCEL,
    RELEASE,
    REQUEST,
    RESULT,
    STATE,
    STREAMED,
    TO_ENGINE,
    TRACED,
    failed_response,
    peer_of,
    read_request,
    write_response,
)

_log = logging.getLogger("trident.engine")

_LOOK_SECONDS = 0.05
_CALLS_AT_ONCE = 64
# A front end that cannot start must not keep the others from serving.
_GATHERING_SECONDS = 10.0

OnChange = Callable[[ControlChange], None]


class EngineServer:
    """Serves `engine`, an InferenceEngine, to the front ends that connect to `listener`, a listening Unix socket of
    this user.

    `on_change` is called with every successful load and unload, on the thread of the call, before the caller has its
    answer. The server is not ready while `is_restoring()` is true, because the models of the last engine are still
    being loaded. Nor is it ready until `expected` front ends have connected or `gathering_s` seconds have passed: the
    next front end that a client reaches must be ready, too.
    """

    def __init__(
        self,
        engine: Any,
        listener: socket.socket,
        *,
        on_change: OnChange | None = None,
        is_restoring: Callable[[], bool] = lambda: False,
        expected: int = 0,
        gathering_s: float = _GATHERING_SECONDS,
    ) -> None:
        self._engine = engine
        self._listener = listener
        self._on_change = on_change
        self._is_restoring = is_restoring
        self._missing = expected
        self._gathered_by = time.monotonic() + gathering_s
        self._poll = select.epoll()
        self._front_ends: dict[int, FrontEndConnection] = {}
        self._blocking = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="trident-call")
        # One thread, because it keeps the order, and several would not be faster: they share the interpreter.
        self._slow = ThreadPoolExecutor(1, thread_name_prefix="trident-slow-requests")
        self._pushing = threading.Lock()
        self._pushed: EngineState | None = None
        self._is_stopping = False
        # Monotonic seconds when something last arrived.
        self.last_work = 0.0
        self._own_thread = threading.Thread(target=self._serve, name="trident-front-ends", daemon=True)

    def start(self) -> None:
        self._listener.setblocking(False)
        self._poll.register(self._listener.fileno(), select.EPOLLIN)
        self._own_thread.start()

    def stop(self) -> None:
        """Send as much as the sockets take, and end all connections. Blocks until the thread has ended."""
        self._is_stopping = True
        self._own_thread.join()
        self._listener.close()  # first: a disconnected front end must not reach this server again
        self._blocking.shutdown(wait=False, cancel_futures=True)
        self._slow.shutdown(wait=False, cancel_futures=True)
        for front_end in list(self._front_ends.values()):
            front_end.flush()
            guarded(partial(self._end, front_end), "ending a front end's connection")
        self._poll.close()

    def push_state(self) -> None:
        """Send the state to all front ends if it has changed. Any thread."""
        engine = self._engine
        with self._pushing:  # from the look on: no thread may send an older state after this one
            must_wait = self._is_restoring() or self.is_gathering
            phase = engine.phase()
            state = EngineState(
                live=engine.is_live(),
                ready=engine.is_ready() and not must_wait,
                generation=engine.generation,
                phase=replace(phase, name=Phase.LOADING) if must_wait and phase.name == Phase.READY else phase,
                log=log_levels(),
                is_tracing=engine.trace_gate.is_open,
                reads_trace_context=engine.trace_gate.reads_context,
            )
            if state == self._pushed:
                return
            self._pushed = state
            content = _state_frame(state)
            for front_end in list(self._front_ends.values()):
                if front_end.has_greeted:
                    front_end.send(content)

    def release_memory(self) -> None:
        """Return unused shared memory to the system. Any thread; it takes milliseconds."""
        for front_end in list(self._front_ends.values()):
            if front_end.memory is not None:
                front_end.memory.reclaim()

    # --- the thread

    def _serve(self) -> None:
        poll, listener = self._poll, self._listener.fileno()
        next_look = 0.0
        while not self._is_stopping:
            ready = poll.poll(_LOOK_SECONDS)
            for descriptor, events in ready:
                front_end = self._front_ends.get(descriptor)
                if descriptor == listener:
                    guarded(self._accept, "accepting a front end")
                elif front_end is not None:
                    guarded(partial(self._serve_front_end, front_end, events), "serving a front end")
            now = time.monotonic()
            if ready:
                self.last_work = now
            if now >= next_look:
                next_look = now + _LOOK_SECONDS
                poll.modify(listener, select.EPOLLIN)
                guarded(self.push_state, "telling the front ends of the engine's state")

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is left: the thread must not spin until one is
            _log.error("cannot accept a front end: %s", error)
            self._poll.modify(self._listener.fileno(), 0)
            return
        _, user = peer_of(sock)
        if user not in (os.getuid(), 0):
            _log.warning("refusing a connection of user %d: front ends run as user %d", user, os.getuid())
            sock.close()
            return
        sock.setblocking(False)
        front_end = FrontEndConnection(sock, self._engine, self._called, self._watch, self._slow.submit)
        self._front_ends[sock.fileno()] = front_end
        self._poll.register(sock.fileno(), select.EPOLLIN)

    def _serve_front_end(self, front_end: FrontEndConnection, events: int) -> None:
        """Send to a front end, or read from it. A frame that cannot be read ends the connection and its requests."""
        had_greeted = front_end.has_greeted
        try:
            if events & select.EPOLLOUT:
                front_end.flush()
            goes_on = not events & ~select.EPOLLOUT or front_end.read()
        except BadFrame as error:
            # A text and not the error, which refers to the shared memory through its traceback.
            _log.error("disconnecting a front end: it sent %s", str(error))
            goes_on = False
        except Exception:
            _log.exception("disconnecting a front end: its message caused an unexpected error")
            goes_on = False
        if not goes_on:
            self._end(front_end)
        elif front_end.has_greeted and not had_greeted:
            with self._pushing:
                if self._pushed is not None:
                    front_end.send(_state_frame(self._pushed))
            self._missing -= 1
            guarded(self.push_state, "telling the front ends of the engine's state")

    @property
    def is_gathering(self) -> bool:
        """True until the expected front ends have connected or the time for it has passed. Any thread."""
        return self._missing > 0 and time.monotonic() < self._gathered_by

    def _end(self, front_end: FrontEndConnection) -> None:
        descriptor = front_end.sock.fileno()
        self._front_ends.pop(descriptor, None)
        self._poll.unregister(descriptor)
        front_end.close()

    def _watch(self, front_end: FrontEndConnection, blocked: bool) -> None:
        """Have the server's thread send the rest. Any thread.

        It does not read from the front end meanwhile: one that receives no answers cannot ask for more.
        """
        with contextlib.suppress(OSError):  # the connection is ending
            self._poll.modify(front_end.sock.fileno(), select.EPOLLOUT if blocked else select.EPOLLIN)

    # --- calls

    def _called(self, front_end: FrontEndConnection, number: int, content: memoryview) -> None:
        call, arguments = decode_call(content)
        if call.mark.blocks:
            self._blocking.submit(self._run, front_end, number, call, arguments)
        else:
            self._run(front_end, number, call, arguments)

    def _run(self, front_end: FrontEndConnection, number: int, call: EngineMethod, arguments: list[Any]) -> None:
        try:
            value = call.ask(self._engine, arguments)
            if call.mark.hold is HoldChange.TAKE:
                front_end.holds.add((arguments[0], value))
            elif call.mark.hold is HoldChange.RELEASE:
                front_end.holds.discard((arguments[0], arguments[1]))
            if call.mark.change is not None and self._on_change is not None:
                self._on_change(ControlChange(call, arguments))
            content = encode_result(call, value)
        except ModelCold as cold:
            if call.mark.loads:
                cold.await_load(partial(self._run, front_end, number, call, arguments))
                return
            content = encode_failure(cold)
        except Exception as error:  # the caller waits for an answer, whatever went wrong
            content = encode_failure(error)
        if call.mark.changes_state:
            # The other front ends must know of the change, or of a failed load, before the caller does.
            guarded(self.push_state, "telling the front ends of the engine's state")
        front_end.send(frame(RESULT, number, (content,)))


def _state_frame(state: EngineState) -> bytes:
    return frame(STATE, 0, (write_plain(to_plain(state)),))


_TRACED = tuple[tuple[TraceEvent, ...], tuple[TraceEvent, ...]]
_RECEIVE_SIZE = 1 << 16
OnCall = Callable[["FrontEndConnection", int, memoryview], None]
OnBlocked = Callable[["FrontEndConnection", bool], None]
# Calls a function on another thread, in the order in which they are given.
Elsewhere = Callable[[Callable[[], None]], object]


class FrontEndConnection:
    """The server's thread calls `read` and `close`; any thread may send.

    Responses are collected until `flush`, so that those of a batch are sent together. `on_blocked` is called with True
    when the socket takes no more for now and with False when it has taken everything; in between the server calls
    `flush` when the socket is writable. Requests with many strings are submitted `elsewhere`: unpacking a million takes
    half a second, for which all front ends would wait.
    """

    def __init__(
        self, sock: socket.socket, engine: Engine, on_call: OnCall, on_blocked: OnBlocked, elsewhere: Elsewhere
    ) -> None:
        self.sock = sock
        self.is_closed = False
        # The versions held for it, as (name, number). The server's thread.
        self.holds: set[tuple[str, int]] = set()
        self._engine = engine
        self._on_call = on_call
        self._elsewhere = elsewhere
        self._reader = FrameReader(TO_ENGINE, "the front end")
        self.memory: SharedMemory | None = None
        """Set with the front end's greeting."""
        self._pending: dict[int, PendingRequest] = {}
        self._deferred = Deferred()
        self.queue = SendQueue(sock, partial(on_blocked, self))
        # Sends the collected responses. Any thread; one object for all requests, because a batch calls it once.
        self.flush: Callable[[], None] = self.queue.flush

    @property
    def has_greeted(self) -> bool:
        return self.memory is not None

    # --- from the front end

    def read(self) -> bool:
        """Read what has arrived and act on it. Returns False if the front end has closed its end.

        Raises BadFrame, and other errors for what no front end sends.
        """
        try:
            frames = self._reader.receive(self.sock) if self.memory is not None else self._receive_greeting()
        except BlockingIOError:
            return True
        except OSError:
            return False
        try:
            for found in frames:
                kind, flags, shared, number, content = found
                if kind == REQUEST:
                    self._submit(number, content, shared, flags)
                elif kind == CANCEL:
                    pending = self._pending.get(number)
                    if pending is not None:
                        pending.cancel(CancelCause.of_number(flags))
                elif kind == ACK:
                    pending = self._pending.get(number)
                    if pending is not None:  # otherwise its final response was sent
                        assert isinstance(pending, StreamedRequest)
                        pending.take(int(bytes(content)))
                elif kind == RELEASE:
                    assert self.memory is not None
                    self.memory.released(content, number)
                elif kind == TRACED:
                    ahead, behind = from_plain(read_plain(content), _TRACED)
                    guarded(partial(self._engine.trace_answered, number, ahead, behind), "noting an answer in a trace")
                elif kind == CALL:
                    self._on_call(self, number, content)
        finally:
            self._deferred.run()
        if self.queue:
            self.flush()
        return True

    def _receive_greeting(self) -> list[Frame]:
        """The first frame is sent in one piece, with the descriptor of the shared memory."""
        content, descriptors, _, _ = socket.recv_fds(self.sock, _RECEIVE_SIZE, 1)
        if not content:
            raise ConnectionResetError("the front end closed its socket")
        if not descriptors:
            raise BadFrame("no shared memory with its first frame")
        self.memory = SharedMemory.attach(descriptors[0])
        return self._reader.feed(content)

    def _submit(self, number: int, content: memoryview, shared: int, flags: int) -> None:
        assert self.memory is not None
        request = read_request(content, shared, flags, self.memory)
        model: ServedModel | None = None
        cold: ModelCold | None = None
        try:
            model = self._engine.model(request.model_name, request.model_version)
        except ModelCold as error:
            cold = error
        except Exception as error:
            refusal = expected(error, f"finding the model '{request.model_name}'")
            self._collect(number, InferenceResponse.failed(request, refusal, Origin.REFUSED))
            return
        make = StreamedRequest if flags & STREAMED else PendingRequest
        is_slow = (shared or len(content) >= LARGE) and request.may_be_passed
        defer = None if is_slow else self._deferred.add
        pending = make(request, partial(self._respond, number), defer=defer, flush=self.flush)
        self._pending[number] = pending
        if model is None:
            # It was let go since the front end found it.
            assert cold is not None
            cold.await_load(partial(self._submit_loaded, pending))
        elif is_slow:
            self._elsewhere(partial(pending.submit_to, model))
        else:
            pending.submit_to(model)

    def _submit_loaded(self, pending: PendingRequest) -> None:
        """Submit a request to the model that was loaded for it. Any thread."""
        request = pending.request
        pending.defer = None
        try:
            pending.submit_to(self._engine.model(request.model_name, request.model_version))
        except ModelCold as cold:
            cold.await_load(partial(self._submit_loaded, pending))
        except Exception as error:
            pending.fail(error)

    # --- to the front end

    def _respond(self, number: int, response: InferenceResponse) -> None:
        """Collect a response, unless the final one was collected before."""
        if (self._pending.pop(number, None) if response.final else self._pending.get(number)) is not None:
            self._collect(number, response)

    def _collect(self, number: int, response: InferenceResponse) -> None:
        memory = self.memory
        if self.is_closed or memory is None:
            return
        try:
            content = write_response(response, number, memory)
        except Exception as error:  # a bug of the engine must reach the caller and not end the instance thread
            if self.is_closed:
                return  # the memory was closed meanwhile
            failure = expected(error, f"sending a response of model '{response.model_name}' to a front end")
            named = InferenceResponse(response.model_name, response.model_version, [], final=response.final)
            content = failed_response(named, failure, number)
        self.queue.append(content)

    def send(self, content: bytes) -> None:
        """Send a frame now, after those that were collected. Any thread."""
        self.queue.append(content)
        self.flush()

    def close(self) -> None:
        """Cancel its requests, release what it holds, and close its memory and its socket. The server's thread."""
        self.is_closed = True
        self.queue.close()
        for pending in list(self._pending.values()):
            pending.cancel()
        self._pending.clear()
        for name, number in self.holds:
            guarded(partial(self._engine.release_version, name, number), "releasing a model version")
        self.holds.clear()
        if self.memory is not None:
            self.memory.close()
        self.sock.close()
