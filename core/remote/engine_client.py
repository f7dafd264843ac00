"""The Engine protocol over a socket: the engine as a front end in another process sees it.

Source: docs/architecture.md section 5.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from trident.core.borders import guarded
from trident.core.config.spec import ModelSpec
from trident.core.engine.protocol import Engine
from trident.core.errors import ModelNotFound, QueueFull, RequestCancelled, ServerError
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.response import Origin
from trident.core.inference.tensors import Array, Buffer
from trident.core.lifecycle.state import Phase, ServingPhase
from trident.core.observability.log import change_log, log_levels
from trident.core.observability.switches import TraceGate
from trident.core.observability.tracing.trace import TraceEvent
from trident.core.remote.calls import (
    EngineGone,
    EngineMethod,
    EngineState,
    decode_result,
    encode_call,
    engine_down,
    sent_by,
)
from trident.core.remote.connection import LOST, SOON, EngineConnection, Link, SharedMemoryFull, gone
from trident.core.waiting import Mailbox

_log = logging.getLogger("trident.engine")

# How long a request with large inputs waits for shared memory.
_MEMORY_SECONDS = 1.0
# A call that does not block is answered at once unless the engine is in trouble.
_CALL_SECONDS = 60.0
_LATEST = -1
_NOT_YET = "not started yet"
_STILL_LOADING = frozenset((Phase.ENGINE_DOWN, Phase.STARTING, Phase.LOADING))


class PendingCall(NamedTuple):
    """A call that was sent; `result` is called once, by the sender."""

    call: EngineMethod
    subject: object
    connection: EngineConnection
    number: int
    results: Mailbox[Any]
    was_recovering: bool

    def result(self) -> Any:
        """Wait for the result. Raises the ServerError that the engine raised, or EngineGone."""
        timeout_s = None if self.call.mark.blocks or self.call.mark.loads else _CALL_SECONDS
        try:
            result = self.results.get(timeout_s)
            if result is None:
                raise EngineGone(f"engine unavailable: no answer to '{self.call.name}' within {timeout_s:g} seconds")
            if result is LOST:
                raise EngineGone(f"engine unavailable: its process exited during '{self.call.name}'")
            return decode_result(self.call, result)
        except ModelNotFound as error:
            if not self.was_recovering:
                raise
            raise EngineGone(f"the engine has restarted and '{self.subject}' is not loaded yet", hint=SOON) from error
        finally:
            self.connection.forget(self.number)


class RemoteModel(NamedTuple):
    """A model of the engine: the ServedModel for all requests until other versions serve."""

    spec: ModelSpec
    submit: Callable[[PendingRequest], None]
    cached_answer: None = None


class RemoteEngine:
    """The engine that listens at `path`. Any thread may call any method; a call blocks only its own thread or greenlet.

    It connects by itself, and again after each loss. `memory_bytes` is the size of the shared memory, for requests and
    responses together. Between the loss of an engine and the end of the next one's loading an unknown model counts as
    one that is not loaded yet.
    """

    def __init__(self, path: str, link: Link, memory_bytes: int, on_change: Callable[[], None] | None = None) -> None:
        """`on_change` is called on the link's thread after each change of the engine's state, and after its loss."""
        self._path = path
        self._on_change = on_change
        self._link = link
        self._memory_bytes = memory_bytes
        self.connection: EngineConnection | None = None
        """The present connection, None without an engine."""
        self._state = engine_down(_NOT_YET)
        self._models: dict[tuple[str, int], RemoteModel] = {}
        self._waiting: deque[tuple[float, PendingRequest]] = deque()
        """The requests that wait for shared memory, and until when (monotonic seconds)."""
        self._is_exiting = False
        self.is_recovering = False
        """True from the loss of an engine until the next one has loaded its models."""
        self.trace_gate = TraceGate()

    def start(self) -> None:
        self._link.start(self)

    def begin_exit(self) -> None:
        """Become neither live nor ready; requests are still served."""
        self._is_exiting = True

    def close(self) -> None:
        """End the connection; every request and call that still waits gets EngineGone."""
        self._is_exiting = True
        self._link.close()
        self._lose("this server is stopping")

    def allocate(self, size: int) -> Array | None:
        """Return shared memory for a body of `size` bytes, which the engine reads in place; None if none is free."""
        connection = self.connection
        return connection.memory.allocate(size) if connection is not None else None

    def release_memory(self) -> None:
        """Return to the system the shared memory that no request uses; it takes milliseconds."""
        connection = self.connection
        if connection is not None:
            connection.memory.reclaim()

    @property
    def in_flight(self) -> int:
        """Number of requests that the engine has; without an engine, more than any can have."""
        connection = self.connection
        return connection.in_flight if connection is not None else sys.maxsize

    def has_in_memory(self, content: Buffer | Array) -> bool:
        connection = self.connection
        return connection is not None and connection.memory.offset_of(content) is not None

    # --- driven by the link

    @property
    def sock(self) -> Any:
        return self.connection.sock if self.connection is not None else None

    @property
    def wants_to_write(self) -> bool:
        return self.connection is not None and self.connection.wants_to_write

    def read(self) -> None:
        connection = self.connection
        if connection is None:
            return
        try:
            connection.read()
        except OSError:
            self._lose("its process exited")
        except Exception:  # the boundary of a process: what cannot be read must not end the hub's greenlets
            _log.exception("disconnecting the engine: its message cannot be read")
            self._lose("its message could not be read")
        if self._waiting:
            self._submit_waiting()

    def flush(self) -> None:
        connection = self.connection
        if connection is None:
            return
        if self._waiting:
            self._submit_waiting()
        connection.flush()

    def look(self) -> None:
        if self.connection is None:
            try:
                self.connection = EngineConnection(self._path, self._memory_bytes, self._learn, self._link.wake)
            except OSError as error:
                _log.debug("no engine at %s: %s", self._path, error)
            except ServerError as error:
                if self._state.phase.failures.get("engine") != error.message:
                    _log.error("cannot connect to the engine: %s", error.message)
                    self._state = engine_down(error.message)
        if self._waiting:
            self._submit_waiting()

    def _lose(self, reason: str) -> None:
        connection, self.connection = self.connection, None
        self._models = {}
        self._state = engine_down(reason)
        self.is_recovering = True
        if connection is not None:
            if not self._is_exiting:
                _log.error("lost the connection to the engine: %s", reason)
            connection.lose(reason)
        while self._waiting:
            _, pending = self._waiting.popleft()
            pending.refuse(gone(pending.request, reason))
        if self._on_change is not None:
            guarded(self._on_change, "noting a change of the engine's state")

    def _learn(self, state: EngineState) -> None:
        if state.generation != self._state.generation:
            self._models = {}
        self._state = state
        if state.log is not None and state.log != log_levels():
            guarded(partial(change_log, state.log), "changing the settings of the log")
        self.trace_gate.is_open = state.is_tracing
        self.trace_gate.reads_context = state.reads_trace_context
        if state.phase.name not in _STILL_LOADING:
            self.is_recovering = False
        if self._on_change is not None:
            guarded(self._on_change, "noting a change of the engine's state")

    def _submit_waiting(self) -> None:
        """Submit the requests that wait for memory, in their order; fail those that have waited too long."""
        while self._waiting:
            until, pending = self._waiting[0]
            connection = self.connection
            try:
                if pending.cancelled:
                    pending.refuse(RequestCancelled("the client went away"), Origin.CANCELLED)
                elif connection is None:
                    raise self.no_engine()
                else:
                    connection.submit(pending)
            except SharedMemoryFull:
                if time.monotonic() < until:
                    return
                pending.refuse(
                    QueueFull(
                        f"shared memory full: no space for the tensors within {_MEMORY_SECONDS:g} s",
                        hint="send fewer large requests at once, or give more with --http-worker-memory-bytes",
                    )
                )
            except Exception as error:
                pending.fail(error)
            self._waiting.popleft()

    # --- the Engine protocol

    def model(self, name: str, version: int = -1) -> RemoteModel:
        found = self._models.get((name, version))
        if found is None:
            models = self._models
            found = RemoteModel(self.model_spec(name, version), self._submit)
            if version >= _LATEST:  # the number of a hold may mean another version soon
                models[name, version] = found  # into the models of the generation in which it was asked for
        return found

    def model_nowait(self, name: str, version: int = -1) -> RemoteModel | None:
        return self._models.get((name, version))

    def _submit(self, pending: PendingRequest) -> None:
        connection = self.connection
        if connection is None:
            pending.refuse(gone(pending.request, self._state.phase.failures.get("engine", _NOT_YET)))
            return
        try:
            connection.submit(pending)
        except SharedMemoryFull:
            self._waiting.append((time.monotonic() + _MEMORY_SECONDS, pending))
            self._link.wake()
        except ServerError as error:
            pending.refuse(error)

    def _ask(self, call: EngineMethod, arguments: Sequence[object]) -> Any:
        """Send a call and wait for its result. Raises the ServerError that the engine raised, or EngineGone."""
        return self.begin(call, arguments).result()

    model_spec = sent_by(_ask, Engine.model_spec)
    hold_version = sent_by(_ask, Engine.hold_version)
    release_version = sent_by(_ask, Engine.release_version)
    server_metadata = sent_by(_ask, Engine.server_metadata)
    model_metadata = sent_by(_ask, Engine.model_metadata)
    model_config = sent_by(_ask, Engine.model_config)
    model_statistics = sent_by(_ask, Engine.model_statistics)
    slowest_requests = sent_by(_ask, Engine.slowest_requests)
    recent_traces = sent_by(_ask, Engine.recent_traces)
    overview = sent_by(_ask, Engine.overview)
    demand_overview = sent_by(_ask, Engine.demand_overview)
    history = sent_by(_ask, Engine.history)
    config_report = sent_by(_ask, Engine.config_report)
    repository_index = sent_by(_ask, Engine.repository_index)
    load_model = sent_by(_ask, Engine.load_model)
    prefetch_model = sent_by(_ask, Engine.prefetch_model)
    load_directory = sent_by(_ask, Engine.load_directory)
    directories = sent_by(_ask, Engine.directories)
    unload_model = sent_by(_ask, Engine.unload_model)
    is_model_ready = sent_by(_ask, Engine.is_model_ready)
    change_log = sent_by(_ask, Engine.change_log)
    system_regions = sent_by(_ask, Engine.system_regions)
    cuda_regions = sent_by(_ask, Engine.cuda_regions)
    register_system_region = sent_by(_ask, Engine.register_system_region)
    register_cuda_region = sent_by(_ask, Engine.register_cuda_region)
    unregister_regions = sent_by(_ask, Engine.unregister_regions)
    trace_settings = sent_by(_ask, Engine.trace_settings)
    change_trace = sent_by(_ask, Engine.change_trace)
    metrics = sent_by(_ask, Engine.metrics)

    def trace_answered(self, number: int, ahead: Sequence[TraceEvent], behind: Sequence[TraceEvent]) -> None:
        connection = self.connection
        if connection is not None:  # otherwise the trace has ended with its engine
            connection.trace_answered(number, ahead, behind)

    def is_live(self) -> bool:
        return self._state.live and not self._is_exiting

    def is_ready(self) -> bool:
        return self._state.ready and not self._is_exiting

    def phase(self) -> ServingPhase:
        return ServingPhase(name=Phase.EXITING) if self._is_exiting else self._state.phase

    def begin(self, call: EngineMethod, arguments: Sequence[object]) -> PendingCall:
        """Send a call. Raises EngineGone without an engine."""
        connection = self.connection
        if connection is None:
            raise self.no_engine()
        was_recovering = self.is_recovering
        results = self._link.mailbox()
        number = connection.call(encode_call(call.name, arguments), results.put)
        return PendingCall(call, arguments[0] if arguments else "", connection, number, results, was_recovering)

    def no_engine(self) -> EngineGone:
        reason = self._state.phase.failures.get("engine", _NOT_YET)
        return EngineGone(f"engine unavailable: {reason}", hint=SOON)
