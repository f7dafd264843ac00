"""Checks of a configuration against the graph of its model.

Source: docs/spec/onnxruntime-backend.md section 5.4.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from core.config.problem import Problem
from core.config.schema import (
    BatchInput,
    BatchOutput,
    DataType,
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
    datatype_of,
)
from core.config.sequence.resolve import own_inputs
from core.config.sequence.signature import control_problems
from core.config.signature import ModelSignature, TensorSignature
from core.inference.tensors import BY_NAME, Shape, shape_text

_log = logging.getLogger("trident.config")


def validate_against_signature(config: ModelConfig, signature: ModelSignature, model_name: str) -> list[Problem]:
    """Every contradiction between a validated `config` and `signature`, with Triton's texts."""
    problems: list[Problem] = []
    problems += control_problems(config, signature, model_name)
    problems += _count_problems(config, signature, model_name)
    for index, entry in enumerate(config.input):
        allowed = signature.optional_inputs if entry.optional else signature.inputs
        problems += _input_problems(config, entry, allowed, f"input[{index}]", model_name)
    for index, batch_input in enumerate(config.batch_input):
        for name in batch_input.target_name:
            problems += _batch_input_problems(batch_input, name, signature, f"batch_input[{index}]", model_name)
    scattered = _scattered_outputs(config)
    for index, entry in enumerate(config.output):
        path = f"output[{index}]"
        tensor = _named(signature.outputs, entry.name)
        if tensor is None:
            problems.append(_unexpected("output", entry.name, signature.outputs, f"{path}.name"))
            continue
        problems += _datatype_problems("output", entry, tensor, path, model_name)
        if entry.name not in scattered:
            problems += _dims_problems(config, entry, tensor, path, model_name, wider=True)
    for index, state in enumerate(config.sequence_batching.state):
        problems += _state_problems(config, state, signature, f"sequence_batching.state[{index}]", model_name)
    return problems


def batching_problem(config: ModelConfig, signature: ModelSignature) -> Problem | None:
    """The warning that `config` batches requests which the graph does not keep apart; None if it does not."""
    fault = signature.batching_fault
    if fault is None or config.max_batch_size == 0:
        return None
    return Problem(
        "max_batch_size",
        f"a trial has shown that the graph does not keep the requests of a batch apart: {fault.seen}; requests that "
        "are batched fail, or get wrong answers",
        f"set max_batch_size to 0 and let the dims begin with the first dimension, or {fault.cure}",
    )


def log_batching_problem(config: ModelConfig, signature: ModelSignature) -> None:
    """Warn of it in the log when the model loads."""
    problem = batching_problem(config, signature)
    if problem is not None:
        _log.warning("model '%s': %s (%s)", config.name, problem.message, problem.hint)


def _count_problems(config: ModelConfig, signature: ModelSignature, model_name: str) -> Iterator[Problem]:
    own = [tensor for tensor in signature.inputs if tensor.name in own_inputs(config)]
    expected = sum(not entry.optional for entry in config.input) + len(own)
    expected += sum(len(entry.target_name) for entry in config.batch_input)
    provided = len(signature.inputs)
    if expected != provided:
        names = ", ".join(sorted(tensor.name for tensor in signature.inputs))
        yield Problem(
            "input",
            f"unable to load model '{model_name}', configuration expects {expected} inputs, model provides {provided}",
            f"the inputs of the model are: {names}",
        )


def _input_problems(
    config: ModelConfig, entry: ModelInput, allowed: tuple[TensorSignature, ...], path: str, model_name: str
) -> Iterator[Problem]:
    unable = f"unable to load model '{model_name}', "
    if entry.optional and config.max_batch_size > 0:
        text = f"{unable}optional input '{entry.name}' is not supported for models that support batching"
        yield Problem(f"{path}.optional", text)
    tensor = _named(allowed, entry.name)
    if tensor is None:
        yield _unexpected("input", entry.name, allowed, f"{path}.name")
        return
    yield from _datatype_problems("input", entry, tensor, path, model_name)
    if not entry.allow_ragged_batch:
        yield from _dims_problems(config, entry, tensor, path, model_name, narrower=True)
        return
    ragged = f"{unable}configuration expects model provides input with shape [-1] "
    if entry.optional:
        text = f"{ragged}for ragged input '{entry.name}', which is not supported for optional input"
        yield Problem(f"{path}.allow_ragged_batch", text)
    elif tensor.shape != (-1,):
        text = f"{ragged} for ragged input '{entry.name}', model provides {shape_text(tensor.shape)}"
        yield Problem(f"{path}.allow_ragged_batch", text)


def _batch_input_problems(
    entry: BatchInput, name: str, signature: ModelSignature, path: str, model_name: str
) -> Iterator[Problem]:
    """The target of a batch input must take what the server makes. Triton finds this out at the first request."""
    tensor = _named(signature.inputs, name)
    if tensor is None:
        yield _unexpected("input", name, signature.inputs, f"{path}.target_name")
        return
    unable = f"unable to load model '{model_name}', "
    wanted = datatype_of(entry.data_type)
    if wanted is not None and wanted is not BY_NAME.get(tensor.datatype):
        text = f"{unable}configuration expects datatype {wanted.config_name} for batch input '{name}', model provides "
        text += f"TYPE_{tensor.datatype or '<invalid>'}"
        yield Problem(f"{path}.data_type", text, "the graph must take INT32 or FP32 here, and may cast it")
    rank = 2 if entry.kind == BatchInput.BATCH_ITEM_SHAPE else 1
    if tensor.shape and len(tensor.shape) != rank:
        kind = BatchInput.Kind.Name(entry.kind)
        text = f"{unable}batch input '{name}' of kind '{kind}' has {'1 dimension' if rank == 1 else '2 dimensions'}, "
        yield Problem(f"{path}.kind", f"{text}model provides {shape_text(tensor.shape)}")


