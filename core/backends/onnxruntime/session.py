"""Makes ONNX Runtime sessions: with the execution providers that were asked for, or not at all.

Source: docs/spec/onnxruntime-backend.md section 5.2.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from onnxruntime.capi import build_and_package_info
from onnxruntime.capi import onnxruntime_pybind11_state as capi

from trident.core.backends.cpu_budget import Spinning
from trident.core.backends.model_files import boolean, content_hint, field_of, integer, parameters_of
from trident.core.backends.onnxruntime.graph import (
    LOCALE,
    is_zipped,
    library_path,
    missing_locale,
    model_path,
    with_known_locale,
    without_links,
    without_zip_maps,
)
from trident.core.backends.onnxruntime.packages import MANIFEST, variant_of
from trident.core.backends.onnxruntime.providers import (
    OPENVINO,
    TENSORRT,
    ProviderRequest,
    check_active,
    preload_tensorrt,
)
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.problem import read_file
from trident.core.config.schema import ModelConfig
from trident.core.cuda import OLD_DRIVER_CURE, POISON, compute_capability, old_driver
from trident.core.errors import BackendFailed, ConfigInvalid, DeviceLost, ModelLoadFailed, OutOfMemory, ServerError
from trident.core.inference.tensors import BY_ONNX_NAME, BYTES, Array
from trident.core.observability.hardware import read_driver
from trident.core.repository.repository import chmod_hint

# "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : the text"
_MESSAGE = re.compile(r"\[ONNXRuntimeError\] : (?P<code>\d+) : [A-Z_]+ : (?P<text>.*)", re.DOTALL)
_FAIL = "1"

# The CUDA provider ends its reports with " ; GPU=0 ; hostname=". The patterns require that, because a message may also
# repeat a client's text, and no client may bring the server down by sending an error message.
_OUT_OF_MEMORY = re.compile(
    # The arenas, on any device; the second text is that of a memory limit.
    r"Failed to allocate memory for requested buffer"
    r"|Available memory of \d+ is smaller than requested bytes of \d+"
    r"|Memory allocation failed\. Size=\d+"
    r"|cudaMallocFromPoolAsync failed"
    # Kernels that ask for memory themselves.
    r"|[Ff]ailed to allocate (?:output (?:sparse )?tensor|pinned host memory|workspace for|external initializer buffer)"
    r"|std::bad_alloc"
    # The libraries' status numbers: their texts change between releases. Failing to make a handle of cuBLAS (1) or
    # cuDNN (1001) means lack of memory, too, as in Triton's adapter for SageMaker.
    r"|(?:CUDA (?:error|failure) 2:"
    r"|CUBLAS (?:error|failure) [13]:"
    r"|CUDNN (?:error|failure) (?:1001|400[34]):"
    r"|CUFFT (?:error|failure) 2:"
    r"|CURAND (?:error|failure) 102:"
    r"|\w+ (?:error|failure) \d+: \w*_ALLOC(?:ATION)?_FAILED)[^;]* ; GPU=-?\d"
)

# After one of these errors every call in the process's CUDA context fails: even the one that asks for the current GPU,
# which is -1 then. cuDNN and cuBLAS report them as a failed execution.
_POISONED = re.compile(
    rf"(?:CUDA (?:error|failure) (?:{'|'.join(map(str, sorted(POISON)))}):"
    r"|(?:CUDNN|CUDNN_FE|CUBLAS) (?:error|failure) \d+: \w*_EXECUTION_FAILED)[^;]* ; GPU=-?\d"
)


def is_poison(exc: BaseException) -> bool:
    """Return True if the CUDA context is lost, so that its GPU runs nothing until the process is replaced."""
    return _POISONED.search(str(exc)) is not None


def check_device(exc: Exception, model_name: str, placement: Placement) -> None:
    """Raise DeviceLost for an exception of a session on a GPU, during a load, if the CUDA context is lost."""
    if is_poison(exc):
        raise DeviceLost(failure_of(exc, model_name).message, device=placement.device, model=model_name) from exc


def failure_of(
    exc: Exception, model_name: str, failed: type[ServerError] = BackendFailed, hint: str | None = None
) -> ServerError:
    """The server's error for an exception of ONNX Runtime: OutOfMemory, or `failed` with `hint`; with Triton's text."""
    whole = str(exc)
    match = _MESSAGE.match(whole)
    code, text = (match["code"], match["text"]) if match else (_FAIL, whole)
    message = f"onnx runtime error {code}: {text or type(exc).__name__}"
    if isinstance(exc, MemoryError) or _OUT_OF_MEMORY.search(whole):
        return OutOfMemory(message, model=model_name)
    return failed(message, hint=hint, model=model_name)


_TOO_NEW_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
_TOO_NEW_OPSET = re.compile(r"Opset (\d+) is under development.*?domain (\S+) is till opset (\d+)", re.DOTALL)
# CUDA's own finding, for a machine whose driver cannot be asked.
_OLD_DRIVER = "CUDA failure 35:"
_UNREADABLE = "Protobuf parsing failed"
# Of weights in another file that cannot be read, ONNX Runtime says only "SystemError : 13".
_FORBIDDEN = re.compile(r"system error number 13\b|errcode = 13\b|SystemError : 13\b|Permission denied")


def load_hint(text: str, path: Path) -> str | None:
    """The cure for ONNX Runtime's message `text` about the file at `path`; None if it is not known."""
    version = onnxruntime.__version__
    if _FORBIDDEN.search(text):
        return chmod_hint(path.parent)
    if _OLD_DRIVER in text:
        return OLD_DRIVER_CURE
    if match := _TOO_NEW_IR.search(text):
        given, known = match.groups()
        return (
            f"the model has IR version {given}, and ONNX Runtime {version} reads up to {known}: set model.ir_version = "
            f"{known} before you save it, export it with an older onnx package, or install a newer onnxruntime"
        )
    if match := _TOO_NEW_OPSET.search(text):
        given, domain, known = match.groups()
        return (
            f"the model has opset {given} of {domain}, and ONNX Runtime {version} knows up to {known}: export it with "
            f"opset {known} or lower, or install a newer onnxruntime"
        )
    if locale := missing_locale(text):
        return (
            f"install the locale (on Debian and Ubuntu: apt-get install locales && localedef -i {locale.split('.')[0]} "
            f"-f UTF-8 {locale}), or name another one in the model's StringNormalizer"
        )
    if hint := content_hint(path):
        return hint
    if _UNREADABLE in text and path.is_file():
        size = path.stat().st_size
        return f"the file ({size} bytes) is not an ONNX model, or incomplete: compare it with the original"
    return None


