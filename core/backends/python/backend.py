"""The backend `python`: models that are Python code, each instance in a process of its own.

Source: docs/spec/python-backend.md.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import orjson

from trident.core.backends.backend import LoadContext
from trident.core.backends.parameters import boolean, field_of, integer, parameters_of
from trident.core.backends.python.batches import OutputCheck
from trident.core.backends.python.channel import FileWatcher, StubGone
from trident.core.backends.python.environment import PATH_PARAMETER, EnvironmentSettings, prepare
from trident.core.backends.python.instance import PythonModel
from trident.core.backends.python.process import MEMORY_SIZE, LaunchPlan, ModelLimits, ModelProcess
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.schema import ModelConfig, config_json, parse_config_override
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, ConfigInvalid, ModelLoadFailed, NotInstalled
from trident.core.interprocess.shared_memory import LARGEST
from trident.core.repository.repository import missing_file_hint

_log = logging.getLogger("trident.backends.python")

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
_FORCE_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"
# What numerical libraries read when they are imported.
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
# Triton's settings of its own shared memory and threads.
_WITHOUT_EFFECT = (
    "shm-default-byte-size",
    "shm-growth-byte-size",
    "shm_message_queue_size",
    "thread-pool-size",
    "shm-region-prefix-name",
)


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
        """Raises ConfigInvalid."""
        ignored = [name for name in _WITHOUT_EFFECT if name in settings]
        if ignored:
            _log.warning("without effect here: %s", ", ".join(f"--backend-config=python,{name}" for name in ignored))
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
        """A model takes what its configuration says."""

    def complete(self, path: Path, config: ModelConfig) -> None:
        """Have the model complete `config`, if it has the method for it. Raises a ServerError."""
        file = self._file or _model_file(path, config)
        if may_complete(file):
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
            self._complete(config, plan)

    def _complete(self, config: ModelConfig, plan: LaunchPlan) -> None:
        """Have the model complete `config`, in place, in a process of its own."""
        process = ModelProcess(plan, Placement(config.name, DeviceKind.CPU), self._watcher, _nothing)
        try:
            completed = parse_config_override(process.complete()["config"])
        except StubGone as gone:
            how = process.end(reason=str(gone), is_ending=True)
            raise BackendFailed(f"Stub process '{config.name}' is not healthy.", hint=how) from None
        finally:
            process.end()
        for name in _COMPLETED:
            config.ClearField(name)
            value = getattr(completed, name)
            if isinstance(value, int):
                setattr(config, name, value)
            elif name in ("input", "output"):
                getattr(config, name).extend(value)
            elif completed.HasField(name):
                getattr(config, name).CopyFrom(value)

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError for a file that is not Python code, and for parameters that have no meaning."""
        if self._file is None:
            _check_name(config)
        _check_parameters(config)

    def try_model(self, path: Path, config: ModelConfig, spec: ModelSpec, *, initialize: bool) -> None:
        """See TryingBackend: in a process of its own, as the model will have one."""
        if not (config.input or config.output):
            raise ConfigInvalid(
                "the model has no inputs and no outputs, so that a request with an input is refused",
                hint="add 'input' and 'output' to config.pbtxt, or the method auto_complete_config to the model",
            )
        placement = Placement(config.name, DeviceKind.CPU)
        process = ModelProcess(self._plan(path, config, spec), placement, self._watcher, _nothing)
        try:
            process.try_start(self._trial_limit_s, initialize=initialize)
            if initialize:
                process.stop(self._settings.finalize_limit_s)
        except StubGone as gone:
            how = process.end(reason=str(gone), is_ending=True)
            raise BackendFailed(f"the process of the model {how}") from None
        finally:
            process.end()

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
    """Whether the model runs in another Python than the server's, which may have what the server lacks."""
    return PATH_PARAMETER in parameters_of(config)


def may_complete(file: Path) -> bool:
    """Return whether the model in `file` may have the method: a needless process would double the time of a load.

    A class with a base class may inherit it. Raises OSError.
    """
    source = file.read_bytes()
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
            f"Model name must end with '.py'. Model name provided: '{name}'", field="default_model_filename"
        )


def _check_parameters(config: ModelConfig) -> None:
    parameters = parameters_of(config)
    ModelLimits.read(parameters)
    text = parameters.get(_FORCE_CPU, "yes")
    if text.lower() not in ("yes", "no"):
        # The quote at the end is Triton's.
        raise ConfigInvalid(f"Incorrect value for {_FORCE_CPU}: {text}'", hint="yes or no", field=field_of(_FORCE_CPU))


def _nothing() -> None: ...
