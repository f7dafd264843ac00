"""The backends of this server, by the names that model configurations use.

A backend is a row of BUILT_IN, and a module beside this one. The module is imported when the first model asks for it: a
server whose repositories hold no such model neither loads the framework nor needs it installed.
Source: docs/spec/repository.md section 1.2.
"""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trident.core.backends.backend import Backend, CompletingBackend, PreparingBackend
from trident.core.backends.model_files import integer
from trident.core.config.autocomplete import CpuInstead, GpuIds, Preparation, Watch, unwatched
from trident.core.config.problem import ModelSignature, is_plain
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, NotInstalled, installation

_log = logging.getLogger("trident.backends")


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A backend of this installation: `make`, in a module of this package, makes it of its settings. `extra` is the
    extra of this distribution that installs the framework, `settings` are those that it reads of --backend-config,
    `runtimes` what `runtime` may say besides the name of Triton's library.
    """

    module: str
    make: str
    extra: str
    settings: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()


_ONNX_RUNTIME = ("enable-global-threadpool", "intra_op_thread_count", "inter_op_thread_count", "plugin")
_PROCESSES = (
    "environment-cache-directory",
    "install-requirements",
    "shared-memory-byte-size",
    "strict-outputs",
    "stub-timeout-seconds",
)

BUILT_IN: Mapping[str, BuiltIn] = {
    "fil": BuiltIn("fil", "FilBackend", "trees"),
    "genai": BuiltIn("genai", "GenaiBackend", "genai", _PROCESSES),
    "onnxruntime": BuiltIn("onnxruntime.backend", "OnnxRuntimeBackend", "cpu", _ONNX_RUNTIME),
    "openvino": BuiltIn("openvino.backend", "OpenVinoBackend", "openvino"),
    "python": BuiltIn("python.backend", "PythonBackend", "cpu", _PROCESSES),
    "pytorch": BuiltIn("pytorch.backend", "PyTorchBackend", "torch", _PROCESSES, ("model.py",)),
    "tensorflow": BuiltIn("tensorflow", "TensorFlowBackend", "tensorflow", _PROCESSES),
    "tensorrt": BuiltIn("tensorrt.backend", "TensorRtBackend", "tensorrt", ("plugins", "version-compatible")),
    "text": BuiltIn("text.backend", "TextBackend", "text", _ONNX_RUNTIME),
}

DEFAULT_MAX_BATCH_SIZE = "default-max-batch-size"
"""The one setting that every backend has, so that the registry reads it."""

BACKEND_DIRECTORY = "backend-directory"
"""The setting for all backends that names the folder of backends that are written in Python: NAME/model.py each."""

# Characters that the name of a Python model's instance must not have. Source: docs/spec/python-backend.md section 4.1.
_SHELL_CHARACTERS = ";|&$`<>()[]{}\\\"'*?~#!"
_MAX_BATCH_SIZE = "4"
# The backend that runs those, and the file in their folders.
_PYTHON = "python"
_PYTHON_FILE = "model.py"

Settings = Mapping[str, str]
_NO_SETTINGS: Mapping[str, Settings] = {}
MakeBackend = Callable[[Settings], Backend]


def installed_backends() -> dict[str, MakeBackend]:
    """The makers of all backends of this installation, by name. Imports no framework."""

    def make(name: str, settings: Settings) -> Backend:
        with importing(name):
            make: MakeBackend = getattr(_import(name), BUILT_IN[name].make)
        return make(settings)

    return {name: partial(make, name) for name in BUILT_IN}


def device_support(
    backends: Collection[str], settings: Mapping[str, Settings] = _NO_SETTINGS
) -> dict[str, DeviceSupport | NotInstalled]:
    """The devices that `backends` support, by name, for those that report it, or that a framework cannot be imported.

    Imports the frameworks. A backend tells its support in the function `device_support` of its module, which takes its
    settings. `settings` are those of BackendRegistry.
    """
    found: dict[str, DeviceSupport | NotInstalled] = {}
    asked = set[object]()
    for name in (name for name in BUILT_IN if name in backends):
        try:
            with importing(name):
                describe = getattr(_import(name), "device_support", None)
                if describe is not None and describe not in asked:  # that of the framework below is asked once
                    asked.add(describe)
                    found[name] = describe({**settings.get("", {}), **settings.get(name, {})})
        except NotInstalled as error:
            found[name] = error
    return found


class BackendRegistry:
    """Imports and makes each backend once, when a model first needs it. Loader threads, several at once.

    Make it after any fork. It answers the questions of BackendFacts for the configurations of all backends.
    """

    def __init__(
        self,
        settings: Mapping[str, Settings],
        *,
        gpu_ids: Sequence[int] = (),
        cpu_instead: bool = False,
        makers: Mapping[str, MakeBackend] | None = None,
    ) -> None:
        """`settings` are the values of --backend-config by backend name; those under "" are for all backends.
        `gpu_ids` are the GPUs that backends may use; with `cpu_instead` a model that asks for one where there is none,
        or whose backend uses none, runs on the CPU. `makers` are those of `installed_backends` unless given.
        """
        self._settings = settings
        self._gpu_ids = tuple(gpu_ids)
        self._cpu_instead = cpu_instead
        self._makers = installed_backends() if makers is None else makers
        self._making = threading.Lock()
        self._made: dict[str, Backend] = {}
        if unread := list(self._unread_settings()):
            _log.warning("without effect here: %s", ", ".join(unread))

    def find(self, config: ModelConfig) -> Backend:
        """The backend that `config` names. Raises ConfigInvalid, and ModelLoadFailed if it cannot be imported.

        Backends are not libraries here. `runtime` is accepted if it names the library that Triton would load.
        """
        name, runtime = config.backend, config.runtime
        known = f"this server has the backends: {', '.join(sorted(self._makers))}"
        if runtime and not is_plain(runtime):
            raise ConfigInvalid(f"backend library name '{runtime}' escapes backend directory", hint="remove 'runtime'")
        runtimes = self._runtimes(name)
        if runtime and runtime not in runtimes:
            hint = f"remove 'runtime', or set it to {runtimes[0]}" if runtimes else known
            raise ConfigInvalid(f"unable to find backend library '{runtime}' for model '{config.name}'", hint=hint)
        if not runtimes:
            inside = sorted(backend for backend in self._makers if name and name.lower() in backend)
            near = inside or difflib.get_close_matches(name.lower(), self._makers, n=1)
            raise ConfigInvalid(
                f"unable to find backend library for backend '{name}', "
                "try specifying runtime on the model configuration.",
                hint=f"did you mean '{near[0]}'? {known}" if near else known,
            )
        instances = [config.name, *(group.name for group in config.instance_group)]
        is_python = name == _PYTHON or name not in self._makers or runtime == _PYTHON_FILE
        wrong = {each for instance in instances for each in instance if each in _SHELL_CHARACTERS}
        if is_python and wrong:
            hint = f"a model in Python cannot have these in its name or an instance group's: {' '.join(sorted(wrong))}"
            raise ConfigInvalid("Invalid stub name: contains invalid characters", hint=hint)
        return self._backend(name)

    def gpu_ids(self, config: ModelConfig) -> GpuIds:
        """The GPUs for the instances of `config`; None if its backend cannot use GPUs."""
        found: GpuIds
        if not self._runtimes(config.backend):
            found = self._gpu_ids or None
        else:
            found = self._gpu_ids if self._backend(config.backend).supports_gpus else None
        return CpuInstead() if self._cpu_instead and not found else found

    def default_max_batch_size(self, config: ModelConfig) -> int:
        """The `max_batch_size` of a model that can batch and does not set one. Raises ConfigInvalid."""
        return integer(self._settings_of(config.backend).get(DEFAULT_MAX_BATCH_SIZE, _MAX_BATCH_SIZE))

    def completes(self, config: ModelConfig) -> bool:
        return isinstance(self.find(config), CompletingBackend)

    def complete(self, path: Path, config: ModelConfig, watch: Watch = unwatched) -> None:
        backend = self.find(config)
        if isinstance(backend, CompletingBackend):
            backend.complete(path, config, watch)

    def inspect(self, path: Path, config: ModelConfig, preparation: Preparation | None = None) -> ModelSignature | None:
        backend = self.find(config)
        if preparation is not None and isinstance(backend, PreparingBackend):
            return backend.prepare(path, config, preparation)
        return backend.inspect(path, config)

    def check(self, config: ModelConfig) -> None:
        self.find(config).check(config)

    def _backend(self, name: str) -> Backend:
        with self._making:
            if name not in self._made:
                make = self._makers.get(name) or partial(_import(_PYTHON).PythonBackend, file=self._python_file(name))
                self._made[name] = make(self._settings_of(name))
            return self._made[name]

    def _runtimes(self, name: str) -> tuple[str, ...]:
        """The values of `runtime` that fit a backend; () if there is no such backend."""
        if name in self._makers:
            further = BUILT_IN[name].runtimes if name in BUILT_IN else ()  # a maker that was given has no row
            return (f"libtriton_{name}.so", *further)
        return (_PYTHON_FILE,) if self._python_file(name) is not None else ()

    def _python_file(self, name: str) -> Path | None:
        """The file of a backend that is written in Python; None if no name matches."""
        directory = self._settings.get("", {}).get(BACKEND_DIRECTORY, "")
        if not directory or not is_plain(name) or _PYTHON not in self._makers:
            return None
        file = Path(directory, name, _PYTHON_FILE).absolute()
        return file if file.is_file() else None

    def _unread_settings(self) -> Iterator[str]:
        """The values of --backend-config that no backend reads. One in Python that has no row reads its own."""
        for backend, given in self._settings.items():
            rows = [row for name, row in BUILT_IN.items() if backend in ("", name)]
            if not rows and self._runtimes(backend):
                continue
            read = {DEFAULT_MAX_BATCH_SIZE, *(name for row in rows for name in row.settings)} if rows else set()
            if not backend:
                read.add(BACKEND_DIRECTORY)
            for name in given:
                if name.partition("=")[0] not in read:
                    yield f"--backend-config={backend}{',' if backend else ''}{name}"

    def _settings_of(self, name: str) -> Settings:
        """The backend's own settings win over those for all; one written in Python has those of `python`, too."""
        python = {} if name in self._makers else self._settings.get(_PYTHON, {})
        return {**self._settings.get("", {}), **python, **self._settings.get(name, {})}


