"""The backend `onnxruntime`: inspects ONNX graphs and loads versions of ONNX models.

Source: docs/spec/onnxruntime-backend.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnxruntime

from core.backends.base import Backend, LoadContext
from core.backends.devices.cpu_budget import Spinning, available_cores, spinning_of
from core.backends.onnxruntime.batch_trial import tried_signature
from core.backends.onnxruntime.execution_providers import (
    CPU,
    CUDA,
    ProviderRequest,
    check_available,
    requested_providers,
)
from core.backends.onnxruntime.model import OnnxModel
from core.backends.onnxruntime.model_file import size_of_files
from core.backends.onnxruntime.session import SessionRequest, make_session
from core.backends.onnxruntime.session_options import SessionSettings, global_pool_sizes, session_settings
from core.backends.onnxruntime.signature import signature_of
from core.config.placement import DeviceKind, Placement, placements
from core.config.problem import InvalidModelConfig
from core.config.schema import ModelConfig
from core.config.signature import ModelSignature
from core.config.validation.signature import validate_against_signature
from core.inference.tensors import shape_text

_log = logging.getLogger("trident.backends")

_INSPECTION = Placement("inspection", DeviceKind.CPU)
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})

_pool_lock = threading.Lock()


def make_backend(settings: Mapping[str, str]) -> Backend:
    """The backend with the values of --backend-config for it."""
    return OnnxRuntimeBackend(settings)


class OnnxRuntimeBackend:
    """Implements Backend. Loader threads, several at once. Make it after the fork.

    `cores` is the number of cores that the process may use; 0 asks the system. With few of them threads hardly spin.
    """

    def __init__(self, settings: Mapping[str, str] = _NO_SETTINGS, cores: float = 0) -> None:
        self._settings = settings
        self._cores = cores or available_cores()
        self._available: Sequence[str] = onnxruntime.get_available_providers()
        self.supports_gpus = CUDA in self._available
        if self.supports_gpus:
            # pip installs CUDA and cuDNN where the linker does not search.
            onnxruntime.preload_dlls()

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature:
        """The signature of the model in the version directory `path`, read from a temporary session."""
        # Optimized as the graph that serves: folding constants shows ONNX Runtime dimensions that the file has not.
        plan = self._session_settings(config, threads=1)
        if any(placement.kind is DeviceKind.GPU for placement in placements(config)):
            plan = replace(plan, run_entries={})  # they may name the memory of that GPU, and this session is on the CPU
        session, _ = make_session(
            SessionRequest(config, path, _INSPECTION, plan, [ProviderRequest(CPU, {})], is_inspection=True)
        )
        signature = signature_of(session, config.name)
        # The trial is for auto-complete. A written output of a model that does not batch fits what the graph declares.
        return tried_signature(session, signature) if config.max_batch_size > 0 or not config.output else signature

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError for execution providers that do not exist or that this ONNX Runtime does not have."""
        for placement in {placement.device: placement for placement in placements(config)}.values():
            self._providers(config, placement)

    def load(self, context: LoadContext) -> OnnxModel:
        """Load one version: a session for each device. Raises a ServerError."""
        config = context.config
        spinning = spinning_of(self._cores, size_of_files(context.path))
        plan = self._session_settings(config, threads=context.threads, spinning=spinning)

        labels: dict[str, tuple[str, ...]] = {}

        def checked_session(placement: Placement) -> Any:
            providers = self._providers(config, placement)
            session, found = make_session(SessionRequest(config, context.path, placement, plan, providers))
            _check_signature(config, session)
            labels.update(found)
            return session

        wanted = {placement.device: placement for placement in context.placements}
        sessions = {device: checked_session(placement) for device, placement in wanted.items()}
        return OnnxModel(context.spec, config, plan, sessions, checked_session, context.path, labels)

    def _providers(self, config: ModelConfig, placement: Placement) -> list[ProviderRequest]:
        providers = requested_providers(config, placement)
        check_available(providers, self._available, config.name)
        return providers

    def _session_settings(
        self, config: ModelConfig, *, threads: int, spinning: Spinning = Spinning.NEVER
    ) -> SessionSettings:
        plan = session_settings(config, self._settings, threads=threads, spinning=spinning)
        if plan.global_thread_pool:
            with _pool_lock:
                _make_global_pool(*global_pool_sizes(self._settings))
        return plan


def _check_signature(config: ModelConfig, session: Any) -> None:
    """Raise InvalidModelConfig if `config` contradicts the graph, and what a trial shows of its outputs."""
    name, signature = config.name, signature_of(session, config.name)
    problems = validate_against_signature(config, signature, name)
    if not problems:
        return
    tried = tried_signature(session, signature)
    if tried is signature or validate_against_signature(config, tried, name):
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


@cache
def _make_global_pool(intra_op_threads: int, inter_op_threads: int) -> None:
    """Make the thread pool of this process, once: ONNX Runtime does not let it be replaced."""
    onnxruntime.set_global_thread_pool_sizes(intra_op_threads, inter_op_threads)
