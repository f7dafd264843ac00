"""The ONNX Runtime backend: the one module that imports `onnxruntime`.

One session serves all instances of a model on a device (it may be run from many threads), so that the weights are in
memory once per device. Its exceptions are turned into the server's errors here and in the instance, nowhere else.
Source: docs/spec/onnxruntime-backend.md.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as capi

from core.backends.base import BackendInstance, LoadContext
from core.backends.devices import cuda
from core.backends.devices.cpu_budget import Spinning, available_cores, spinning_of
from core.backends.onnxruntime.bounded_graph import has_bounded_graph
from core.backends.onnxruntime.errors import failure_of
from core.backends.onnxruntime.execution_providers import (
    CPU,
    CUDA,
    OPENVINO,
    ProviderRequest,
    check_active,
    check_available,
    requested_providers,
)
from core.backends.onnxruntime.instance import OnnxInstance, Run, TextRun
from core.backends.onnxruntime.model_file import library_path, model_path
from core.backends.onnxruntime.session_options import SessionSettings, global_pool_sizes, session_settings
from core.backends.onnxruntime.signature import signature_of
from core.backends.onnxruntime.values import BF16, ValueRun, strings_work
from core.backends.tensors.batch_inputs import batch_inputs
from core.backends.tensors.gather import Gatherer
from core.backends.tensors.split import Splitter, scattered_outputs
from core.config.model_spec import ModelSpec
from core.config.placement import Placement, placements
from core.config.problem import InvalidModelConfig
from core.config.schema import ModelConfig
from core.config.signature import ModelSignature
from core.config.validation.signature import validate_against_signature
from core.errors import ModelLoadFailed
from core.inference.tensors import BYTES

_log = logging.getLogger("trident.backends")

_VERBOSE, _ERROR, _FATAL = 0, 3, 4
# ONNX Runtime's own exceptions (newer releases have more of them), and those by which its bindings report the rest.
FAILURES: tuple[type[Exception], ...] = (
    *(kind for kind in vars(capi).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    RuntimeError,
    MemoryError,
)
_LIBRARIES = Path(onnxruntime.__file__).parent / "capi"
_INSPECTION = Placement("inspection", "CPU")

# Some builds count what they are used for, in the home directory and beyond. That is not the server's to tell.
onnxruntime.disable_telemetry_events()

# Sessions with OpenVINO must not be made side by side.
_openvino_lock = threading.Lock()
_pool_lock = threading.Lock()


def supports_gpus() -> bool:
    """Whether the installed ONNX Runtime was built for GPUs."""
    return CUDA in onnxruntime.get_available_providers()


def gpu_ids(min_compute_capability: float = 0.0) -> tuple[int, ...]:
    """The GPUs that models can run on: none where ONNX Runtime has no CUDA provider. Never call it before a fork."""
    if not supports_gpus():
        return ()
    return tuple(i for i in cuda.device_ids() if float(cuda.compute_capability(i) or 0) >= min_compute_capability)


@cache
def _make_global_pool(intra_op_threads: int, inter_op_threads: int) -> None:
    """Make the thread pool of this process, once: ONNX Runtime does not let it be replaced."""
    onnxruntime.set_global_thread_pool_sizes(intra_op_threads, inter_op_threads)


class OnnxRuntimeBackend:
    """The backend `onnxruntime`. Loads on loader threads, several at once. Make it after the fork.

    `cores` are those that the process may use (0: asked for here); with few of them threads spin little.
    """

    name = "onnxruntime"

    def __init__(self, cores: float = 0) -> None:
        self._cores = cores or available_cores()
        self._available: Sequence[str] = onnxruntime.get_available_providers()
        if CUDA in self._available:
            # CUDA and cuDNN are where pip has put them, which the linker does not search.
            onnxruntime.preload_dlls()

    def inspect(self, path: Path, config: ModelConfig, settings: dict[str, str]) -> ModelSignature:
        """The signature of the model in version directory `path`, from a session that is thrown away again."""
        # The graph is not going to run, so nothing is spent on making it fast.
        plan = replace(self._settings(config, settings, threads=1), graph_level="ORT_DISABLE_ALL")
        session = _make_session(_SessionRequest(config, path, _INSPECTION, plan, [ProviderRequest(CPU, {})]))
        return signature_of(session, config.name)

    def check(self, config: ModelConfig) -> None:
        """Raises a ServerError for execution providers that instances ask for and that do not exist or are not here.

        Beside `inspect` that is what can be told of a load without its session.
        """
        for placement in {placement.device: placement for placement in placements(config)}.values():
            self._providers(config, placement)

    def load(self, context: LoadContext) -> OnnxModel:
        """Load one version: a session for each device. Raises a ServerError, see the protocol."""
        config = context.config
        spinning = spinning_of(self._cores, _size_of(context.path))
        plan = self._settings(config, context.settings, threads=context.threads, spinning=spinning)

        def checked_session(placement: Placement) -> Any:
            providers = self._providers(config, placement)
            session = _make_session(_SessionRequest(config, context.path, placement, plan, providers))
            problems = validate_against_signature(config, signature_of(session, config.name), config.name)
            if problems:
                raise InvalidModelConfig(problems, model=config.name)
            return session

        wanted = {placement.device: placement for placement in context.placements}
        sessions = {device: checked_session(placement) for device, placement in wanted.items()}
        return OnnxModel(context.spec, config, plan, sessions, checked_session, context.path)

    def _providers(self, config: ModelConfig, placement: Placement) -> list[ProviderRequest]:
        providers = requested_providers(config, placement)
        check_available(providers, self._available, config.name)
        return providers

    def _settings(
        self, config: ModelConfig, settings: dict[str, str], *, threads: int, spinning: Spinning = Spinning.NEVER
    ) -> SessionSettings:
        plan = session_settings(config, settings, threads=threads, spinning=spinning)
        if plan.global_thread_pool:
            with _pool_lock:
                _make_global_pool(*global_pool_sizes(settings))
        return plan


class OnnxModel:
    """One loaded version: `sessions` by device. Loader threads, several at once.

    `make_session` makes one, checked, for the device of a placement; it is called when a device is used that has none.
    `version` is the version directory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: ModelConfig,
        settings: SessionSettings,
        sessions: dict[str, Any],
        make_session: Callable[[Placement], Any],
        version: Path,
    ) -> None:
        self._spec = spec
        self._config = config
        self._settings = settings
        self._make_session = make_session
        self._version = version
        # The dictionary is replaced, under the lock, and never changed: it is read without.
        self._changing = threading.Lock()
        self._sessions = sessions
        self._closed = False

    def describe(self) -> dict[str, str]:
        """`device`, `execution provider` (the first of each session: it runs what it can) and `threads`."""
        sessions = self._sessions
        active = {session.get_providers()[0]: None for session in sessions.values()}
        return {
            "device": ", ".join(sessions),
            "execution provider": ", ".join(active),
            "threads": self._settings.thread_plan,
        }

    def instance(self, placement: Placement) -> BackendInstance:
        """An instance on the session of its device, which is made if there is none. Raises a ServerError then."""
        session = self._sessions.get(placement.device) or self._session_on(placement)
        on_gpu = placement.kind == "GPU"
        pinned = cuda.PinnedMemory.open() if on_gpu else None
        gatherer = Gatherer(
            self._spec,
            scalars=frozenset(argument.name for argument in session.get_inputs() if not argument.shape),
            batch_inputs=batch_inputs(self._config, self._spec.name),
            on_buffer=pinned.replace if pinned is not None else None,
        )
        splitter = Splitter(self._spec, scattered_outputs(self._config))
        options = _run_options(self._settings)
        run, bounded = self._run(session, on_gpu), not on_gpu and self._bounded
        return OnnxInstance(placement, self._spec, gatherer, splitter, run, options, FAILURES, bounded)

    @cached_property
    def _bounded(self) -> bool:
        libraries = self._config.model_operations.op_library_filename
        return not libraries and has_bounded_graph(model_path(self._version, self._config))

    def _session_on(self, placement: Placement) -> Any:
        """The session of a device that had none: of several threads that want it, one makes it."""
        device = placement.device
        with self._changing:
            if self._closed:
                raise RuntimeError("the model is closed")
            if device not in self._sessions:
                self._sessions = {**self._sessions, device: self._make_session(placement)}
            return self._sessions[device]

    def retain(self, devices: Iterable[str]) -> None:
        """Let go of the sessions on all but `devices`; instances that use one keep it until they are closed."""
        kept = frozenset(devices)
        with self._changing:
            self._sessions = {device: session for device, session in self._sessions.items() if device in kept}

    def close(self) -> None:
        """Let go of the sessions: ONNX Runtime frees them when the last instance has let go as well."""
        with self._changing:
            self._closed = True
            self._sessions = {}

    def _run(self, session: Any, on_gpu: bool) -> Run:
        """How an instance runs the session: on arrays where it can, on values where it must."""
        # The session's inner `run` is what the public one calls. It is called here because the public one takes 3 µs
        # for checks that the request validation has made already, and falls back to the CPU, for good and silently,
        # when a GPU fails.
        run: Run = getattr(session, "_sess", session).run
        spec = self._spec
        inputs = {name: tensor.datatype for name, tensor in spec.inputs.items()}
        outputs = {name: tensor.datatype for name, tensor in spec.outputs.items()}
        used = {*inputs.values(), *outputs.values()}
        if not on_gpu and BYTES not in used and BF16 not in used:
            return run
        ort_value = onnxruntime.OrtValue
        values = ValueRun(session, ort_value, inputs, outputs, BYTES in used and strings_work(ort_value))
        return TextRun(run, values) if BYTES in used and BF16 not in used else values


