"""Auto-complete: fills what a configuration leaves out from the model's graph.

Source: docs/spec/model-config.md section 2.4; docs/spec/onnxruntime-backend.md section 5.3.
"""

from __future__ import annotations

import logging

from core.config.schema import ModelConfig, ModelInput, ModelOutput
from core.config.sequence.resolve import own_inputs, own_outputs
from core.config.signature import ModelSignature, TensorSignature
from core.errors import ConfigInvalid
from core.inference.tensors import BY_NAME, shape_text

_log = logging.getLogger("trident.config")


def is_complete(config: ModelConfig) -> bool:
    """Whether no side of `config` is missing, so that nothing is filled."""
    return bool((config.input or config.batch_input) and config.output)


def needs_signature(config: ModelConfig) -> bool:
    """Whether inputs or outputs are missing, so that the graph must be inspected."""
    complete = is_complete(config)
    if complete:
        _log.info(
            "skipping model configuration auto-complete for '%s': inputs and outputs already specified", config.name
        )
    return not complete


def auto_complete(config: ModelConfig, signature: ModelSignature, default_max_batch_size: int) -> None:
    """Fill max_batch_size, the scheduler and the missing sides of `config` in place from `signature`.

    Raises ConfigInvalid if the configuration asks for batching and the graph cannot batch.
    """
    _fill_batching(config, signature, default_max_batch_size)
    batching = config.max_batch_size > 0
    if not config.input and not config.batch_input:
        provided = own_inputs(config)
        for tensor in signature.inputs:
            if tensor.name not in provided:
                _fill_tensor(config.input.add(), tensor, batching)
    if not config.output:
        kept = own_outputs(config)
        for tensor in signature.outputs:
            if tensor.name not in kept:
                _fill_tensor(config.output.add(), tensor, batching)


def _fill_batching(config: ModelConfig, signature: ModelSignature, default_max_batch_size: int) -> None:
    if signature.can_batch is False:
        if config.max_batch_size > 0:
            _log.warning(
                "model layout for model %s does not support batching while non-zero max_batch_size is specified",
                config.name,
            )
        return
    fixed = "" if signature.can_batch else _first_fixed_tensor(signature)
    if fixed:
        if config.max_batch_size != 0:
            raise ConfigInvalid(
                f"autofill failed for model '{config.name}': model does not support batching while non-zero "
                "max_batch_size is specified",
                hint=f"{fixed}: set max_batch_size to 0, or export the model with a dynamic first dimension",
                model=config.name,
            )
        if default_max_batch_size > 0:
            _log.warning(
                "model '%s' runs one request at a time, because the first dimension of each tensor must be -1 for "
                "batching, and %s; to batch it, export it with a dynamic first dimension",
                config.name,
                fixed,
            )
        return
    fault = signature.batching_fault
    if config.max_batch_size == 0 and default_max_batch_size > 0:
        if fault is not None:
            _log.warning(
                "model '%s' runs one request at a time, because a trial has shown that its graph does not keep the "
                "requests of a batch apart: %s; to batch it, %s",
                config.name,
                fault.seen,
                fault.cure,
            )
            return
        config.max_batch_size = default_max_batch_size
        _log.warning(
            "autofilled max_batch_size to %d for model '%s' since batching is supported but no max_batch_size is "
            "specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max "
            "batch size",
            default_max_batch_size,
            config.name,
        )
    if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.SetInParent()


def _first_fixed_tensor(signature: ModelSignature) -> str:
    """The first tensor that prevents batching, with its shape, as a clause; "" if the graph can batch."""
    for side, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        for tensor in tensors:
            if tensor.shape[:1] != (-1,):
                return f"{side} '{tensor.name}' has shape {shape_text(tensor.shape)}"
    return ""


def _fill_tensor(entry: ModelInput | ModelOutput, tensor: TensorSignature, batching: bool) -> None:
    entry.name = tensor.name
    row = BY_NAME.get(tensor.datatype)
    entry.data_type = row.config_number if row else 0
    dims = tensor.shape[1:] if batching else tensor.shape
    # A configuration cannot express a dimension of 0, so that it becomes variable. The graph still checks it.
    entry.dims.extend([dim or -1 for dim in dims] or (1,))
    if batching and not dims:
        entry.reshape.SetInParent()
