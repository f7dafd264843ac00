"""The package `tensorrt`: imported when the first plan is read, because a server without plans does not need it.

Source: TensorRT's Python API reference, Runtime and ILogger.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from trident.core.backends.model_files import origin_of
from trident.core.backends.parameters import boolean
from trident.core.backends.registry import DeviceSupport, ProviderState, importing
from trident.core.cuda import CudaError
from trident.core.errors import BackendFailed, ConfigInvalid, DeviceLost, ModelLoadFailed, OutOfMemory, ServerError

_log = logging.getLogger("trident.backends")

_POLICIES = ("DEVICE_BLOCKING", "BLOCKING")
# TensorRT's texts never repeat one of a client.
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|requested amount of GPU memory")
_POISON = re.compile(r"Cuda Runtime \((?:an illegal memory access|unspecified launch failure|misaligned address)")


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """`plugins` are libraries that are loaded before the first plan. `version_compatible`: plans of other versions may
    bring code with them, which is run.
    """

    plugins: tuple[str, ...] = ()
    version_compatible: bool = False

    @classmethod
    def read(cls, given: Mapping[str, str]) -> BackendSettings:
        """Raises ConfigInvalid."""
        policy = given.get("execution-policy", _POLICIES[0])
        if policy not in _POLICIES:
            raise ConfigInvalid(f"unknown execution-policy '{policy}'", hint=f"one of {', '.join(_POLICIES)}")
        # Requests are always gathered into one buffer, and each instance has its thread: both values do the same here.
        boolean(given.get("coalesce-request-input", "false"))
        plugins = tuple(path for path in given.get("plugins", "").split(";") if path)
        return cls(plugins, boolean(given.get("version-compatible", "false")))


class EngineError(Exception):
    """TensorRT refused a call; the text is what it logged."""


def is_out_of_memory(text: str) -> bool:
    return _OUT_OF_MEMORY.search(text) is not None


def is_poison(exc: BaseException) -> bool:
    """Whether nothing can run again on the device in this process."""
    if isinstance(exc, CudaError):
        return exc.is_poison
    return _POISON.search(str(exc)) is not None


def error_of(exc: Exception, model: str) -> ServerError:
    """The server's error for a failed execution: a CudaError, an EngineError, or what TensorRT raises."""
    return failure_of(exc, f"unable to enqueue for inference {model}", model)


def load_failure_of(exc: Exception, what: str, model: str, device_id: int) -> ServerError:
    """As `failure_of`, while a model is loaded on a GPU: DeviceLost, OutOfMemory or ModelLoadFailed."""
    if is_poison(exc):
        return DeviceLost(f"{what}: {exc}", device=f"gpu:{device_id}")
    return failure_of(exc, what, model, ModelLoadFailed)


def failure_of(exc: Exception, what: str, model: str, failed: type[ServerError] = BackendFailed) -> ServerError:
    """OutOfMemory, or `failed`, for `what` was not possible because of `exc`."""
    message = f"{what}: {exc}"
    lacks_memory = exc.is_out_of_memory if isinstance(exc, CudaError) else is_out_of_memory(str(exc))
    if lacks_memory:
        return OutOfMemory(message, hint="use fewer instances, a smaller max_batch_size, or another GPU")
    return failed(message)


_LEVELS = {
    "INTERNAL_ERROR": logging.ERROR,
    "ERROR": logging.ERROR,
    "WARNING": logging.WARNING,
    "INFO": logging.DEBUG,
}


class TensorRtPackage:
    """Any thread. `module` is the package.

    Make and use a runtime only inside `CudaDriver.on`: without a device TensorRT ends the process instead of raising.
    """

    def __init__(self, module: Any, settings: BackendSettings) -> None:
        self.module = module
        self._settings = settings
        self._last = threading.local()
        self._logger = _make_logger(module, self._last)
        self._loading = threading.Lock()
        self._has_plugins = False

    @property
    def version(self) -> str:
        return str(self.module.__version__)

    @property
    def last_error(self) -> str:
        """The last error that TensorRT logged on this thread; "" without one."""
        return str(getattr(self._last, "text", ""))

    def forget_error(self) -> None:
        self._last.text = ""

    def runtime(self) -> Any:
        """A runtime on the current device, which must live as long as its engines. Loads the plugins first.

        Raises ConfigInvalid for a plugin library that cannot be loaded, and ModelLoadFailed with Triton's text.
        """
        with self._loading:
            if not self._has_plugins:
                self._load_plugins()
                self._has_plugins = True
        self.forget_error()
        runtime = self.module.Runtime(self._logger)
        if self.last_error:
            # The object is there nevertheless, and its first use, or its end, would end the process: it stays for ever.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(runtime))
            raise ModelLoadFailed(
                f"unable to create TensorRT runtime: {self.last_error}",
                hint=f"TensorRT {self.version} may need a newer NVIDIA driver: update it, or install an older TensorRT",
            )
        if self._settings.version_compatible:
            runtime.engine_host_code_allowed = True
        return runtime

    def deserialize(self, runtime: Any, path: Path, model: str) -> Any:
        """The engine of the plan at `path`, on the current device. Raises a ServerError with Triton's text."""
        self.forget_error()
        engine = runtime.deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            raise self._not_created(path, model)
        return engine

    def _load_plugins(self) -> None:
        for path in self._settings.plugins:
            try:
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise ConfigInvalid(
                    f"unable to load plugin library '{path}' of TensorRT: {error}",
                    hint="--backend-config=tensorrt,plugins=FILE;FILE",
                ) from error
        self.module.init_libnvinfer_plugins(self._logger, "")

    def _not_created(self, path: Path, model: str) -> ServerError:
        text = f"unable to create TensorRT engine: {self.last_error}"
        if is_out_of_memory(self.last_error):
            return OutOfMemory(text)
        origin = origin_of(path) or "another TensorRT"
        hint = f"the plan was built by {origin}; TensorRT {self.version} is installed. "
        if f"{origin} ".startswith(f"TensorRT {'.'.join(self.version.split('.')[:3])} "):
            hint += "The file is incomplete, or was built for another kind of GPU: copy it again, or build it here"
        else:
            hint += (
                "A plan runs with the version that built it: build it again here, or with --versionCompatible and then "
                "start with --backend-config=tensorrt,version-compatible=true"
            )
        return ModelLoadFailed(text, hint=hint)


def import_package(settings: BackendSettings) -> TensorRtPackage:
    """Raises NotInstalled."""
    with importing("tensorrt"):
        return TensorRtPackage(import_module("tensorrt"), settings)


def _make_logger(module: Any, last: threading.local) -> Any:
    class Logger(module.ILogger):  # type: ignore[misc]
        """Passes TensorRT's messages on. TensorRT logs on the thread that it was called on, mostly."""

        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            level = _LEVELS.get(severity.name)
            if level is None:
                return
            if level == logging.ERROR:
                last.text = message
            _log.log(level, "TensorRT: %s", message)

    return Logger()


def device_support() -> DeviceSupport:
    """Imports the package, which loads its libraries."""
    try:
        version = import_module("tensorrt").__version__
    except ModuleNotFoundError:
        return DeviceSupport("TensorRT is not installed (optional)", ())
    except (ImportError, OSError) as error:
        cure = "install it again: pip install --force-reinstall 'trident-inference[tensorrt]'"
        return DeviceSupport("TensorRT", [ProviderState("TensorRT", True, str(error), cure)])
    return DeviceSupport(f"TensorRT {version}", ())