@dataclass(frozen=True, slots=True)
class _SessionRequest:
    """All that one session is made of. `version` is the version directory."""

    config: ModelConfig
    version: Path
    placement: Placement
    settings: SessionSettings
    providers: Sequence[ProviderRequest]


def _size_of(folder: Path) -> int:
    """The bytes of all files below, but those that go or cannot be looked at meanwhile."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.stat(os.path.join(parent, name)).st_size
    return size


def _make_session(request: _SessionRequest) -> Any:
    """A session with exactly the providers that were asked for. Raises a ServerError with Triton's text."""
    config, name = request.config, request.config.name
    on_gpu = request.placement.kind == "GPU"
    capability = cuda.compute_capability(request.placement.device_id) if on_gpu and config.cc_model_filenames else ""
    path = model_path(request.version, config, capability)
    serial = _openvino_lock if any(provider.name == OPENVINO for provider in request.providers) else nullcontext()
    try:
        options = _session_options(request)
        with serial:
            session = onnxruntime.InferenceSession(
                path,
                options,
                providers=[(provider.name, provider.options) for provider in request.providers],
                # Otherwise a provider that fails would be dropped with no more than a printed line.
                enable_fallback=0,
            )
    except FAILURES as exc:
        raise failure_of(exc, name, ModelLoadFailed) from exc
    active = session.get_providers()
    missing = [provider.name for provider in request.providers if provider.name not in active]
    library = cuda.missing_library(missing[0], _LIBRARIES) if missing else ""
    check_active(request.providers, active, library, name)
    for provider in request.providers:
        if provider.log_line:
            _log.info("%s", provider.log_line)
    return session


def _session_options(request: _SessionRequest) -> Any:
    settings = request.settings
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, settings.graph_level)
    options.execution_mode = getattr(onnxruntime.ExecutionMode, settings.execution_mode)
    options.use_per_session_threads = not settings.global_thread_pool
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = settings.inter_op_threads
    if settings.enable_mem_arena is not None:
        options.enable_cpu_mem_arena = settings.enable_mem_arena
    if settings.enable_mem_pattern is not None:
        options.enable_mem_pattern = settings.enable_mem_pattern
    options.logid = request.config.name
    options.log_severity_level = _VERBOSE if _log.isEnabledFor(logging.DEBUG) else _ERROR
    for key, value in settings.session_entries.items():
        options.add_session_config_entry(key, value)
    for library in request.config.model_operations.op_library_filename:
        options.register_custom_ops_library(library_path(request.version, library))
    return options


def _run_options(settings: SessionSettings) -> Any:
    options = onnxruntime.RunOptions()
    # What fails in a run is raised, and logged by whoever answers the request: once, not here as well.
    options.log_severity_level = _FATAL
    for key, value in settings.run_entries.items():
        options.add_run_config_entry(key, value)
    return options
