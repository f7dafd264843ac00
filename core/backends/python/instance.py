"""A loaded version of a Python model, and its instances: each has a process, which is started again when it dies.

    STARTING -> SERVING       the model is initialized
             -> DOWN          its initialization failed
    SERVING  -> DOWN          the process ended, or was killed because it took too long
    DOWN     -> STARTING      after a pause, which grows
    any      -> CLOSED        the model is unloaded

Source: docs/spec/python-backend.md sections 4.2 and 4.5.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType

from trident.core.backends.backend import BackendInstance, Execution, OnChange
from trident.core.backends.python.channel import FileWatcher, StubGone, StubSilent
from trident.core.backends.python.process import EXECUTION_LIMIT, LaunchPlan, ModelProcess
from trident.core.backends.tensors import batch_total
from trident.core.config.placement import Placement
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, ServerError
from trident.core.inference.pending_request import ResponseSender
from trident.core.inference.request import InferenceRequest
from trident.core.interprocess.restarts import Restarts
from trident.core.observability.metrics.snapshot import ModelProcessMetrics

_log = logging.getLogger("trident.backends.python")

# Makes a process for the model; the callable is told, on any thread, that the process is gone.
Launch = Callable[[Callable[[], None]], ModelProcess]


class PythonModel:
    """Implements BackendModel. Loader threads, several at once."""

    labels: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def __init__(
        self,
        plan: LaunchPlan,
        placements: Sequence[Placement],
        watcher: FileWatcher,
        *,
        threads: int,
    ) -> None:
        """Begins to start the instances of `placements`, all at once."""
        self._plan = plan
        self._watcher = watcher
        self._threads = threads
        self._lock = threading.Lock()
        self._instances: list[PythonInstance] = []
        self._on_change: OnChange | None = None
        self._starts = {placement: self._start(placement) for placement in placements}

    def describe(self) -> dict[str, str]:
        """`device`, where the model puts its own tensors, `execution provider`, which is the interpreter, `threads`."""
        devices = {instance.placement.device: None for instance in self._instances}
        return {
            "device": ", ".join(devices),
            "execution provider": self._plan.interpreter,
            "threads": str(self._threads) if self._threads else "",
        }

    def instance(self, placement: Placement) -> BackendInstance:
        """The instance, waited for until its model is initialized. Raises a ServerError."""
        with self._lock:
            start = self._starts.pop(placement, None)
        instance = (start or self._start(placement)).wait()
        with self._lock:
            self._instances = [*self._instances, instance]
        return instance

    def watch(self, on_change: OnChange) -> None:
        """On the thread that starts the process of an instance again."""
        self._on_change = on_change

    def _changed(self, instance: BackendInstance, serves: bool) -> None:
        on_change = self._on_change
        if on_change is not None:
            on_change(instance, serves)

    @property
    def trouble(self) -> str:
        """Why the first instance that does not serve does not; "" if all serve. Any thread."""
        return next((instance.trouble for instance in self._instances if instance.trouble), "")

    def check_ready(self) -> None:
        """Ask the model of each instance. Raises a ServerError; blocks for 5 s at most, each. Any thread."""
        for instance in self._instances:
            instance.check_ready()

    def processes(self) -> list[ModelProcessMetrics]:
        """Of each instance, in the order of the placements."""
        return [
            ModelProcessMetrics(
                instance=instance.placement.name,
                resident_bytes=instance.resident_bytes,
                restarts=instance.restarts,
                process_id=instance.process_id,
            )
            for instance in self._instances
        ]

    def retain(self, devices: Iterable[str]) -> None:
        """Nothing is shared between the instances of a device: forget those that were closed."""
        with self._lock:
            self._instances = [instance for instance in self._instances if not instance.is_closed]

    def close(self) -> None:
        """Close instances that were started but never requested, and forget the others."""
        with self._lock:
            starts, self._starts = list(self._starts.values()), {}
            # No cycle: instances tell the model of changes, and the model tells the scheduler, which has the instances.
            self._instances, self._on_change = [], None
        for start in starts:
            start.instance.close()

    def _start(self, placement: Placement) -> _Start:
        def launch(on_gone: Callable[[], None]) -> ModelProcess:
            return ModelProcess(self._plan, placement, self._watcher, on_gone)

        plan = self._plan
        return _Start(
            PythonInstance(
                placement, plan.spec, launch, plan.limits.execution_s, plan.finalize_limit_s, on_change=self._changed
            )
        )


class _Start:
    """The start of an instance, on a thread of its own."""

    def __init__(self, instance: PythonInstance) -> None:
        self.instance = instance
        self._error: Exception | None = None
        self._own_thread = threading.Thread(
            target=self._run, name=f"trident-start-{instance.placement.name}", daemon=True
        )
        self._own_thread.start()

    def _run(self) -> None:
        try:
            self.instance.begin()
        except Exception as error:
            self._error = error

    def wait(self) -> PythonInstance:
        """Raises what the start raised."""
        self._own_thread.join()
        error, self._error = self._error, None
        if error is None:
            return self.instance
        self.instance.close()
        if isinstance(error, ServerError):
            raise error
        raise BackendFailed(f"the process of instance '{self.instance.placement.name}' failed: {error}") from error


class InstanceState(Enum):
    """`next` are the states that may follow."""

    next: tuple[InstanceState, ...]

    STARTING = "the model is being initialized"
    SERVING = "the model serves"
    DOWN = "its process ended, and is started again after a pause"
    CLOSED = "the model is unloaded"


STARTING, SERVING, DOWN, CLOSED = InstanceState

STARTING.next = (SERVING, DOWN, CLOSED)
SERVING.next = (DOWN, CLOSED)
DOWN.next = (STARTING, CLOSED)
CLOSED.next = ()


class PythonInstance:
    """Implements BackendInstance. Made by `PythonModel`, which calls `begin` before it hands it out."""

    poisoned = False
    may_run_inline = False
    answers_later = True

    def __init__(
        self,
        placement: Placement,
        spec: ModelSpec,
        launch: Launch,
        limit_s: float | None,
        finalize_limit_s: float,
        *,
        on_change: OnChange = lambda instance, serves: None,
    ) -> None:
        """`limit_s` is how many seconds an execution may take, None for any time. `finalize_limit_s` is that of the end
        of the model. `on_change` is told when it cannot execute for a while, and when it can again.
        """
        self._on_change = on_change
        self.placement = placement
        self.restarts = 0
        self._spec = spec
        self._launch = launch
        self._limit_s = limit_s
        self._finalize_limit_s = finalize_limit_s
        self._changed = threading.Condition()
        self._state = STARTING
        self._process: ModelProcess | None = None
        self._reason = ""
        self._aborted_because = ""
        self._pauses = Restarts()
        self._starts = 0

    def begin(self) -> None:
        """Start the process and initialize the model, once. Blocks. Raises a ServerError with the model's reason."""
        self._pauses.started()
        self._aborted_because = ""
        self._starts += 1
        start = self._starts
        process = self._launch(lambda: self._process_gone(start))
        try:
            with self._changed:
                self._process = process
                self._check_open()
            process.initialize()
            with self._changed:
                self._check_open()
                self._move(SERVING)
        except StubGone as gone:
            raise self._failure(process, gone) from None
        except BaseException:
            process.end()
            raise
        if process.has_ended:  # before anybody would have noticed
            self._process_gone(start)

    def _check_open(self) -> None:
        """Raises BackendFailed after `close`."""
        if self._state is CLOSED:
            raise BackendFailed("the model is unloaded", model=self._spec.name)

    @property
    def is_closed(self) -> bool:
        return self._state is CLOSED

    @property
    def trouble(self) -> str:
        """Why the instance does not serve; "" if it does. Any thread."""
        with self._changed:
            return "" if self._state is SERVING else self._reason or self._state.value

    @property
    def resident_bytes(self) -> int:
        """The memory of the process; 0 while there is none. Any thread."""
        process = self._process
        return 0 if process is None else process.resident_bytes

    @property
    def process_id(self) -> int:
        """0 while there is none. Any thread."""
        process = self._process
        return 0 if process is None else process.id

    def check_ready(self) -> None:
        """Ask the model's `is_ready`. Raises ServerError with the reason if the instance is not ready. Blocks."""
        process = self._process
        if process is None or self._state is not SERVING:
            raise self._unhealthy()
        process.check_ready()

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        """Execute `requests` as one batch. Raises BackendFailed if the process dies or does not serve."""
        batch_total(batch_sizes, self._spec.max_batch_size, self._spec.name)
        process = self._process
        if process is None or self._state is not SERVING:
            process = self._serving()
        try:
            return process.execute(requests, batch_sizes, senders, self._limit_s)
        except StubGone as gone:
            raise self._lose(process, gone) from None

    def abort(self, reason: str, *, for_good: bool) -> None:
        """Kill the process; what it executes, and what it has open, fails with `reason`. See EndableInstance."""
        with self._changed:
            process = self._process
            if process is None or self._state is CLOSED:
                return
            self._aborted_because = reason
            if for_good:
                self._move(CLOSED)
        if for_good:
            self._failure(process, StubGone(reason))
            self._process = None
        else:
            self._lose(process, StubGone(reason))

    def close(self) -> None:
        """Let the model finalize, and end the process."""
        with self._changed:
            was, process = self._state, self._process
            if was is CLOSED:
                return
            self._move(CLOSED)
        if process is not None:
            process.stop(self._finalize_limit_s if was is SERVING else 0)
            self._process = None  # no cycle: the process tells the instance when it is gone

    def _move(self, state: InstanceState) -> None:
        if state not in self._state.next:
            raise RuntimeError(f"instance '{self.placement.name}' cannot go from {self._state} to {state}")
        self._state = state
        self._changed.notify_all()

    def _serving(self) -> ModelProcess:
        """The process, waited for while it is being started again. Raises BackendFailed."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not STARTING)
            if self._state is not SERVING or self._process is None:
                raise self._unhealthy()
            return self._process

    def _unhealthy(self) -> BackendFailed:
        because = self._aborted_because
        text = self._killed(because) if because else "Stub process is not healthy."
        return BackendFailed(text, hint=self._reason or None, model=self._spec.name)

    def _killed(self, because: str) -> str:
        return f"The process of model instance '{self.placement.name}' was killed, because {because}."

    # --- the death of a process

    def _process_gone(self, start: int) -> None:
        """The process of the start with this number ended between executions. On the watcher's thread, which must not
        wait. The end of a process is noticed by its descriptor and by its socket, perhaps when the next one serves.
        """
        process = self._process
        if start == self._starts and process is not None and self._state is SERVING:
            threading.Thread(
                target=self._lose, args=(process, StubGone()), name="trident-python-end", daemon=True
            ).start()

    def _lose(self, process: ModelProcess, gone: StubGone) -> ServerError:
        """SERVING -> DOWN, once for each process. Returns the error of the requests in flight."""
        with self._changed:
            if self._process is process and self._state is SERVING:
                self._move(DOWN)
                is_first = True
            else:
                is_first = False
        error = self._failure(process, gone)
        if is_first:
            self._reason = error.hint or ""
            pause_s = self._pauses.ended()
            _log.error(
                "the process of model instance '%s' %s; it is started again in %d s",
                self.placement.name,
                error.hint,
                pause_s,
                extra={"model": self._spec.name},
            )
            name = f"trident-restart-{self.placement.name}"
            threading.Thread(target=self._restart, args=(pause_s,), name=name, daemon=True).start()
        return error

    def _failure(self, process: ModelProcess, gone: StubGone) -> BackendFailed:
        """End the process, and answer what it has open. Returns the error of requests that it had."""
        text, reason = f"Stub process '{self.placement.name}' is not healthy.", str(gone)
        killed_because = self._aborted_because
        if isinstance(gone, StubSilent):
            killed_because = f"an execution took longer than {EXECUTION_LIMIT} ({self._limit_s:g} s) allows"
        if killed_because:
            reason = killed_because
            text = self._killed(reason)
        how = process.end(
            lambda how: BackendFailed(text, hint=how, model=self._spec.name), reason, is_ending=not killed_because
        )
        return BackendFailed(text, hint=how, model=self._spec.name)

    def _restart(self, pause_s: int) -> None:
        """DOWN -> STARTING -> SERVING, with growing pauses, until the model serves or is unloaded."""
        self._on_change(self, False)
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._state is CLOSED, pause_s):
                    return
                self._move(STARTING)
                self._process = None
            try:
                self.begin()
            except (ServerError, OSError) as error:  # OSError: no memory or no descriptor for a process
                with self._changed:
                    if self._state is CLOSED:
                        return
                    self._move(DOWN)
                    self._reason = _reason_of(error)
                pause_s = self._pauses.ended()
                _log.error(
                    "model instance '%s' could not be started again: %s; the next try is in %d s",
                    self.placement.name,
                    self._reason,
                    pause_s,
                    extra={"model": self._spec.name},
                )
            else:
                self.restarts += 1
                self._reason = ""
                self._on_change(self, True)
                _log.info("model instance '%s' serves again", self.placement.name, extra={"model": self._spec.name})
                return


def _reason_of(error: ServerError | OSError) -> str:
    hint = error.hint if isinstance(error, ServerError) else None
    return str(error) if hint is None else f"{error} ({hint})"