_GRAPH_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
_EXECUTION_MODES = {0: "ORT_SEQUENTIAL", 1: "ORT_PARALLEL"}
# Model parameters that are entries of ONNX Runtime's session or run options under the same name.
_SESSION_ENTRIES = (
    "session.use_device_allocator_for_initializers",
    "session.intra_op.allow_spinning",
    "session.intra_op.spin_duration_us",
)
_GPU = re.compile(r"gpu:\d+")
_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_RUN_ENTRIES = (_SHRINKAGE,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """`graph_level` and `execution_mode` are names in ONNX Runtime's enums. 0 threads and None mean its defaults."""

    graph_level: str = "ORT_ENABLE_ALL"
    execution_mode: str = "ORT_SEQUENTIAL"
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    enable_mem_arena: bool | None = None
    enable_mem_pattern: bool | None = None
    global_thread_pool: bool = False
    session_entries: dict[str, str] = field(default_factory=dict)
    run_entries: dict[str, str] = field(default_factory=dict)

    @property
    def thread_plan(self) -> str:
        if self.global_thread_pool:
            return "the global pool"
        return f"{self.intra_op_threads or 'default'} intra-op, {self.inter_op_threads or 'default'} inter-op"


_SPIN_ENTRIES = {
    Spinning.FREELY: {"session.intra_op.allow_spinning": "1", "session.inter_op.allow_spinning": "1"},
    # With a version of ONNX Runtime that does not know the duration, the threads stop spinning at the end of a run.
    Spinning.BRIEFLY: {
        "session.intra_op.allow_spinning": "1",
        "session.intra_op.spin_duration_us": "1000",
        "session.inter_op.allow_spinning": "0",
        "session.force_spinning_stop": "1",
    },
    Spinning.NEVER: {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"},
}


def session_settings(
    config: ModelConfig, settings: Mapping[str, str], *, threads: int = 0, spinning: Spinning = Spinning.NEVER
) -> SessionSettings:
    """The settings for the sessions of one model.

    `threads` is the number that the thread plan grants to a model that does not set one. `spinning` is what threads do
    while they wait. `settings` are the backend's, from --backend-config. Raises ConfigInvalid.
    """
    parameters = parameters_of(config)
    global_pool = boolean(settings.get("enable-global-threadpool", "0"))
    mode = integer(parameters.get("execution_mode", "0"), field_of("execution_mode"))
    if mode not in _EXECUTION_MODES:
        raise ConfigInvalid(
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 "
            f"but got {mode} .",  # the two spaces and the one before the stop are Triton's
            field=field_of("execution_mode"),
        )
    # Sessions on the global pool have no threads of their own, but a bad value is refused all the same.
    intra_op = _thread_count(parameters, "intra_op_thread_count")
    inter_op = _thread_count(parameters, "inter_op_thread_count")
    return SessionSettings(
        graph_level=_GRAPH_LEVELS.get(config.optimization.graph.level, "ORT_ENABLE_ALL"),
        execution_mode=_EXECUTION_MODES[mode],
        intra_op_threads=0 if global_pool else intra_op or threads,
        inter_op_threads=0 if global_pool else inter_op,
        enable_mem_arena=_optional_boolean(parameters, "enable_mem_arena"),
        enable_mem_pattern=_optional_boolean(parameters, "enable_mem_pattern"),
        global_thread_pool=global_pool,
        session_entries={**_SPIN_ENTRIES[spinning], **_entries(parameters, _SESSION_ENTRIES)},
        run_entries=_entries(parameters, _RUN_ENTRIES),
    )


def settings_on(settings: SessionSettings, placement: Placement, placed: Iterable[Placement]) -> SessionSettings:
    """`settings` for a session of a model whose instances are `placed`: it has no arenas of other GPUs.

    If that leaves none, and no instance is on a GPU that is named, they stay, and the session is refused with them.
    """
    named = settings.run_entries.get(_SHRINKAGE, "").split(";")
    kept = [device for device in named if not _GPU.fullmatch(device) or device == placement.device]
    if kept == named or not (kept or {each.device for each in placed}.intersection(named)):
        return settings
    entries = {key: value for key, value in settings.run_entries.items() if key != _SHRINKAGE}
    return replace(settings, run_entries={**entries, _SHRINKAGE: ";".join(kept)} if kept else entries)


def global_pool_sizes(settings: Mapping[str, str]) -> tuple[int, int]:
    """Intra-op and inter-op threads of the process-wide pool; 0 means ONNX Runtime's default. Raises ConfigInvalid."""
    return _thread_count(settings, "intra_op_thread_count"), _thread_count(settings, "inter_op_thread_count")


def _thread_count(values: Mapping[str, str], name: str) -> int:
    return max(0, integer(values.get(name, "0"), field_of(name)))


def _optional_boolean(parameters: Mapping[str, str], name: str) -> bool | None:
    return boolean(parameters[name], field_of(name)) if name in parameters else None


def _entries(parameters: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: parameters[name] for name in names if name in parameters}


_log = logging.getLogger("trident.backends")

# Levels of ONNX Runtime's own log.
_VERBOSE, SILENT = 0, 4
# The folder of the weights that a model stores in other files; needed for a model that is not read from its file.
_EXTERNAL_FILES = "session.model_external_initializers_file_folder_path"

FAILURES: tuple[type[Exception], ...] = (
    *(kind for kind in vars(capi).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    RuntimeError,
    MemoryError,
)
"""ONNX Runtime's own exceptions, of which newer releases have more, and those that its bindings raise for the rest."""

LIBRARIES = Path(onnxruntime.__file__).parent / "capi"

# Such as "13.0"; only builds for GPUs have it.
CUDA_VERSION: str = getattr(build_and_package_info, "cuda_version", "")

# For a program that imported ONNX Runtime before `import trident`, which keeps it from sending telemetry otherwise.
onnxruntime.disable_telemetry_events()

# Two sessions with OpenVINO must not be made at the same time.
_openvino_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """Everything that one session is made from. `version` is the version directory.

    `is_inspection`: the session is not going to serve, so that the log does not mention it.
    """

    config: ModelConfig
    version: Path
    placement: Placement
    settings: SessionSettings
    providers: Sequence[ProviderRequest]
    is_inspection: bool = False


class MadeSession(NamedTuple):
    """A session of ONNX Runtime, the labels of the outputs before which a ZipMap was left out, and its graph's file."""

    session: Any
    labels: Mapping[str, tuple[str, ...]]
    file: Path


def make_session(request: SessionRequest) -> MadeSession:
    """A session with exactly the requested providers. Raises a ServerError with Triton's text. Blocks."""
    config, name = request.config, request.config.name
    on_gpu = request.placement.kind is DeviceKind.GPU
    if on_gpu and (problem := driver_problem()):
        raise ModelLoadFailed(f"unable to load model '{name}', {problem}", hint=OLD_DRIVER_CURE, model=name)
    capability = compute_capability(request.placement.device_id) if on_gpu and config.cc_model_filenames else ""
    request, path = _with_file(request, capability)
    wanted = {provider.name for provider in request.providers}
    if TENSORRT in wanted:
        preload_tensorrt()
    serial = _openvino_lock if OPENVINO in wanted else nullcontext()
    try:
        with serial:
            made = _session_of_file(request, path)
    except FAILURES as exc:
        if on_gpu:
            check_device(exc, name, request.placement)
        hint = load_hint(str(exc), path)
        raise failure_of(exc, name, ModelLoadFailed, hint) from exc
    check_active(request.providers, made.session.get_providers(), LIBRARIES, name)
    if request.settings.run_entries:
        # ONNX Runtime tells each run only that it refuses an option. With the options a run that is to end before its
        # first node must fail for no other reason than without them.
        plain, failure = [_run_nothing(made.session, each) for each in (SessionSettings(), request.settings)]
        if failure is not None and str(failure) != str(plain):
            entries = request.settings.run_entries
            written = ", ".join(f"{key} is '{value}'" for key, value in entries.items())
            raise ConfigInvalid(
                f"unable to load model '{name}', every request would fail, because {written}: "
                f"{failure_of(failure, name).message}",
                hint="name the arenas of the devices that the instances run on, such as cpu:0 or gpu:0, separated by "
                "semicolons; there is none on the CPU with enable_mem_arena false",
                model=name,
                field=field_of(next(iter(entries))),
            ) from failure
    for provider in request.providers:
        if provider.log_line and not request.is_inspection:
            _log.info("%s", provider.log_line)
    return made


def _with_file(request: SessionRequest, capability: str = "") -> tuple[SessionRequest, Path]:
    """The file of the graph, and the request with the session options of the file's package."""
    config = request.config
    path = model_path(request.version, config, capability)
    if path.name != MANIFEST:
        return request, path
    variant = variant_of(path.parent, request.providers, _SESSION_ENTRIES, config.name)
    log = _log.debug if request.is_inspection else _log.info
    log("model '%s' is a package: variant '%s' for %s", config.name, variant.name, variant.provider)
    own = {key: value for key, value in variant.session_entries.items() if key not in parameters_of(config)}
    entries = {**request.settings.session_entries, **own}
    return replace(request, settings=replace(request.settings, session_entries=entries)), variant.file


class DeclaredGraph:
    """The inputs and outputs that the graph in a model file declares, by the methods of a session.

    ONNX Runtime has read the file, and has not looked for kernels: the graph may be one for another device.
    """

    def __init__(self, request: SessionRequest) -> None:
        """Raises a ServerError."""
        request, self.file = _with_file(request)
        path = self.file
        try:
            loaded = capi.InferenceSession(_session_options(request), str(path), True, False)
        except FAILURES as exc:
            hint = load_hint(str(exc), path)
            raise failure_of(exc, request.config.name, ModelLoadFailed, hint) from exc
        self.get_inputs: Callable[[], Any] = lambda: loaded.inputs_meta
        self.get_outputs: Callable[[], Any] = lambda: loaded.outputs_meta
        self.get_overridable_initializers: Callable[[], Any] = lambda: loaded.overridable_initializers


@cache
def driver_problem() -> str:
    """Return why this ONNX Runtime's CUDA does not run on the driver; "" if it does, or if there is none to ask."""
    driver = read_driver()
    return "" if isinstance(driver, str) else old_driver(CUDA_VERSION, driver.version, driver.cuda)


def shrink_arena(session: Any, device: str) -> None:
    """Return the memory of the arena of `device` (`Placement.device`) that holds neither weights nor tensors of runs.

    ONNX Runtime does that at the end of a run, also of one that ends before its first node.
    """
    arena = device if _GPU.fullmatch(device) else f"{device}:0"
    _run_nothing(session, SessionSettings(run_entries={_SHRINKAGE: arena}))


def _run_nothing(session: Any, settings: SessionSettings) -> Exception | None:
    """The failure of a run that is to end before its first node."""
    feed = {argument.name: made_up(argument) for argument in session.get_inputs()}
    options = run_options(settings)
    options.terminate = True
    try:
        session.run([argument.name for argument in session.get_outputs()], feed, options)
    except FAILURES as exc:
        return exc
    return None


def made_up(argument: Any, shape: Sequence[int] | None = None, number: int = 0) -> Any:
    """A value for an input of a graph, every element of it `number` or an empty text.

    Without a `shape` it has that of the graph, with 1 for each variable dimension.
    """
    if shape is None:
        shape = [dim or 1 if isinstance(dim, int) else 1 for dim in argument.shape]
    datatype = BY_ONNX_NAME.get(argument.type)
    if datatype is BYTES:
        return np.full(shape, "", object)
    array: Array = np.full(shape, number, datatype.dtype if datatype else np.float32)
    if datatype is not None and datatype.name == "BF16":
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, datatype.onnx_number)
    return array


def ender(options: Any) -> Callable[[], None]:
    """Return a function that makes runs with `options` fail from now on, one in progress after its present operator."""
    return partial(setattr, options, "terminate", True)


def run_options(settings: SessionSettings) -> Any:
    options = onnxruntime.RunOptions()
    # A failed run raises, and the exception is logged where the request is answered. Here it would be logged twice.
    options.log_severity_level = SILENT
    # Without the number of a graph, a run on a binding asks for it by an exception: 27 µs (ONNX Runtime 1.31).
    options.add_run_config_entry("gpu_graph_id", "-1")
    for key, value in settings.run_entries.items():
        options.add_run_config_entry(key, value)
    return options


class _OneRunAtATime(onnxruntime.InferenceSession):  # type: ignore[misc]
    """A session of a provider that cannot run several sessions at the same time."""

    def run(self, *arguments: Any) -> Any:
        with _one_run:
            return super().run(*arguments)

    def run_with_iobinding(self, *arguments: Any) -> None:
        with _one_run:
            super().run_with_iobinding(*arguments)


_one_run = threading.Lock()
# WebGPU's plugin, up to 0.4 at least, ends the process: github.com/microsoft/onnxruntime/issues/32561.
_ALONE = frozenset({"WebGpuExecutionProvider"})


def _session(request: SessionRequest, options: Any, model: Path | bytes) -> Any:
    providers: list[tuple[str, dict[str, str]]] | None = [(each.name, each.options) for each in request.providers]
    if request.providers[0].device is not None:
        # ONNX Runtime adds the CPU's by itself. With both, it would ignore that of the options.
        options.add_provider_for_devices([request.providers[0].device], request.providers[0].options)
        providers = None
    make = _OneRunAtATime if request.providers[0].name in _ALONE else onnxruntime.InferenceSession
    return make(
        model,
        options,
        providers=providers,
        # With the fallback ONNX Runtime drops a provider that fails, and only prints a line.
        enable_fallback=0,
    )


def _session_of_file(request: SessionRequest, path: Path) -> MadeSession:
    """A session of the model file at `path`, whose graph is changed in memory as far as it could not be served.

    Says in the log what was changed.
    """
    name, log = request.config.name, _log.debug if request.is_inspection else _log.info
    changed: bytes | None = None
    try:
        session = _session(request, _session_options(request), path)
    except FAILURES as exc:
        locale = missing_locale(str(exc))
        changed = with_known_locale(read_file(path)) if locale else None
        if changed is None:
            raise
        session = _session_of_bytes(request, changed, path)
        log(
            "model '%s' changes the case of texts by locale %s, which this system does not have: %s is used, whose "
            "rules are the same",
            name,
            locale,
            LOCALE,
        )
    if not any(is_zipped(output.type) for output in session.get_outputs()):
        return MadeSession(session, {}, path)
    cut = without_zip_maps(read_file(path) if changed is None else changed)
    if cut is None:
        return MadeSession(session, {}, path)
    for output, labels in cut.labels.items():
        log(
            "the ZipMap before output '%s' of model '%s' is left out: the output is a tensor whose columns are the "
            "labels %s",
            output,
            name,
            ", ".join(labels),
        )
    return MadeSession(_session_of_bytes(request, cut.content, path), cut.labels, path)


def _session_of_bytes(request: SessionRequest, content: bytes, path: Path) -> Any:
    """A session of `content` in place of the file at `path`, with the weights that are in other files."""
    content, folder = without_links(content, path)
    options = _session_options(request)
    options.add_session_config_entry(_EXTERNAL_FILES, str(folder))
    return _session(request, options, content)


def _session_options(request: SessionRequest) -> Any:
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
    # As for runs: what fails raises, and is logged once.
    level = _VERBOSE if _log.isEnabledFor(logging.DEBUG) else SILENT
    options.log_severity_level = level
    # Messages of no session have a log of their own, such as a warning for each session with CUDA that there is no
    # plug-in of that name.
    onnxruntime.set_default_logger_severity(level)
    for key, value in settings.session_entries.items():
        options.add_session_config_entry(key, value)
    for library in request.config.model_operations.op_library_filename:
        options.register_custom_ops_library(library_path(request.version, library))
    return options
