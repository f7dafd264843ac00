"""A loaded TorchScript archive, on the instance threads.

Source: docs/spec/framework-backends.md section 6.2.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from core.backends.base import BackendModel, LoadContext
from core.backends.in_process.instance import Failures, Run
from core.backends.in_process.model import InProcessModel
from core.backends.pytorch.archive_file import module_path
from core.backends.pytorch.device_modules import DeviceModules
from core.backends.pytorch.forward import Forward, arguments_of, writes_in_place
from core.backends.pytorch.module_file import load_module
from core.backends.pytorch.module_run import ModuleRun
from core.backends.pytorch.tensor_names import input_positions, output_positions
from core.backends.pytorch.torch_settings import TorchSettings
from core.config.placement import DeviceKind, Placement
from core.errors import BackendFailed, OutOfMemory, ServerError

_log = logging.getLogger("trident.backends")

_NO_CPU_MEMORY = "DefaultCPUAllocator: can't allocate memory"


def load_script(context: LoadContext) -> BackendModel:
    """Load one version: a module for each instance, or one for each device. Raises a ServerError."""
    config, spec = context.config, context.spec
    settings = TorchSettings.read(config)
    settings.log(config)
    _set_process_switches(settings)
    path = module_path(context.path, config)
    threads = settings.threads or context.threads
    names = [*spec.inputs, *(name for entry in config.batch_input for name in entry.target_name)]

    def load_checked(device: str) -> Any:
        module = load_module(path, device, config.name)
        Forward.of(arguments_of(module), config.name).check_count(len(names), config.name)
        return module

    def load(placement: Placement) -> DeviceModules:
        device = _device(placement)
        return DeviceModules(lambda: load_checked(device), shared=settings.shares_weights)

    def make_run(modules: DeviceModules, placement: Placement) -> Run:
        module = modules.take()
        forward = Forward.of(arguments_of(module), config.name)
        return ModuleRun(
            module,
            spec,
            settings,
            inputs=None if forward.takes_dictionary else input_positions(names, forward.arguments, config.name),
            outputs=output_positions(list(spec.outputs), config.name),
            copies=writes_in_place(module),
            threads=threads,
            device=_device(placement),
        )

    if settings.shares_weights:
        for _ in context.placements[1:]:
            _log.info("Reusing TorchScript model for instance '%s'", config.name)
    described = {
        "execution provider": f"PyTorch {torch.__version__}",
        "threads": str(threads) if threads else "all",
    }
    return InProcessModel(context, load, make_run, _FAILURES, described)


def _error_of(exc: Exception, model: str) -> ServerError:
    text = f"PyTorch execute failure: {exc}"
    if isinstance(exc, torch.OutOfMemoryError | MemoryError) or _NO_CPU_MEMORY in str(exc):
        return OutOfMemory(text, model=model)
    return BackendFailed(text, model=model)


_FAILURES = Failures(
    (torch.jit.Error, RuntimeError, ValueError, TypeError, KeyError, UnicodeError, MemoryError), _error_of
)


def _device(placement: Placement) -> str:
    return "cpu" if placement.kind is DeviceKind.CPU else f"cuda:{placement.device_id}"


def _set_process_switches(settings: TorchSettings) -> None:
    """The switches that PyTorch has once for the process; the last model that sets one wins."""
    if settings.executor is not None:
        torch._C._jit_set_profiling_executor(settings.executor)
    if settings.profiling is not None:
        torch._C._jit_set_profiling_mode(settings.profiling)
    if settings.fuser is not None:
        torch._C._jit_set_texpr_fuser_enabled(settings.fuser)
