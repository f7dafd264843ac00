"""The backend `python`: models that are Python code, each instance in a process of its own.

    PythonBackend     finds the file, prepares the environment, and loads
    PythonModel       a loaded version
    PythonInstance    has a process, which is started again when it dies

Source: docs/spec/python-backend.md.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType

import orjson

from trident.core.backends.backend import BackendInstance, Execution, LoadContext, OnChange
from trident.core.backends.model_files import boolean, field_of, integer, parameters_of
from trident.core.backends.python.batches import OutputCheck
from trident.core.backends.python.channel import FileWatcher, StubFaulty, StubGone, StubSilent
from trident.core.backends.python.environment import PATH_PARAMETER, EnvironmentSettings, prepare
from trident.core.backends.python.process import EXECUTION_LIMIT, MEMORY_SIZE, LaunchPlan, ModelLimits, ModelProcess
from trident.core.backends.tensors import batch_total
from trident.core.config.autocomplete import Watch, unwatched
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.problem import read_file
from trident.core.config.schema import ModelConfig, config_json, parse_config_override
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, ConfigInvalid, ModelLoadFailed, NotInstalled, ServerError
from trident.core.inference.pending_request import ResponseSender
from trident.core.inference.request import InferenceRequest
from trident.core.interprocess.restarts import Restarts
from trident.core.interprocess.shared_memory import LARGEST
from trident.core.observability.statistics import ModelProcessMetrics
from trident.core.repository.layout_hints import missing_file_hint

_log = logging.getLogger("trident.backends.python")

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
_FORCE_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"
# Variables that numerical libraries read when they are imported.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


_STRICT_OUTPUTS = "strict-outputs"
_TIMEOUT = "stub-timeout-seconds"
_SMALLEST_MEMORY = 1 << 20
_DEFAULT_MEMORY = 1 << 30
_DEFAULT_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSettings:
    """`memory_bytes` is the size of the memory that the server shares with each process: half of it for requests, half
    for responses. `finalize_limit_s` is how long a model may take to finalize, in seconds. `environments` concerns
    the Python environments of models. `strict_outputs`: an output that is not as configured is an error.
    """

    environments: EnvironmentSettings
    memory_bytes: int = _DEFAULT_MEMORY
    finalize_limit_s: float = _DEFAULT_TIMEOUT_S
    strict_outputs: bool = False

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> PythonSettings:
        memory = integer(settings.get(MEMORY_SIZE, str(_DEFAULT_MEMORY)))
        if not _SMALLEST_MEMORY <= memory <= LARGEST:
            raise ConfigInvalid(f"{MEMORY_SIZE} is {memory}, which is not between {_SMALLEST_MEMORY} and {LARGEST}")
        seconds = integer(settings.get(_TIMEOUT, str(_DEFAULT_TIMEOUT_S)))
        if seconds <= 0:
            raise ConfigInvalid(f"{_TIMEOUT} can't be smaller than or equal to zero")
        return cls(
            environments=EnvironmentSettings.read(settings),
            memory_bytes=memory,
            finalize_limit_s=float(seconds),
            strict_outputs=boolean(settings.get(_STRICT_OUTPUTS, "false")),
        )


class PythonBackend:
    """Implements Backend. Loader threads, several at once."""

    # A model puts its own tensors where it wants.
    supports_gpus = True

    def __init__(
        self, settings: Mapping[str, str] = _NO_SETTINGS, file: Path | None = None, trial_limit_s: float = 120.0
    ) -> None:
        """`file`, if given, is the code of all models, instead of the file in each. `trial_limit_s` is what an import,
        or an initialization, may take in `try_model`. Raises ConfigInvalid.
        """
        self._trial_limit_s = trial_limit_s
        self._settings = PythonSettings.read(settings)
        self._file = file
        self._watcher = FileWatcher()

    def inspect(self, path: Path, config: ModelConfig) -> None:
        """Do nothing: the configuration declares the tensors of a Python model."""

    def complete(self, path: Path, config: ModelConfig, watch: Watch = unwatched) -> None:
        if not may_complete(self._file or _model_file(path, config)):
            return
        # The model makes no request, so nothing but its name is needed of the specification.
        spec = ModelSpec(
            name=config.name,
            version=int(path.name) if path.name.isdecimal() else 1,
            platform=config.platform,
            backend=config.backend,
            max_batch_size=config.max_batch_size,
            inputs={},
            outputs={},
            batching=None,
        )
        try:
            plan = self._plan(path, config, spec)
        except NotInstalled as error:
            reason = f"{error.message} ({error.hint})"
            _log.warning("model '%s' was not asked to complete its configuration: %s", config.name, reason)
            return
        process = ModelProcess(plan, Placement(config.name, DeviceKind.CPU), self._watcher, _ignore)
        watch(lambda reason: process.end(reason=reason))
        try:
            completed = parse_config_override(process.start(complete=plan.config)["config"])
        except StubGone as gone:
            how = process.end(reason=str(gone), is_ending=True)
            raise BackendFailed(f"Stub process '{config.name}' is not healthy.", hint=how) from None
        finally:
            process.end()
        for name in config.DESCRIPTOR.fields_by_name:
            (config if name in _COMPLETED else completed).ClearField(name)
        config.MergeFrom(completed)

    def check(self, config: ModelConfig) -> None:
        if self._file is None:
            _check_name(config)
        parameters = parameters_of(config)
        ModelLimits.read(parameters)
        text = parameters.get(_FORCE_CPU, "yes")
        if text.lower() not in ("yes", "no"):
            # The quote at the end is Triton's.
            raise ConfigInvalid(
                f"Incorrect value for {_FORCE_CPU}: {text}'", hint="yes or no", field=field_of(_FORCE_CPU)
            )

    def try_model(self, path: Path, config: ModelConfig, spec: ModelSpec, *, initialize: bool) -> None:
        placement = Placement(config.name, DeviceKind.CPU)
        process = ModelProcess(self._plan(path, config, spec), placement, self._watcher, _ignore)
        try:
            process.start(self._trial_limit_s, trial="initialize" if initialize else "import")
            if initialize:
                process.stop(self._settings.finalize_limit_s)
        except StubGone as gone:
            how = process.end(reason=str(gone), is_ending=True)
            raise BackendFailed(f"the process of the model {how}") from None
        finally:
            process.end()
        if not (config.input or config.output):
            raise ConfigInvalid(
                "the model has no inputs and no outputs, so that a request with an input is refused",
                hint="add 'input' and 'output' to config.pbtxt, or the method auto_complete_config to the model",
            )

    def load(self, context: LoadContext) -> PythonModel:
        self.check(context.config)
        plan = self._plan(context.path, context.config, context.spec, context.threads)
        plan = replace(plan, models=context.models, metrics=context.metrics)
        return PythonModel(plan, context.placements, self._watcher, threads=context.threads)

    def _plan(self, path: Path, config: ModelConfig, spec: ModelSpec, threads: int = 0) -> LaunchPlan:
        file = self._file or _model_file(path, config)
        parameters = parameters_of(config)
        environment = prepare(path.parent, parameters, self._settings.environments)
        return LaunchPlan(
            interpreter=environment.interpreter,
            variables={**dict.fromkeys(_THREAD_VARIABLES if threads else (), str(threads)), **environment.variables},
            memory_bytes=self._settings.memory_bytes,
            file=file,
            directory=path.parent,
            config=orjson.dumps(config_json(config)).decode(),
            spec=spec,
            outputs=OutputCheck(spec, self._settings.strict_outputs),
            limits=ModelLimits.read(parameters),
            finalize_limit_s=self._settings.finalize_limit_s,
        )


_PLAIN_CLASS = re.compile(rb"^class\s+TritonPythonModel\s*(\(\s*(object)?\s*\))?\s*:", re.MULTILINE)
_METHOD = b"auto_complete_config"
_COMPLETED = ("max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy")


def names_python(config: ModelConfig) -> bool:
    """Return True if the model runs in another Python than the server's, which may have what the server lacks."""
    return PATH_PARAMETER in parameters_of(config)