def _state_problems(
    config: ModelConfig,
    state: ModelSequenceBatching.State,
    signature: ModelSignature,
    path: str,
    model_name: str,
) -> Iterator[Problem]:
    """A state is an input and an output of the graph."""
    as_input = ModelInput(name=state.input_name, data_type=state.data_type, dims=state.dims)
    yield from _input_problems(config, as_input, signature.inputs, path, model_name)
    if any(entry.name == state.output_name for entry in config.output):
        return
    tensor = _named(signature.outputs, state.output_name)
    if tensor is None:
        yield _unexpected("output", state.output_name, signature.outputs, path)
        return
    as_output = ModelOutput(name=state.output_name, data_type=state.data_type, dims=state.dims)
    yield from _datatype_problems("output state", as_output, tensor, path, model_name)
    yield from _dims_problems(config, as_output, tensor, path, model_name, narrower=True, wider=True)


def _datatype_problems(
    side: str, entry: ModelInput | ModelOutput, tensor: TensorSignature, path: str, model_name: str
) -> Iterator[Problem]:
    row = BY_NAME.get(tensor.datatype)
    if row is not None and datatype_of(entry.data_type) is row:
        return
    provided = f"TYPE_{row.name if row else '<invalid>'}"
    configured = DataType.Name(entry.data_type) if datatype_of(entry.data_type) else "TYPE_INVALID"
    text = f"unable to load model '{model_name}', configuration expects datatype {configured} for {side} "
    hint = f"set data_type: {row.config_name}" if row else "this type of tensor cannot be served"
    yield Problem(f"{path}.data_type", f"{text}'{entry.name}', model provides {provided}", hint)


def _dims_problems(
    config: ModelConfig,
    entry: ModelInput | ModelOutput,
    tensor: TensorSignature,
    path: str,
    model_name: str,
    *,
    narrower: bool = False,
    wider: bool = False,
) -> Iterator[Problem]:
    """The contradictions of dims; those of `entry` may be `narrower` than the graph's, or `wider`."""
    batching = config.max_batch_size > 0
    dims: Shape = tuple(entry.reshape.shape if entry.HasField("reshape") else entry.dims)
    start = f"model '{model_name}', tensor '{entry.name}': "
    provided = shape_text(tensor.shape)
    if batching and tensor.shape[:1] != (-1,):
        text = f"{start}for the model to support batching the shape should have at least 1 dimension and the first "
        text += f"dimension must be -1; but shape expected by the model is {provided}"
        hint = f"set max_batch_size to 0 and {_cure(entry, tensor, False)}, or export the model with a dynamic first "
        yield Problem(f"{path}.dims", text, f"{hint}dimension")
        return
    if not tensor.shape:
        if any(dim != 1 for dim in dims):
            text = f"unable to load model '{model_name}', scalar tensor '{entry.name}', should only provide 1 in the "
            text += "model configuration when the model doesn't support batching. Model configuration provided: "
            yield Problem(f"{path}.dims", f"{text}{shape_text(dims)}.", _cure(entry, tensor, batching))
        return
    full = (-1, *dims) if batching else dims
    if _fits(full, tensor.shape, narrower, wider):
        return
    text = f"{start}the model expects {len(tensor.shape)} dimensions (shape {provided}) but the model configuration "
    if batching:
        text += f"specifies {len(full)} dimensions (an initial batch dimension because max_batch_size > 0 followed by "
        text += f"the explicit tensor shape, making complete shape {shape_text(full)})"
    else:
        text += f"specifies {len(full)} dimensions (shape {shape_text(full)})"
    yield Problem(f"{path}.dims", text, _cure(entry, tensor, batching))


def _cure(entry: ModelInput | ModelOutput, tensor: TensorSignature, batching: bool) -> str:
    """What to write for `tensor`. A configuration has no empty dims: a tensor of the batch dimension alone, such as a
    label for each row, needs a reshape.
    """
    dims = [dim or -1 for dim in tensor.shape[batching:]]
    if batching and not dims:
        return "write dims: [ 1 ] reshape { shape: [ ] }"
    return f"write dims: {shape_text(dims or [1])}{' and no reshape' if entry.HasField('reshape') else ''}"


def _fits(full: Shape, provided: Shape, narrower: bool, wider: bool) -> bool:
    """Whether configured dimensions match the graph's: equal, a number for a variable one (`narrower`), or a variable
    one for a number (`wider`).

    What a graph says of an output becomes more precise as it is optimized, so that its file, in which people look the
    dimensions up, may have -1 where the session knows the number. A configuration cannot express the dimension 0 of a
    graph; it has -1 in its place.
    """
    return len(full) == len(provided) and all(
        mine == (theirs or -1) or (narrower and theirs == -1) or (wider and mine == -1)
        for mine, theirs in zip(full, provided, strict=True)
    )


def _scattered_outputs(config: ModelConfig) -> set[str]:
    """The outputs that are split by the shape of their source input, so that the graph's dimensions do not apply."""
    scatter = BatchOutput.BATCH_SCATTER_WITH_INPUT_SHAPE
    return {name for entry in config.batch_output if entry.kind == scatter for name in entry.target_name}


def _named(tensors: Iterable[TensorSignature], name: str) -> TensorSignature | None:
    return next((tensor for tensor in tensors if tensor.name == name), None)


def _unexpected(side: str, name: str, tensors: Iterable[TensorSignature], path: str) -> Problem:
    allowed = ", ".join(sorted(tensor.name for tensor in tensors))
    return Problem(path, f"unexpected inference {side} '{name}', allowed {side}s are: {allowed}")
