"""Fills a configuration from an engine, field by field.

Source: docs/spec/framework-backends.md section 6.5.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from core.backends.tensorrt.engine import EngineDescription, EngineTensor
from core.backends.tensorrt.profiles import profile_indices
from core.config.schema import ModelConfig, ModelInput, ModelOutput
from core.config.sequence.resolve import own_inputs, own_outputs
from core.errors import BackendFailed, ConfigInvalid
from core.inference.tensors import BY_NAME

_log = logging.getLogger("trident.config")


def complete_config(config: ModelConfig, engine: EngineDescription) -> None:
    """Fill max_batch_size, the scheduler, and the fields of inputs and outputs that `config` leaves out, in place.

    Raises a ServerError with Triton's text for what contradicts the engine.
    """
    limit = supported_batch(config, engine)
    hint = _batching_hint(config, engine)
    if hint and limit == 0:
        raise BackendFailed(
            f"autofill failed for model '{config.name}': model tensor shape configuration hints for dynamic batching "
            "but the underlying engine doesn't support batching.",
            hint="configure all dimensions of the tensors, and max_batch_size: 0",
            model=config.name,
        )
    if hint is False:
        if limit:
            _log.warning(
                "The specified dimensions in model config for %s hints that batching is unavailable", config.name
            )
        limit = 0
    if config.max_batch_size == 0:
        config.max_batch_size = limit
    check_batch(config, limit)
    if limit > 1 and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()
    batching = config.max_batch_size > 0
    given = {*own_inputs(config), *(name for entry in config.batch_input for name in entry.target_name)}
    _fill_side(config.input, [tensor for tensor in engine.inputs if tensor.name not in given], batching)
    _fill_side(config.output, [tensor for tensor in engine.outputs if tensor.name not in own_outputs(config)], batching)


def supported_batch(config: ModelConfig, engine: EngineDescription) -> int:
    """The largest batch that one of the profiles takes which `config` uses; 0 if the engine cannot batch."""
    names = [name for group in config.instance_group for name in group.profile]
    return max(engine.batch_limit(profile) for profile in profile_indices(config, names, engine.profiles))


def check_batch(config: ModelConfig, limit: int) -> None:
    """Raise BackendFailed if `config` asks for larger batches than the engine takes."""
    if config.max_batch_size > limit:
        raise BackendFailed(
            f"autofill failed for model '{config.name}': configuration specified max-batch {config.max_batch_size} "
            f"but TensorRT engine only supports max-batch {limit}",
            hint=f"max_batch_size: {limit}, or build the plan with a larger first dimension in --maxShapes",
            model=config.name,
        )


def _batching_hint(config: ModelConfig, engine: EngineDescription) -> bool | None:
    """Whether the configured dimensions leave out a batch dimension; None if they do not say."""
    tensors = {tensor.name: tensor for tensor in (*engine.inputs, *engine.outputs)}
    found: set[bool] = set()
    for entry in (*config.input, *config.output):
        if isinstance(entry, ModelInput) and entry.allow_ragged_batch:
            return True
        dims = entry.reshape.shape if entry.HasField("reshape") else entry.dims
        tensor = tensors.get(entry.name)
        if tensor is None or not entry.dims:
            continue
        if tensor.is_shape:
            found.add(bool(dims) and tensor.shape[:1] == (dims[0] + 1,))
        else:
            found.add(len(tensor.shape) == len(dims) + 1)
    if len(found) > 1:
        raise BackendFailed(
            f"unable to autofill for '{config.name}', model tensor configurations are contradicting each other in "
            "terms of whether batching is supported",
            hint="the dims of all tensors must have the batch dimension, or none",
            model=config.name,
        )
    return found.pop() if found else None


def _fill_side(entries: Any, tensors: Sequence[EngineTensor], batching: bool) -> None:
    """Fill the inputs or the outputs of a configuration; without any they become those of the engine."""
    by_name = {tensor.name: tensor for tensor in tensors}
    for name in by_name if not entries else ():
        entries.add(name=name)
    for entry in entries:
        if (found := by_name.get(entry.name)) is not None:
            _fill(entry, found, batching)


def _fill(entry: ModelInput | ModelOutput, tensor: EngineTensor, batching: bool) -> None:
    if entry.is_shape_tensor and not tensor.is_shape:
        raise ConfigInvalid(
            f"'{entry.name}' is incorrectly specified as a shape tensor.", hint="remove is_shape_tensor"
        )
    if entry.is_non_linear_format_io and tensor.is_linear:
        raise ConfigInvalid(
            f"'{entry.name}' uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set to true in the "
            "model configuration.",
            hint="remove is_non_linear_format_io",
        )
    entry.is_shape_tensor = tensor.is_shape
    if not entry.data_type:
        row = BY_NAME.get(tensor.datatype)
        entry.data_type = row.config_number if row else 0
    if entry.dims:
        return
    if tensor.is_shape:
        entry.dims.extend([dim - batching for dim in tensor.shape] or [1])
        return
    dims = tensor.shape[1:] if batching else tensor.shape
    entry.dims.extend([dim or -1 for dim in dims] or [1])
    if not dims:
        entry.reshape.SetInParent()
