"""The backend `onnxruntime`: inspects ONNX graphs and loads versions of ONNX models.

Source: docs/spec/onnxruntime-backend.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnxruntime

from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.cpu_budget import Spinning, available_cores, spinning_of
from trident.core.backends.in_process import Failures, Framework, InProcessModel, Runner, may_pad
from trident.core.backends.model_files import weight_bytes
from trident.core.backends.onnxruntime.batch_trial import rounding_margin, run_sizes, tried_signature
from trident.core.backends.onnxruntime.graph import (
    DEFAULT_FILE,
    has_bounded_graph,
    named_axes,
    signature_of,
    size_of_files,
)
from trident.core.backends.onnxruntime.packages import MANIFEST
from trident.core.backends.onnxruntime.plugins import register
from trident.core.backends.onnxruntime.providers import (
    CPU,
    CUDA,
    NO_DEVICE_CURE,
    PLUGIN,
    TENSORRT,
    ProviderRequest,
    accelerators_on_gpu,
    check_available,
    described,
    is_plugged,
    limited,
    provider_states,
    requested_providers,
)
from trident.core.backends.onnxruntime.runs import make_runner
from trident.core.backends.onnxruntime.session import (
    FAILURES,
    LIBRARIES,
    DeclaredGraph,
    MadeSession,
    SessionRequest,
    SessionSettings,
    driver_problem,
    failure_of,
    global_pool_sizes,
    is_poison,
    make_session,
    run_options,
    session_settings,
    settings_on,
    shrink_arena,
)
from trident.core.backends.registry import DeviceSupport, ProviderState
from trident.core.backends.tensors import SteadySizes
from trident.core.config.autocomplete import Preparation, is_complete
from trident.core.config.placement import DeviceKind, Placement, placements
from trident.core.config.problem import InvalidModelConfig, ModelSignature
from trident.core.config.schema import ModelConfig, model_dims
from trident.core.config.validate import separates_requests, validate_against_signature
from trident.core.cuda import OLD_DRIVER_CURE
from trident.core.errors import ModelLoadFailed, ServerError
from trident.core.inference.tensors import shape_text

_log = logging.getLogger("trident.backends")

_INSPECTION = Placement("inspection", DeviceKind.CPU)
_FAILURES = Failures(FAILURES, failure_of, is_poison)
# An inspection runs few sizes, each once: a search for fast algorithms would not pay.
_NO_SEARCH = {"cudnn_conv_algo_search": "DEFAULT"}
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})

_pool_lock = threading.Lock()
# Once for a process: ONNX Runtime does not let its pool be replaced.
_set_pool = cache(onnxruntime.set_global_thread_pool_sizes)


def device_support(settings: Mapping[str, str]) -> DeviceSupport:
    """The execution providers of ONNX Runtime, and whether their libraries load, which may take seconds.

    `settings` are the backend's, which name plugins.
    """
    available: Sequence[str] = onnxruntime.get_available_providers()
    _preload(available)
    states = provider_states(available, LIBRARIES)
    if CUDA in available and (problem := driver_problem()):
        others = (state for state in states if state.name != CUDA)
        states = [ProviderState(CUDA, True, problem, OLD_DRIVER_CURE), *others]
    for setting, path in settings.items():
        try:
            plugins = register({setting: path})
        except ServerError as error:
            states.append(ProviderState(setting.replace("=", ":"), True, error.message, error.hint or ""))
            continue
        for name, devices in plugins.items():
            problem = "" if devices else described(devices)
            states.append(ProviderState(PLUGIN + name, True, problem, NO_DEVICE_CURE, described(devices)))
    return DeviceSupport(f"ONNX Runtime {onnxruntime.__version__}", states)


def _preload(available: Sequence[str]) -> None:
    """Load CUDA and cuDNN, which pip installs where the linker does not search."""
    if CUDA in available:
        onnxruntime.preload_dlls()


@dataclass(frozen=True, slots=True)
class _Ready:
    """A session of a version on the CPU, and what it was made with."""

    settings: SessionSettings
    providers: Sequence[ProviderRequest]
    made: MadeSession


class OnnxRuntimeBackend:
    """Implements Backend. Loader threads, several at once. Make it after the fork."""

    def __init__(self, settings: Mapping[str, str] = _NO_SETTINGS) -> None:
        self._settings = settings
        self._cores = available_cores()
        self._available: Sequence[str] = onnxruntime.get_available_providers()
        _preload(self._available)
        self._plugins = register(settings)
        plugged = (device for devices in self._plugins.values() for device in devices)
        self.supports_gpus = CUDA in self._available or any(each.device.type.name == "GPU" for each in plugged)

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature:
        return self._signature(config, self.inspected(path, config))

    def prepare(self, path: Path, config: ModelConfig, preparation: Preparation) -> ModelSignature:
        """As `inspect`; the session is that of the load if the CPU is to execute the graph, and nothing else."""
        placed = list(placements(config))
        if {each.kind for each in placed} != {DeviceKind.CPU} or config.default_model_filename == MANIFEST:
            return self.inspect(path, config)
        placement = placed[0]
        providers = self._providers(config, placement)
        if [each.name for each in providers] != [CPU]:
            return self.inspect(path, config)
        plan = settings_on(self.plan(config, path, preparation.threads), placement, placed)
        made = make_session(SessionRequest(config, path, placement, plan, providers))
        preparation.made = _Ready(plan, providers, made)
        return self._signature(config, made)

    def _signature(self, config: ModelConfig, made: MadeSession) -> ModelSignature:
        graph = made.session
        signature = signature_of(graph, config.name)
        if isinstance(graph, DeclaredGraph) or (is_complete(config) and config.max_batch_size == 0):
            return signature
        tried = _tried(config, made.file, graph, signature)
        # A written output of a model that does not batch fits what the graph declares.
        is_declared = config.max_batch_size == 0 and config.output
        return replace(tried, outputs=signature.outputs) if is_declared else tried

    def inspected(self, path: Path, config: ModelConfig) -> MadeSession:
        """A session on the device that `config` asks for, where the operators of the graph have their kernels.

        It is what the graph declares if it may have operators that are neither CUDA's nor the CPU's. Raises a
        ServerError.
        """
        # Optimized as the graph that serves: folding constants shows ONNX Runtime dimensions that the file has not.
        plan = self._session_settings(config, threads=1)
        gpu = next((placement for placement in placements(config) if placement.kind is DeviceKind.GPU), None)
        providers = [ProviderRequest(CPU, {})]
        if config.default_model_filename == MANIFEST:  # a variant may run on its provider only
            providers = self._providers(config, gpu or next(iter(placements(config)), _INSPECTION))
        request = SessionRequest(config, path, gpu or _INSPECTION, plan, providers, is_inspection=True)
        if gpu is None:
            return make_session(request)
        request = replace(
            request,
            # They may name the memory of other devices; a load tries them.
            settings=replace(plan, run_entries={}),
            providers=[ProviderRequest(CUDA, {"device_id": str(gpu.device_id), **_NO_SEARCH}), *providers],
        )
        if CUDA in self._available:
            try:
                return make_session(request)
            except ModelLoadFailed:
                if not any(each.name == "tensorrt" for each in accelerators_on_gpu(config)):
                    raise
        declared = DeclaredGraph(request)
        return MadeSession(declared, {}, declared.file)

    def check(self, config: ModelConfig) -> None:
        for placement in {placement.device: placement for placement in placements(config)}.values():
            self._providers(config, placement)

    def weight_bytes(self, path: Path, config: ModelConfig) -> int:
        """The bytes of the model's files; 0 with TensorRT, which makes weights smaller, and of a package's variants."""
        accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
        if config.default_model_filename == MANIFEST or any(each.name == "tensorrt" for each in accelerators):
            return 0
        return weight_bytes(path, config, DEFAULT_FILE)

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version: a session for each device, which any number of threads may run. Raises a ServerError.

        With TensorRT each instance has a session of its own, because runs of one session wait for each other there.
        """
        config = context.config
        # Triton's backend has its outputs in a sorted map, and so answers them in this order.
        spec = replace(context.spec, outputs=dict(sorted(context.spec.outputs.items())))
        context = replace(context, spec=spec)
        plan = self.plan(config, context.path, context.threads)
        ready = [context.prepared()]
        labels: dict[str, tuple[str, ...]] = {}
        # The file of the graph on a device.
        files: dict[str, Path] = {}

        def load(placement: Placement) -> Any:
            session, found, file = self.session(config, context, placement, plan, ready.pop() if ready else None)
            _check_signature(config, file, session)
            labels.update(found)
            files[placement.device] = file
            prepares = placement.kind is DeviceKind.GPU or is_plugged(config, placement)
            sizes = run_sizes(session, spec, placement) if prepares else None
            if not separated and config.max_batch_size > 0:
                tried = context.signature or _tried(config, file, session, signature_of(session, config.name))
                fault = tried.batching_fault
                separated.append(fault.seen if fault is not None and separates_requests(config, tried) else "")
            steady[placement.device] = None if any(separated) else sizes
            return session

        # Why requests must not be combined, by the trial of the first session; otherwise "".
        separated: list[str] = []

        # The sizes that the session of a device has to keep.
        steady: dict[str, SteadySizes | None] = {}

        # The instance that has the session of a device, under TensorRT.
        users: dict[str, object] = {}

        def runner(session: Any, placement: Placement) -> Runner:
            # A GPU keeps state for each thread that runs on it, so its instances stay on their own threads.
            may_run_inline = (
                placement.kind is DeviceKind.CPU
                and not is_plugged(config, placement)
                and not config.model_operations.op_library_filename
                and has_bounded_graph(files[placement.device])
            )
            close: Callable[[], object] | None = None
            if session.get_providers()[0] == TENSORRT:
                user = object()
                if users.setdefault(placement.device, user) is user:
                    close = partial(users.pop, placement.device, None)
                else:
                    session = load(placement)
            options = run_options(settings_on(plan, placement, context.placements))
            made = make_runner(session, spec, placement, options, may_run_inline, close)
            is_steady = session.get_providers()[0] == CUDA and not made.scalars and may_pad(spec, config)
            return replace(made, steady=steady.get(placement.device) if is_steady else None)

        return InProcessModel(
            context,
            Framework(
                load=load,
                runner=runner,
                failures=_FAILURES,
                provider=lambda session: str(session.get_providers()[0]),  # the first runs all it can
                threads=plan.thread_plan,
                labels=labels,
                named_axes=named_axes,
                shrink=shrink_arena,
                separated_because=lambda: "".join(separated),
            ),
        )

    def plan(self, config: ModelConfig, path: Path, threads: int) -> SessionSettings:
        spinning = spinning_of(self._cores, size_of_files(path))
        return self._session_settings(config, threads=threads, spinning=spinning)

    def session(
        self,
        config: ModelConfig,
        context: LoadContext,
        placement: Placement,
        plan: SessionSettings,
        ready: _Ready | None = None,
    ) -> MadeSession:
        """A session of the version that `context` loads, on the device of `placement`: `ready`, if that is the same.

        Raises a ServerError.
        """
        providers = limited(self._providers(config, placement), context.memory_limit(placement.device))
        own = settings_on(plan, placement, context.placements)
        if ready is not None and (ready.settings, ready.providers) == (own, providers):
            return ready.made
        return make_session(SessionRequest(config, context.path, placement, own, providers))

    def _providers(self, config: ModelConfig, placement: Placement) -> list[ProviderRequest]:
        providers = requested_providers(config, placement, self._plugins)
        check_available(providers, self._available, config.name)
        return providers

    def _session_settings(
        self, config: ModelConfig, *, threads: int, spinning: Spinning = Spinning.NEVER
    ) -> SessionSettings:
        plan = session_settings(config, self._settings, threads=threads, spinning=spinning)
        if plan.global_thread_pool:
            with _pool_lock:
                _set_pool(*global_pool_sizes(self._settings))
        return plan