def may_complete(file: Path) -> bool:
    """Return whether the model in `file` may have the method: a needless process would double the time of a load.

    A class with a base class may inherit it. Raises OSError.
    """
    source = read_file(file)
    return _METHOD in source or _PLAIN_CLASS.search(source) is None


def _model_file(path: Path, config: ModelConfig) -> Path:
    _check_name(config)
    file: Path = path / config.default_model_filename
    if not file.is_file():
        hint = missing_file_hint(path, config, file.name)
        raise ModelLoadFailed(f"Python model file not found in '{file}'", hint=hint)
    return file


def _check_name(config: ModelConfig) -> None:
    name = config.default_model_filename
    if not name.endswith(".py"):
        raise ModelLoadFailed(
            f"Model name must end with '.py'. Model name is \"{name}\".", field="default_model_filename"
        )


def _ignore(gone: StubGone) -> None: ...


# Makes a process for the model; the callable is told, on any thread, that the process is gone, or must go.
Launch = Callable[[Callable[[StubGone], None]], ModelProcess]


class PythonModel:
    """Implements BackendModel. Loader threads, several at once."""

    labels: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def __init__(
        self, plan: LaunchPlan, placements: Sequence[Placement], watcher: FileWatcher, *, threads: int
    ) -> None:
        """Begin to start the instances of `placements`, all at once."""
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
        """Return the instance when its model is initialized. Raises a ServerError."""
        with self._lock:
            instance, started = self._starts[placement] = self._starts.get(placement) or self._start(placement)
        try:
            started.result()
        except Exception as error:
            instance.close()
            if isinstance(error, ServerError):
                raise
            raise BackendFailed(f"the process of instance '{placement.name}' failed: {error}") from error
        finally:
            with self._lock:
                self._starts.pop(placement, None)
        with self._lock:
            self._instances = [*self._instances, instance]
        return instance

    def end_starts(self, reason: str) -> None:
        with self._lock:
            starts = list(self._starts.values())
        for instance, _ in starts:
            instance.abort(reason, for_good=True)

    def watch(self, on_change: OnChange) -> None:
        """On the thread that starts the process of an instance again."""
        self._on_change = on_change

    def _changed(self, instance: BackendInstance, serves: bool) -> None:
        on_change = self._on_change
        if on_change is not None:
            on_change(instance, serves)

    @property
    def trouble(self) -> str:
        return next((instance.trouble for instance in self._instances if instance.trouble), "")

    def check_ready(self) -> None:
        """Ask the model of each instance. Raises a ServerError; blocks for 5 s at most, each. Any thread."""
        for instance in self._instances:
            instance.check_ready()

    def processes(self) -> list[ModelProcessMetrics]:
        return [
            ModelProcessMetrics(
                instance=instance.placement.name,
                resident_bytes=instance.resident_bytes,
                restarts=instance.restarts,
                process_id=instance.process_id,
            )
            for instance in self._instances
        ]

    def release_memory(self) -> None:
        for instance in self._instances:
            instance.release_memory()

    def retain(self, devices: Iterable[str]) -> None:
        """Forget closed instances. Instances of a device share nothing."""
        with self._lock:
            self._instances = [instance for instance in self._instances if not instance.is_closed]

    def close(self) -> None:
        """Close instances that were started but never requested, and forget the others."""
        with self._lock:
            starts, self._starts = list(self._starts.values()), {}
            # No cycle: instances tell the model of changes, and the model tells the scheduler, which has the instances.
            self._instances, self._on_change = [], None
        for instance, _ in starts:
            instance.close()

    def _start(self, placement: Placement) -> tuple[PythonInstance, Future[None]]:
        plan = self._plan

        def launch(on_gone: Callable[[StubGone], None]) -> ModelProcess:
            return ModelProcess(plan, placement, self._watcher, on_gone)

        instance = PythonInstance(
            placement, plan.spec, launch, plan.limits.execution_s, plan.finalize_limit_s, on_change=self._changed
        )
        started: Future[None] = Future()

        def begin() -> None:
            try:
                instance.begin()
                started.set_result(None)
            except BaseException as error:
                started.set_exception(error)

        threading.Thread(target=begin, name=f"trident-start-{placement.name}", daemon=True).start()
        return instance, started


