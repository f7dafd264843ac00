"""TorchScript archives: what is checked before PyTorch is imported.

Source: docs/spec/framework-backends.md section 6.2.
"""

from __future__ import annotations

import logging
from pathlib import Path

from core.backends.base import BackendModel, LoadContext
from core.backends.framework import check_installed, importing
from core.backends.pytorch import EXTRA
from core.backends.pytorch.archive_file import arguments_in, check_archive, module_path
from core.backends.pytorch.forward import Forward
from core.backends.pytorch.tensor_names import check_controls
from core.backends.pytorch.torch_build import is_built_for_gpus
from core.backends.pytorch.torch_settings import TorchSettings
from core.config.schema import ModelConfig, ModelInput, ModelOutput, datatype_of
from core.config.sequence.resolve import own_inputs
from core.errors import BackendFailed
from core.inference.tensors import BYTES

_log = logging.getLogger("trident.backends")

_SERVED = {"BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", BYTES.name}


class TorchScriptBackend:
    """Implements Backend. Loader threads, several at once."""

    def __init__(self) -> None:
        self.supports_gpus = is_built_for_gpus()

    def inspect(self, path: Path, config: ModelConfig) -> None:
        """A module does not say the names, datatypes and shapes of its tensors; how many it takes is checked."""
        file = module_path(path, config)
        check_archive(file, config.name)
        if not (config.input and config.output):
            _log.info(
                "skipping model configuration auto-complete for '%s': not supported for pytorch backend", config.name
            )
            return
        arguments = arguments_in(file)
        if arguments is not None:
            batch_inputs = [name for entry in config.batch_input for name in entry.target_name]
            count = len(config.input) + len(own_inputs(config)) + len(batch_inputs)
            Forward.of(arguments, config.name).check_count(count, config.name)

    def check(self, config: ModelConfig) -> None:
        """Raise a ServerError for parameters, datatypes and names that have no meaning."""
        TorchSettings.read(config)
        _check_tensors(config)
        check_controls(config)
        check_installed("torch", EXTRA, config.name)

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version: a module for each instance, or one for each device. Raises a ServerError."""
        self.check(context.config)
        with importing("pytorch", EXTRA):
            from core.backends.pytorch.script_model import load_script
        return load_script(context)


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
                field=side,
            )
        for index, entry in enumerate(entries):
            datatype = datatype_of(entry.data_type)
            if datatype is None or datatype.name not in _SERVED:
                name = datatype.config_name if datatype else "TYPE_INVALID"
                raise BackendFailed(
                    f"unsupported datatype {name} for {side} '{entry.name}' for model '{config.name}'",
                    model=config.name,
                    field=f"{side}[{index}].data_type",
                )
            if datatype is BYTES and _rank(entry, config) != 1:
                raise BackendFailed(
                    f"Triton only supports 1 dimensional List of String as {side} for '{entry.name}' for model "
                    f"'{config.name}'",
                    hint="with batching: dims: [ 1 ] reshape { shape: [ ] }",
                    model=config.name,
                    field=f"{side}[{index}].dims",
                )


def _rank(entry: ModelInput | ModelOutput, config: ModelConfig) -> int:
    dims = entry.reshape.shape if entry.HasField("reshape") else entry.dims
    return len(dims) + int(config.max_batch_size > 0)