def _import(name: str) -> Any:
    return import_module(f"trident.core.backends.{BUILT_IN[name].module}")


def is_installed(module: str) -> bool:
    return find_spec(module) is not None


def check_installed(module: str, backend: str, model: str) -> None:
    """Raise NotInstalled, which names the extra that installs the framework of a backend, if `module` is missing."""
    if not is_installed(module):
        raise NotInstalled(
            f"failed to load model '{model}': the framework {module} is not installed", hint=_install_hint(backend)
        )


@contextmanager
def importing(backend: str) -> Iterator[None]:
    """Turn the error of a framework that is missing or broken into NotInstalled."""
    try:
        yield
    except (ImportError, OSError) as error:  # OSError: one of its libraries cannot be loaded
        raise NotInstalled(f"unable to import backend '{backend}': {error}", hint=_install_hint(backend)) from error


def _install_hint(backend: str) -> str:
    return f"install its framework: {installation(BUILT_IN[backend].extra)}"


@dataclass(frozen=True, slots=True)
class ProviderState:
    """One execution provider for a device other than the CPU.

    `installed`: the framework was built with it, or loads it as a plugin. `problem` is the linker's message about its
    library, empty if the library loads. `cure` says how to get the provider, `devices` what a plugin runs on.
    """

    name: str
    installed: bool
    problem: str = ""
    cure: str = ""
    devices: str = ""


@dataclass(frozen=True, slots=True)
class DeviceSupport:
    """`framework` is the name and the version of a backend's framework."""

    framework: str
    providers: Sequence[ProviderState]