def _check_signature(config: ModelConfig, file: Path, session: Any) -> None:
    """Raise InvalidModelConfig if `config` contradicts the graph, and what a trial shows of its outputs."""
    name, signature = config.name, signature_of(session, config.name)
    problems = validate_against_signature(config, signature, name)
    if not problems:
        return
    tried = _tried(config, file, session, signature)
    if validate_against_signature(config, tried, name):
        raise InvalidModelConfig(problems, model=name)
    for declared, grown in zip(signature.outputs, tried.outputs, strict=True):
        if declared != grown:
            _log.info(
                "output '%s' of model '%s' is declared as %s, but a trial run shows that it grows with the batch: "
                "it is served as %s",
                declared.name,
                name,
                shape_text(declared.shape),
                shape_text(grown.shape),
            )


# Of a batch in the trial of a model whose configuration does not say.
_MOST_ROWS = 64


def _tried(config: ModelConfig, file: Path, session: Any, signature: ModelSignature) -> ModelSignature:
    """`signature` with what a trial shows of batches of the requests that `config` allows.

    Tensors that are not divided by rows say nothing. A library of operators may not tolerate made-up inputs, and
    execution providers such as TensorRT compile for each shape.
    """
    is_ragged = any(entry.allow_ragged_batch for entry in config.input)
    if is_ragged or config.batch_input or config.batch_output or config.model_operations.op_library_filename:
        return signature
    if session.get_providers()[0] not in (CPU, CUDA):
        return signature
    inputs = signature.inputs
    if config.max_batch_size > 0:  # its dimensions may be stricter than the graph's
        dims = {entry.name: model_dims(entry) for entry in config.input}
        inputs = tuple(
            replace(each, shape=(*each.shape[:1], *dims[each.name])) if each.name in dims else each for each in inputs
        )
    margin = rounding_margin(file)
    rows = config.max_batch_size or _MOST_ROWS
    tried = tried_signature(session, replace(signature, inputs=inputs), config.name, rows, margin)
    return replace(tried, inputs=signature.inputs)
