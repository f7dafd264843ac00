"""TorchScript archives, on the instance threads.

Source: docs/spec/framework-backends.md section 6.2.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from core.backends.base import BackendModel, LoadContext
from core.backends.in_process.instance import Failures, Run
from core.backends.in_process.model import InProcessModel
from core.backends.pytorch.device_modules import DeviceModules
from core.backends.pytorch.forward import Forward, arguments_of, writes_in_place
from core.backends.pytorch.module_file import check_archive, load_module, module_path
from core.backends.pytorch.module_run import ModuleRun
from core.backends.pytorch.tensor_names import check_controls, input_positions, output_positions
from core.backends.pytorch.torch_settings import TorchSettings
from core.config.placement import DeviceKind, Placement
from core.config.schema import ModelConfig, ModelInput, ModelOutput, datatype_of
from core.errors import BackendFailed, OutOfMemory, ServerError
from core.inference.tensors import BYTES

_log = logging.getLogger("trident.backends")

_SERVED = {"BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", BYTES.name}
_NO_CPU_MEMORY = "DefaultCPUAllocator: can't allocate memory"


class TorchScriptBackend:
    """Implements Backend. Loader threads, several at once. Make it after the fork."""

    completes_configs = False

    def __init__(self) -> None:
        self.supports_gpus = torch.version.cuda is not None

    def inspect(self, path: Path, config: ModelConfig) -> None:
        """A module does not say the names, datatypes and shapes of its tensors."""
        check_archive(module_path(path, config), config.name)
        _log.info("skipping model configuration auto-complete for '%s': not supported for pytorch backend", config.name)

    def complete(self, path: Path, config: ModelConfig) -> None:
        """Never called: see `inspect`."""
        raise NotImplementedError

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError for parameters, datatypes and names that have no meaning."""
        TorchSettings.read(config)
        _check_tensors(config)
        check_controls(config)

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version: a module for each instance, or one for each device. Raises a ServerError."""
        config, spec = context.config, context.spec
        self.check(config)
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


def _check_tensors(config: ModelConfig) -> None:
    sides: list[tuple[str, list[ModelInput | ModelOutput]]] = [
        ("input", [*config.input]),
        ("output", [*config.output]),
    ]
    for side, entries in sides:
        if not entries:
            raise BackendFailed(
                f"model configuration must contain at least one {side}, none were specified.",
                hint="a TorchScript archive does not say what its tensors are: write them into config.pbtxt",
                model=config.name,
            )
        for entry in entries:
            datatype = datatype_of(entry.data_type)
            if datatype is None or datatype.name not in _SERVED:
                name = datatype.config_name if datatype else "TYPE_INVALID"
                raise BackendFailed(
                    f"unsupported datatype {name} for {side} '{entry.name}' for model '{config.name}'",
                    model=config.name,
                )
            if datatype is BYTES and _rank(entry, config) != 1:
                raise BackendFailed(
                    f"Triton only supports 1 dimensional List of String as {side} for '{entry.name}' for model "
                    f"'{config.name}'",
                    hint="with batching: dims: [ 1 ] reshape { shape: [ ] }",
                    model=config.name,
                )


def _rank(entry: ModelInput | ModelOutput, config: ModelConfig) -> int:
    dims = entry.reshape.shape if entry.HasField("reshape") else entry.dims
    return len(dims) + int(config.max_batch_size > 0)
