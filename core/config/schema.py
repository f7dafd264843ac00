"""Triton's ModelConfig message and its enums, from the generated module that the `tritonclient` package ships.

The module is loaded from its file, under another name. Importing `tritonclient.grpc` would run that package's
`__init__`, which imports gRPC and costs 19 MB of resident memory. Protobuf's descriptor pool keeps one class per
message, so a later `import tritonclient.grpc` in the same process gets the same classes.
Source: Triton's `model_config.proto`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from trident.core.inference.tensors import BY_CONFIG_NUMBER, Datatype, Shape

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import (
        BatchInput,
        BatchOutput,
        DataType,
        ModelConfig,
        ModelDynamicBatching,
        ModelInput,
        ModelInstanceGroup,
        ModelOutput,
        ModelQueuePolicy,
        ModelSequenceBatching,
        ModelWarmup,
    )
else:

    def _generated() -> ModuleType:
        """The generated module: the imported one, or without it the one loaded from its file."""
        imported = sys.modules.get("tritonclient.grpc.model_config_pb2")
        if imported is not None:
            return imported
        package = importlib.util.find_spec("tritonclient")
        if package is None or not package.submodule_search_locations:
            raise ImportError("the package 'tritonclient' is missing: install trident-inference with its dependencies")
        path = Path(package.submodule_search_locations[0], "grpc", "model_config_pb2.py")
        spec = importlib.util.spec_from_file_location("trident.core.config._model_config_pb2", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    _module = _generated()
    BatchInput = _module.BatchInput
    BatchOutput = _module.BatchOutput
    DataType = _module.DataType
    ModelConfig = _module.ModelConfig
    ModelDynamicBatching = _module.ModelDynamicBatching
    ModelInput = _module.ModelInput
    ModelInstanceGroup = _module.ModelInstanceGroup
    ModelOutput = _module.ModelOutput
    ModelQueuePolicy = _module.ModelQueuePolicy
    ModelSequenceBatching = _module.ModelSequenceBatching
    ModelWarmup = _module.ModelWarmup

__all__ = [
    "BatchInput",
    "BatchOutput",
    "DataType",
    "ModelConfig",
    "ModelDynamicBatching",
    "ModelInput",
    "ModelInstanceGroup",
    "ModelOutput",
    "ModelQueuePolicy",
    "ModelSequenceBatching",
    "ModelWarmup",
    "copy_of",
    "core_config",
    "datatype_of",
    "model_dims",
]


def copy_of(config: ModelConfig) -> ModelConfig:
    copy = ModelConfig()
    copy.CopyFrom(config)
    return copy


def core_config(config: ModelConfig) -> ModelConfig:
    """A copy without the parts that can change while a version serves, and that decide no answer."""
    core = copy_of(config)
    core.ClearField("instance_group")
    core.ClearField("version_policy")
    return core


def datatype_of(data_type: int) -> Datatype | None:
    """The row of the datatype table for a `data_type` field; None for TYPE_INVALID and unknown numbers."""
    return BY_CONFIG_NUMBER.get(data_type)


def model_dims(entry: ModelInput | ModelOutput) -> Shape:
    """The dimensions that the model itself has for a tensor: its `reshape`, or its `dims` without any."""
    return tuple(entry.reshape.shape if entry.HasField("reshape") else entry.dims)
