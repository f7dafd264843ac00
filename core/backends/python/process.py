"""The process of a model instance: its start and end, its output, and the requests of its model to the server.

Source: docs/spec/python-backend.md sections 4.3 and 4.4.
"""

from __future__ import annotations

import base64
import logging
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import IO, Any

from trident.core.backends.backend import BlsClient, Execution
from trident.core.backends.model_files import field_of
from trident.core.backends.python.batches import SEQUENCE_END, SEQUENCE_START, OutputCheck
from trident.core.backends.python.channel import FileWatcher, StubChannel, StubFaulty, StubGone
from trident.core.backends.python.stub.trident_stub.wire import (
    ANSWER,
    CALL,
    DECOUPLED,
    DROP,
    FAILED,
    FINAL,
    INFER,
    LOG,
    QUESTION,
    REPLY,
    TAKEN,
    WITHIN,
    Records,
    from_json,
    to_json,
)
from trident.core.config.placement import Placement
from trident.core.config.spec import ModelSpec
from trident.core.errors import (
    BackendFailed,
    ConfigInvalid,
    ErrorCode,
    ModelLoadFailed,
    ModelNotReady,
    OutOfMemory,
    ServerError,
    Unsupported,
    readable,
)
from trident.core.inference.pending_request import (
    CancelCause,
    Deferred,
    PendingRequest,
    ResponseSender,
    StreamedRequest,
)
from trident.core.inference.request import InferenceRequest, InputTensor, RequestTrace, version_number
from trident.core.inference.response import InferenceResponse
from trident.core.interprocess.frames import BadFrame, frame, wait_readable
from trident.core.interprocess.restarts import end_text
from trident.core.interprocess.shared_memory import SharedMemory
from trident.core.observability.hardware import text_of
from trident.core.observability.metrics.custom_metrics import CustomMetrics, MetricKind, OwnMetrics

_log = logging.getLogger("trident.backends.python")

PROGRAM = Path(__file__).with_name("stub")
_KEPT_LINES = 8
_LONGEST_LINE = 1 << 16
_NOT_THE_MODEL = (str(PROGRAM), 'File "<frozen ', "importlib/__init__.py", "Extension modules: ")
# A process that closed its socket is about to end: how it ends is worth this wait.
_LAST_BREATH_S = 1.0

OnLine = Callable[[int, str], None]


