"""Makes ONNX Runtime sessions: with the execution providers that were asked for, or not at all.

Source: docs/spec/onnxruntime-backend.md section 5.2.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as capi

from core.backends.devices import cuda
from core.backends.onnxruntime.errors import failure_of
from core.backends.onnxruntime.execution_providers import OPENVINO, ProviderRequest, check_active
from core.backends.onnxruntime.graph_file import (
    LOCALE,
    is_zipped,
    missing_locale,
    with_known_locale,
    without_links,
    without_zip_maps,
)
from core.backends.onnxruntime.load_hints import load_hint
from core.backends.onnxruntime.model_file import library_path, model_path
from core.backends.onnxruntime.provider_library import missing_library
from core.backends.onnxruntime.session_options import SessionSettings
from core.backends.parameter_values import field_of
from core.config.placement import DeviceKind, Placement
from core.config.schema import ModelConfig
from core.errors import ConfigInvalid, ModelLoadFailed
from core.inference.tensors import BY_ONNX_NAME, BYTES, Array

_log = logging.getLogger("trident.backends")

# Levels of ONNX Runtime's own log.
_VERBOSE, _FATAL = 0, 4
# The folder of the weights that a model stores in other files; needed for a model that is not read from its file.
_EXTERNAL_FILES = "session.model_external_initializers_file_folder_path"

FAILURES: tuple[type[Exception], ...] = (
    *(kind for kind in vars(capi).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    RuntimeError,
    MemoryError,
)
"""ONNX Runtime's own exceptions, of which newer releases have more, and those that its bindings raise for the rest."""

LIBRARIES = Path(onnxruntime.__file__).parent / "capi"

# Some builds of ONNX Runtime collect telemetry. Nothing about the server's models may leave it.
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
    """A session of ONNX Runtime, and the labels of the outputs before which a ZipMap was left out."""

    session: Any
    labels: Mapping[str, tuple[str, ...]]


def make_session(request: SessionRequest) -> MadeSession:
    """A session with exactly the requested providers. Raises a ServerError with Triton's text. Blocks."""
    config, name = request.config, request.config.name
    on_gpu = request.placement.kind is DeviceKind.GPU
    capability = cuda.compute_capability(request.placement.device_id) if on_gpu and config.cc_model_filenames else ""
    path = model_path(request.version, config, capability)
    serial = _openvino_lock if any(provider.name == OPENVINO for provider in request.providers) else nullcontext()
    try:
        with serial:
            made = _session_of_file(request, path)
    except FAILURES as exc:
        hint = load_hint(str(exc), path, onnxruntime.__version__)
        raise failure_of(exc, name, ModelLoadFailed, hint) from exc
    active = made.session.get_providers()
    missing = [provider.name for provider in request.providers if provider.name not in active]
    library = missing_library(missing[0], LIBRARIES) if missing else ""
    check_active(request.providers, active, library, name)
    _try_run_options(made.session, request.settings, name)
    for provider in request.providers:
        if provider.log_line:
            _log.info("%s", provider.log_line)
    return made


def _try_run_options(session: Any, settings: SessionSettings, model_name: str) -> None:
    """Raise ConfigInvalid if `session` refuses the options of its runs, of which ONNX Runtime tells each run only.

    The run is to end before its first node: with the options it must fail for no other reason than without them.
    """
    if not settings.run_entries:
        return
    feed = {argument.name: _nothing(argument) for argument in session.get_inputs()}
    names = [argument.name for argument in session.get_outputs()]
    failures: list[Exception] = []
    for options in (run_options(SessionSettings()), run_options(settings)):
        options.terminate = True
        try:
            session.run(names, feed, options)
        except FAILURES as exc:
            failures.append(exc)
    if len({str(failure) for failure in failures}) > 1:
        written = ", ".join(f"{key} is '{value}'" for key, value in settings.run_entries.items())
        raise ConfigInvalid(
            f"unable to load model '{model_name}', every request would fail, because {written}: "
            f"{failure_of(failures[-1], model_name).message}",
            hint="name the arenas of the devices that the instances run on, such as cpu:0 or gpu:0, separated by "
            "semicolons; there is none on the CPU with enable_mem_arena false",
            model=model_name,
            field=field_of(next(iter(settings.run_entries))),
        ) from failures[-1]


def _nothing(argument: Any) -> Any:
    """A value for an input of a graph: zeros or empty texts, with 1 for each variable dimension."""
    shape = [dim or 1 if isinstance(dim, int) else 1 for dim in argument.shape]
    datatype = BY_ONNX_NAME.get(argument.type)
    if datatype is BYTES:
        return np.full(shape, "", object)
    zeros: Array = np.zeros(shape, datatype.dtype if datatype else np.float32)
    if datatype is not None and datatype.name == "BF16":
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(zeros, datatype.onnx_number)
    return zeros


def run_options(settings: SessionSettings) -> Any:
    """The options of every run of a model's sessions."""
    options = onnxruntime.RunOptions()
    # A failed run raises, and the exception is logged where the request is answered. Here it would be logged twice.
    options.log_severity_level = _FATAL
    for key, value in settings.run_entries.items():
        options.add_run_config_entry(key, value)
    return options


def _session(request: SessionRequest, options: Any, model: Path | bytes) -> Any:
    return onnxruntime.InferenceSession(
        model,
        options,
        providers=[(provider.name, provider.options) for provider in request.providers],
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
        changed = with_known_locale(path.read_bytes()) if locale else None
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
        return MadeSession(session, {})
    cut = without_zip_maps(path.read_bytes() if changed is None else changed)
    if cut is None:
        return MadeSession(session, {})
    for output, labels in cut.labels.items():
        log(
            "the ZipMap before output '%s' of model '%s' is left out: the output is a tensor whose columns are the "
            "labels %s",
            output,
            name,
            ", ".join(labels),
        )
    return MadeSession(_session_of_bytes(request, cut.content, path), cut.labels)


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
    options.log_severity_level = _VERBOSE if _log.isEnabledFor(logging.DEBUG) else _FATAL
    for key, value in settings.session_entries.items():
        options.add_session_config_entry(key, value)
    for library in request.config.model_operations.op_library_filename:
        options.register_custom_ops_library(library_path(request.version, library))
    return options