class InstanceState(Enum):
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
        process = self._launch(lambda gone: self._process_gone(start, gone))
        try:
            with self._changed:
                self._process = process
                self._check_open()
            process.start()
            with self._changed:
                self._check_open()
                self._move(SERVING)
        except StubGone as gone:
            raise self._failure(process, gone) from None
        except BaseException:
            process.end()
            raise
        lost = process.gone
        if lost is not None:  # before it served, when that is not noticed
            self._process_gone(start, lost)

    def _check_open(self) -> None:
        if self._state is CLOSED:
            raise BackendFailed("the model is unloaded", model=self._spec.name)

    @property
    def is_closed(self) -> bool:
        return self._state is CLOSED

    @property
    def trouble(self) -> str:
        with self._changed:
            return "" if self._state is SERVING else self._reason or self._state.value

    @property
    def resident_bytes(self) -> int:
        process = self._process
        return 0 if process is None else process.resident_bytes

    @property
    def process_id(self) -> int:
        process = self._process
        return 0 if process is None else process.id

    def release_memory(self) -> None:
        process = self._process
        if process is not None:
            process.release_memory()

    def check_ready(self) -> None:
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
        batch_total(batch_sizes, self._spec.max_batch_size, self._spec.name)
        process = self._process
        if process is None or self._state is not SERVING:
            with self._changed:
                self._changed.wait_for(lambda: self._state is not STARTING)
                process = self._process
                if process is None or self._state is not SERVING:
                    raise self._unhealthy()
        try:
            return process.execute(requests, batch_sizes, senders, self._limit_s)
        except StubGone as gone:
            raise self._lose(process, gone) from None

    def abort(self, reason: str, *, for_good: bool) -> None:
        """Kill the process; what it executes, and what it has open, fails with `reason`. See EndableInstance."""
        with self._changed:
            process = self._process
            if self._state is CLOSED or (process is None and not for_good):
                return
            self._aborted_because = reason
            if for_good:
                self._move(CLOSED)
        if process is None:
            return  # `begin` sees that it is closed
        if for_good:
            self._failure(process, StubGone(reason))
            self._process = None
        else:
            self._lose(process, StubGone(reason))

    def close(self) -> None:
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

    def _unhealthy(self) -> BackendFailed:
        because = self._aborted_because
        text = self._killed(because) if because else "Stub process is not healthy."
        return BackendFailed(text, hint=self._reason or None, model=self._spec.name)

    def _killed(self, because: str) -> str:
        return f"The process of model instance '{self.placement.name}' was killed, because {because}."

    # --- the death of a process

    def _process_gone(self, start: int, gone: StubGone) -> None:
        """The process of the start with this number ended, or must end. On any thread, which must not wait.

        The end of a process is noticed by its descriptor and by its socket, perhaps when the next one serves.
        """
        process = self._process
        if start == self._starts and process is not None and self._state is SERVING:
            threading.Thread(target=self._lose, args=(process, gone), name="trident-python-end", daemon=True).start()

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
        is_ending = not (killed_because or isinstance(gone, StubFaulty))
        how = process.end(lambda how: BackendFailed(text, hint=how, model=self._spec.name), reason, is_ending=is_ending)
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
            except Exception as error:  # such as no memory, no descriptor or no thread for a process
                with self._changed:
                    if self._state is CLOSED:
                        return
                    self._move(DOWN)
                    hint = error.hint if isinstance(error, ServerError) else None
                    self._reason = str(error) if hint is None else f"{error} ({hint})"
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