class _Output:
    """Reads what a process prints to one of its pipes, as lines."""

    def __init__(
        self,
        pipe: IO[bytes],
        level: int,
        on_line: OnLine,
        watcher: FileWatcher,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._pipe = pipe
        self._level = level
        self._on_line = on_line
        self._lock = threading.Lock()
        self._begun = b""
        os.set_blocking(pipe.fileno(), False)
        self._watched = watcher.watch(pipe.fileno(), self._readable, on_error)
        self._watched.arm()

    def _readable(self) -> None:
        if self._read():
            self._watched.arm()

    def _read(self) -> bool:
        """Pass on the lines that are there. Returns whether more may come."""
        with self._lock:
            try:
                content = os.read(self._pipe.fileno(), _LONGEST_LINE) if not self._pipe.closed else b""
            except BlockingIOError:
                return True
            *lines, self._begun = (self._begun + content).split(b"\n")
            if self._begun and (not content or len(self._begun) >= _LONGEST_LINE):
                lines.append(self._begun)
                self._begun = b""
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                if text:
                    self._on_line(self._level, text)
            return bool(content)

    def close(self) -> None:
        """Pass on the last lines."""
        self._watched.end()
        # A child of the process may hold the other end: then nothing more may come, and no end of the file either.
        while wait_readable(self._pipe.fileno(), 0) and self._read():
            pass
        with self._lock:
            self._pipe.close()
            self._on_line = lambda level, text: None  # no cycle: the process has its outputs


LIMIT_S = 5.0


class ReadinessCheck:
    """Asks over the socket that a stub process has for it alone, so that a long execution does not delay the answer.

    A question is its number, and the answer a line of JSON: that number, whether the model is ready, and why it is not.
    Any thread. Those who ask at the same time share one answer, and who asks while the model still thinks about an
    earlier question, whose time is over, gets the answer to that one.
    """

    def __init__(self, sock: socket.socket, instance: str, limit_s: float = LIMIT_S) -> None:
        self._sock = sock
        self._instance = instance
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._shared: Future[str | None] | None = None
        self._number = 0
        # The last question that was sent has no answer yet.
        self._is_open = False
        self._received = b""

    def ask(self) -> None:
        """Raises ModelNotReady with the reason. Blocks."""
        with self._lock:
            is_first = self._shared is None
            shared = self._shared = self._shared or Future()
        if is_first:
            try:
                reason = self._ask(time.monotonic() + self._limit_s)
            except Exception as error:
                if not isinstance(error, OSError):
                    _log.exception("the process of model instance '%s' gave a wrong answer", self._instance)
                reason = f"Stub process '{self._instance}' is not healthy."
            with self._lock:
                self._shared = None
            shared.set_result(reason)
        if reason := shared.result():
            raise ModelNotReady(reason)

    def _ask(self, end: float) -> str | None:
        """Return the reason why the model is not ready; None if it is. Raises OSError and BadFrame."""
        self._receive(0)  # an answer that no call waited for says nothing about now
        if not self._is_open:
            self._is_open = True
            self._number += 1
            self._sock.send(QUESTION.pack(self._number))
        while (answer := self._receive(end - time.monotonic())) is None:
            if time.monotonic() >= end:
                return "Timed out waiting for user-defined is_ready() response"
        is_ready, reason = answer
        failed = f"Model '{self._instance}' is not ready (user-defined check failed)."
        return None if is_ready else reason or failed

    def _receive(self, within_s: float) -> tuple[bool, str] | None:
        """Return the answer to the open question; None if it has not come within `within_s` seconds."""
        if not (self._is_open and wait_readable(self._sock.fileno(), max(0.0, within_s))):
            return None
        received = self._sock.recv(1 << 16)
        if not received:
            raise ConnectionResetError("the stub process closed its socket")
        line, newline, self._received = (self._received + received).partition(b"\n")
        if not newline:
            self._received = line
            return None
        number, is_ready, reason = from_json(line)
        if number != self._number or self._received:
            raise BadFrame(f"an answer to question {number}, and {len(self._received)} bytes, after {self._number}")
        self._is_open = False
        return is_ready, readable(reason)


MEMORY_SIZE = "shared-memory-byte-size"
"""The setting of the backend with the size of the memory that the server shares with each process."""

EXECUTION_LIMIT = "EXECUTION_LIMIT_SECONDS"
MEMORY_LIMIT = "MEMORY_LIMIT_BYTES"


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """`execution_s` is how long an execution may take: then its process is killed and started again. `memory_bytes` is
    the memory that the process may allocate: then Python raises MemoryError. None is without a limit.
    """

    execution_s: float | None = None
    memory_bytes: int | None = None

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> ModelLimits:
        memory = _positive(MEMORY_LIMIT, parameters)
        return cls(_positive(EXECUTION_LIMIT, parameters), None if memory is None else int(memory))


def _positive(name: str, parameters: Mapping[str, str]) -> float | None:
    text = parameters.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e15:
        raise ConfigInvalid(f"parameter '{name}' must be a number above 0, not '{text}'", field=field_of(name))
    return value


_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_NO_CLASS = "has no attribute 'TritonPythonModel'"
_PROGRESS_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Arguments with which the processes of one model version are started.

    `file` is the model's file, `config` the configuration as JSON. `finalize_limit_s` is how long the model may take to
    finalize, in seconds. `models` are those that it may ask, `metrics` those of the whole server.
    """

    interpreter: str
    variables: Mapping[str, str]
    memory_bytes: int
    file: Path
    directory: Path
    config: str
    spec: ModelSpec
    outputs: OutputCheck
    limits: ModelLimits = field(default_factory=ModelLimits)
    finalize_limit_s: float = 30.0
    models: BlsClient | None = None
    metrics: CustomMetrics = field(default_factory=CustomMetrics)


class ModelProcess:
    """`start` and `execute` on one thread at a time; any thread calls the other methods.

    The process and its children end when the server ends, however that ends: the kernel kills them when the server's
    end of the lifeline is closed.
    """

    def __init__(
        self, plan: LaunchPlan, placement: Placement, watcher: FileWatcher, on_gone: Callable[[StubGone], None]
    ) -> None:
        """Start the process. `on_gone` is told, on any thread, when it ends, or must end.

        Raises ModelLoadFailed, and OutOfMemory for the memory that the server shares with it.
        """
        self._plan = plan
        self._placement = placement
        self._log = log_of(plan.spec.name, placement.name)
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._ending = threading.Lock()
        self._has_ended = False
        self._how: str | None = None
        own, given = zip(*[socket.socketpair() for _ in range(3)], strict=True)
        sock, readiness, self._lifeline = own
        try:
            memory = SharedMemory.create(plan.memory_bytes)
            passed = [given[0].fileno(), memory.descriptor, given[1].fileno(), given[2].fileno()]
            self._process = subprocess.Popen(
                # The name is for people who list processes.
                [plan.interpreter, str(PROGRAM), *map(str, passed), placement.name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **plan.variables},
                pass_fds=passed,
                start_new_session=True,
            )
        except (OSError, MemoryError) as error:
            for each in own:
                each.close()
            if isinstance(error, MemoryError):
                raise OutOfMemory(
                    f"cannot share {plan.memory_bytes} bytes of memory with a model's process: {error} "
                    f"(set by --backend-config=python,{MEMORY_SIZE})"
                ) from error
            reason = os.strerror(error.errno or 0)
            raise ModelLoadFailed(f"the interpreter '{plan.interpreter}' cannot be started: {reason}") from error
        finally:
            for each in given:
                each.close()
        self.id = self._process.pid
        self._pidfd = -1
        self._outputs: list[_Output] = []
        try:
            self._connect(sock, memory, readiness, watcher, on_gone)
        except BaseException:
            # Its sockets are closed with the last reference to them.
            os.killpg(self.id, signal.SIGKILL)
            self._process.wait()
            for output in self._outputs:
                output.close()
            if self._pidfd >= 0:
                os.close(self._pidfd)
            raise

    def _connect(
        self,
        sock: socket.socket,
        memory: SharedMemory,
        readiness: socket.socket,
        watcher: FileWatcher,
        on_gone: Callable[[StubGone], None],
    ) -> None:
        plan, placement = self._plan, self._placement
        self._pidfd = os.pidfd_open(self.id)

        def failed(error: Exception) -> None:
            _log.error("the process of model instance '%s' could not be watched", placement.name, exc_info=error)
            on_gone(StubFaulty(f"it could not be watched: {error}"))

        pipes = ((self._process.stdout, logging.INFO), (self._process.stderr, logging.WARNING))
        self._outputs += [
            _Output(pipe, level, self._printed, watcher, failed) for pipe, level in pipes if pipe is not None
        ]
        self._watched = watcher.watch(self._pidfd, lambda: on_gone(StubGone("the stub process ended")), failed)
        self._watched.arm()
        self._channel = StubChannel(sock, memory, plan.spec, watcher, plan.outputs)
        self._channel.on_lost = on_gone
        self._metrics = plan.metrics.owner()
        self._calls = ModelCalls(self._channel, self._log, plan.models, self._metrics, plan.spec.name, placement)
        self._readiness_socket = readiness
        self._readiness = ReadinessCheck(readiness, placement.name)

    def _printed(self, level: int, text: str) -> None:
        # In the traceback of a crash, the frames of imports and of this server's program say nothing of the model.
        if level >= logging.WARNING and not any(each in text for each in _NOT_THE_MODEL):
            self._last_lines.append(text)
        self._log(level, text, self._placement.name, 0)

    def start(self, limit_s: float | None = None, **order: str) -> Any:
        """Have the process import the model and initialize it. Blocks, for `limit_s` at most.

        With an `order` it completes the configuration `complete` instead and ends, or tries the model as `trial` says:
        `import` it and end, or `initialize` it. Raises StubGone and BackendFailed; a trial also without `execute`.
        """
        began = time.monotonic()

        def still_starting() -> None:
            if limit_s is not None and time.monotonic() - began >= limit_s:
                raise BackendFailed(f"the model did not start within {limit_s:g} s")
            _log.info(
                "model instance '%s' is still initializing after %d s",
                self._placement.name,
                time.monotonic() - began,
                extra={"model": self._plan.spec.name},
            )

        plan, placement = self._plan, self._placement
        arguments = {
            "model_config": plan.config,
            "model_instance_kind": placement.kind.name,
            "model_instance_name": placement.name,
            "model_instance_device_id": str(placement.device_id),
            "model_repository": str(plan.directory),
            "model_version": str(plan.spec.version),
            "model_name": plan.spec.name,
        }
        whole = {"args": arguments, "file": str(plan.file), "memory_limit": plan.limits.memory_bytes, **order}
        every_s = _PROGRESS_EVERY_S if limit_s is None else min(_PROGRESS_EVERY_S, limit_s)
        try:
            return self._channel.start(whole, still_starting, every_s)
        except BackendFailed as error:
            if found := _MISSING.match(error.message):
                error.hint = (
                    f"name the package that has '{found[1]}' in requirements.txt beside config.pbtxt, or install it: "
                    f"{plan.interpreter} -m pip install PACKAGE"
                )
            elif _NO_CLASS in error.message:
                error.hint = f"call the class of the model in {plan.file.name} TritonPythonModel"
            raise

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender],
        limit_s: float | None,
    ) -> Execution:
        """Raises StubGone."""
        outcomes = self._channel.execute(requests, batch_sizes, senders, limit_s)
        return Execution(outcomes, self._channel.sent_ns, monotonic_ns())

    @property
    def gone(self) -> StubGone | None:
        """Reason why it has ended or must end; None if it serves."""
        return self._channel.lost or (StubGone("the stub process ended") if self._wait(0) else None)

    def _wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds for the end of the process. Returns whether it has ended."""
        # The process stays a zombie until `end`, so that its number remains that of its group.
        return self._has_ended or wait_readable(self._pidfd, timeout_s)

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the process without what it shares with the server; 0 if it has ended."""
        fields = text_of(Path(f"/proc/{self.id}/statm")).split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE") if len(fields) > 2 else 0

    def release_memory(self) -> None:
        self._channel.release_memory()

    def check_ready(self) -> None:
        self._readiness.ask()

    def stop(self, within_s: float) -> None:
        """Let the model finalize, and end the process, after `within_s` seconds at the latest. Blocks."""
        if within_s:
            self._channel.stop()
            if not self._wait(within_s):
                _log.warning(
                    "model instance '%s' did not finalize within %g s and is killed", self._placement.name, within_s
                )
            # A process that Python starts to clean up after another does so when that has ended.
            until = time.monotonic() + _LAST_BREATH_S
            while time.monotonic() < until and self._wait(0) and _has_members(self.id):
                time.sleep(0.01)
        self.end()

    def end(
        self, failure: Callable[[str], ServerError] | None = None, reason: str = "", *, is_ending: bool = False
    ) -> str:
        """Kill the process and its children if they still run, and answer what is open with `failure(how)`.

        `reason` is why it is killed; `is_ending`: it is about to end by itself. Returns how the process ended, with its
        last lines; so does a later call.
        """
        with self._ending:
            if self._how is None:
                how = self._kill(is_ending)
                lines = "\\n".join(self._last_lines)
                self._how = (how or f"was killed because {reason or 'it is not needed'}") + (
                    f"; its last lines were: {lines}" if lines else ""
                )
                error = failure(self._how) if failure is not None else BackendFailed("the model is unloaded")
                self._channel.read_rest()
                self._channel.lose(error)
                self._calls.close()
                self._metrics.close()
            return self._how

    def _kill(self, is_ending: bool) -> str:
        """Kill the process and its children, and free what it has. Returns how it ended, "" if it was killed here."""
        self._has_ended = True
        has_ended = wait_readable(self._pidfd, _LAST_BREATH_S if is_ending else 0)
        with suppress(ProcessLookupError):
            os.killpg(self.id, signal.SIGKILL)
        code = self._process.wait()
        self._watched.end()
        for output in self._outputs:
            output.close()
        os.close(self._pidfd)
        self._readiness_socket.close()
        self._lifeline.close()
        return end_text(code) if has_ended else ""


def _has_members(group: int) -> bool:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "XZ":
                return True
    return False


# --- requests of a model to the server: responses of other models, model control, metrics, and log lines


# By the numbers of the library's LogLevel.
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)


# Takes the level, the text, and the file and line that wrote it.
WriteLine = Callable[[int, str, str, int], None]


def log_of(model: str, instance: str) -> WriteLine:
    logger = logging.getLogger("trident.model")
    extra = {"model": model, "instance": instance}

    def write(level: int, text: str, file: str, line: int) -> None:
        if logger.isEnabledFor(level):
            arguments = (readable(text),)
            logger.handle(logger.makeRecord(logger.name, level, file, line, "%s", arguments, None, extra=extra))

    return write


Fields = dict[str, Any]

# The numbers of TritonError's codes.
_CODES = {code: number for number, code in enumerate(ErrorCode)}


class ModelCalls:
    """Answers the requests of one process's model. Called on the thread that reads its channel; must not block."""

    def __init__(
        self,
        channel: StubChannel,
        log: WriteLine,
        models: BlsClient | None,
        metrics: OwnMetrics,
        name: str,
        placement: Placement,
    ) -> None:
        """`name` is that of the model that asks, `placement` that of its instance."""
        self._name = name
        self._placement = placement
        self._channel = channel
        self._log = log
        self._models = models
        self._metrics = metrics
        # The model's requests to other models, by their numbers; None while one is submitted.
        self._pending: dict[int, PendingRequest | None] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        # Requests and calls share their numbers.
        self._last = 0
        # Short executions of the models that were asked run here, where no other thread has to be woken.
        self._deferred = Deferred()
        on_frame = {
            LOG: self._logged,
            CALL: self._called,
            INFER: self._infer,
            DROP: self._drop,
            TAKEN: self._taken,
        }
        channel.listen(on_frame, self._deferred.run)

    def close(self) -> None:
        """Cancel the requests of the model, because its process has ended."""
        with self._lock:
            self._is_closed = True
            pending, self._pending = list(self._pending.values()), {}
        for each in pending:
            if each is not None:
                each.cancel(CancelCause.SERVER)

    def _logged(self, flags: int, number: int, content: memoryview) -> None:
        level, message, file, line = from_json(content)
        self._log(_LEVELS[level] if 0 <= level < len(_LEVELS) else logging.INFO, message, file, line)

    def _count(self, number: int) -> None:
        """Raises BadFrame unless a request or a call with that number may follow."""
        if number <= self._last:
            raise BadFrame(f"number {number} after {self._last}")
        self._last = number

    # --- requests to other models

    def _infer(self, flags: int, number: int, content: memoryview) -> None:
        self._count(number)
        record, inputs, requested = self._channel.outcomes.model_request(number, content)
        fields: Fields = from_json(record.fields)
        sequence = int(fields.get("flags") or 0)
        request = InferenceRequest(
            str(fields.get("model_name") or ""),
            [InputTensor(name, datatype, shape, data) for (name, datatype, shape), data in inputs],
            model_version=int(fields.get("model_version", -1)),
            id=str(fields.get("id") or ""),
            outputs=requested,
            parameters=fields.get("parameters") or None,
            timeout_us=int(fields.get("timeout") or 0),
            correlation_id=fields.get("correlation_id") or 0,
            sequence_start=bool(sequence & SEQUENCE_START),
            sequence_end=bool(sequence & SEQUENCE_END),
        )
        trace = fields.get("trace")
        if trace:
            request.trace = RequestTrace(int(trace[0]))
        with self._lock:
            self._pending[number] = None
        if self._models is None:
            error = Unsupported("this server has no other models")
            self._reply(number, InferenceResponse.failed(request, error))
            return
        decoupled = bool(record.flags & DECOUPLED)
        reply = partial(self._reply, number)
        holder = self._placement if record.flags & WITHIN else None
        pending = self._models.infer(request, reply, decoupled=decoupled, holder=holder, defer=self._deferred.add)
        with self._lock:
            is_closed = self._is_closed
            if number in self._pending:  # it is not answered yet
                self._pending[number] = pending
        if is_closed:
            pending.cancel()

    def _reply(self, number: int, response: InferenceResponse) -> None:
        """Any thread."""
        if response.final:
            with self._lock:
                self._pending.pop(number, None)
        self._channel.send_records(REPLY, number, partial(_write_reply, number, response))

    def _asked(self, number: int) -> PendingRequest | None:
        """The request of the model with that number; None if it is answered. Raises BadFrame if there was none."""
        if not 0 < number <= self._last:
            raise BadFrame(f"request {number} of the model, which it did not send")
        with self._lock:
            return self._pending.get(number)

    def _drop(self, flags: int, number: int, content: memoryview) -> None:
        pending = self._asked(number)
        if pending is not None:
            pending.cancel()

    def _taken(self, flags: int, number: int, content: memoryview) -> None:
        pending = self._asked(number)
        if isinstance(pending, StreamedRequest):
            pending.take()

    # --- calls

    def _called(self, flags: int, number: int, content: memoryview) -> None:
        self._count(number)
        name, fields = from_json(content)
        if name in _METRIC_CALLS:
            function, arguments, result = _METRIC_CALLS[name]

            def call_metrics() -> Fields:
                value = function(self._metrics, *[fields[argument] for argument in arguments])
                return {result: value} if result else {}

            self._answer(number, name, call_metrics)
            return
        # It may load a model.
        call = partial(self._control, name, fields)
        threading.Thread(
            target=self._answer, args=(number, name, call), name="trident-python-call", daemon=True
        ).start()

    def _control(self, name: str, fields: Fields) -> Fields:
        models, asker = self._models, self._name
        if models is not None:
            model = fields["model_name"]
            if name == "load_model":
                parameters: dict[str, str | bytes] = {"config": fields["config"]} if fields["config"] else {}
                parameters |= {path: base64.b64decode(content) for path, content in fields["files"].items()}
                models.load(model, parameters, asker=asker)
                return {}
            if name == "unload_model":
                models.unload(model, fields["unload_dependents"], asker=asker)
                return {}
            if name == "is_model_ready":
                return {"ready": models.is_ready(model, version_number(fields["model_version"]))}
        raise Unsupported(f"this server does not have '{name}' for models")

    def _answer(self, number: int, name: str, call: Callable[[], Fields]) -> None:
        failed = 0
        answer: Fields | str
        try:
            answer = call()
        except Exception as error:
            failed, reason = FAILED, error.message if isinstance(error, ServerError) else str(error)
            if not isinstance(error, ServerError):
                _log.exception("the call '%s' of a model failed", name)
            answer = f"Failed to process the request for model '{self._placement.name}', message: {reason}"
        self._channel.send(frame(ANSWER, number, (to_json(answer),), flags=failed))


def _write_reply(number: int, response: InferenceResponse, records: Records) -> None:
    flags = FINAL if response.final else 0
    error = response.error
    if error is None:
        try:
            outputs = list(response.outputs)
            tensors = tuple([(output.name, output.datatype, output.shape) for output in outputs])
            contents = [output.content() for output in outputs]
            fields = to_json(response.parameters) if response.parameters else b""
            records.add_tensors(number, tensors, contents, flags=flags, fields=fields)
            return
        except ServerError as failure:
            error = failure
        except Exception as failure:
            _log.exception("a response of model '%s' could not be sent to a model", response.model_name)
            error = BackendFailed(f"the response of model '{response.model_name}' could not be sent: {failure}")
    records.add_failure(number, _CODES[error.code], error.message, flags)


# For each call on metrics its function, the fields that are its arguments, and the name of its result.
_METRIC_CALLS: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {
    "metric_family": (
        lambda metrics, name, description, kind: metrics.create_family(name, description, MetricKind[kind]),
        ("name", "description", "kind"),
        "family",
    ),
    "metric_create": (OwnMetrics.create_metric, ("family", "labels", "buckets"), "metric"),
    "metric_increment": (OwnMetrics.increment, ("metric", "value"), ""),
    "metric_set": (OwnMetrics.set, ("metric", "value"), ""),
    "metric_observe": (OwnMetrics.observe, ("metric", "value"), ""),
    "metric_value": (OwnMetrics.value, ("metric",), "value"),
    "metric_delete": (OwnMetrics.delete, ("metric",), ""),
}
