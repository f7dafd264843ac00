"""Checks of a complete configuration against the engine that is to run it.

Source: docs/spec/framework-backends.md section 6.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from core.backends.tensorrt.completion import check_batch, supported_batch
from core.backends.tensorrt.engine import EngineDescription, EngineTensor
from core.backends.tensorrt.profiles import dims_problem, profile_indices
from core.config.problem import InvalidModelConfig, Problem
from core.config.schema import DataType, ModelConfig, ModelInput, ModelOutput, datatype_of
from core.config.sequence.resolve import own_inputs, own_outputs
from core.config.signature import ModelSignature, TensorSignature
from core.config.validation.signature import validate_against_signature
from core.errors import Unsupported
from core.inference.tensors import Shape, shape_text


def check_compatible(config: ModelConfig, engine: EngineDescription) -> None:
    """Raise a ServerError with every contradiction between `config` and the engine, in Triton's texts."""
    for tensor in (*engine.inputs, *engine.outputs):
        if not tensor.is_linear:
            raise Unsupported(
                f"unable to load model '{config.name}', tensor '{tensor.name}' has another format than linear",
                hint="build the plan with linear inputs and outputs: trtexec --inputIOFormats=fp32:chw",
                model=config.name,
            )
    check_batch(config, supported_batch(config, engine))
    problems = [*_missing(config, engine), *_datatypes(config, engine), *_shape_tensors(config, engine)]
    # The number of inputs is checked above, with TensorRT's own texts.
    general = validate_against_signature(config, _adapted(config, engine), config.name)
    problems += [problem for problem in general if problem.path != "input"]
    problems += _outside_of_profiles(config, engine)
    if problems:
        raise InvalidModelConfig(problems, model=config.name)


def _missing(config: ModelConfig, engine: EngineDescription) -> Iterator[Problem]:
    targets = {name for entry in config.batch_input for name in entry.target_name}
    inputs = {*(entry.name for entry in config.input), *own_inputs(config), *targets}
    outputs = {*(entry.name for entry in config.output), *own_outputs(config)}
    if len(inputs) > len(engine.inputs):
        text = f"unable to load model '{config.name}', configuration expects {len(inputs)} inputs, model provides "
        yield Problem("input", f"{text}at most {len(engine.inputs)}", f"the inputs are: {_names(engine.inputs)}")
    if missing := [tensor for tensor in engine.inputs if tensor.name not in inputs]:
        text = "failed to specify the dimensions of all input tensors or values of all input shape tensors"
        yield Problem("input", text, f"add to the configuration: {_names(missing)}")
    for tensor in engine.outputs:
        if tensor.name not in outputs:
            text = f"expected configuration for output '{tensor.name}' for {config.name}"
            yield Problem("output", text, f"the outputs are: {_names(engine.outputs)}")


def _datatypes(config: ModelConfig, engine: EngineDescription) -> Iterator[Problem]:
    for side, entries, tensors in _sides(config, engine):
        for index, entry in enumerate(entries):
            tensor = tensors.get(entry.name)
            if tensor is None:
                continue
            path = f"{side}[{index}].data_type"
            row = datatype_of(entry.data_type)
            if not tensor.datatype:
                text = f"unsupported datatype '{tensor.type_name}' for tensor '{entry.name}' for model '{config.name}'"
                yield Problem(path, text, "cast it inside the network: no protocol has this datatype")
            elif row is None or row.name != tensor.datatype:
                wanted = DataType.Name(entry.data_type) if row else "TYPE_INVALID"
                text = f"unexpected datatype TYPE_{tensor.datatype} for inference {side} '{entry.name}', expecting "
                yield Problem(path, f"{text}{wanted} for {config.name}", f"data_type: TYPE_{tensor.datatype}")


def _shape_tensors(config: ModelConfig, engine: EngineDescription) -> Iterator[Problem]:
    batching = config.max_batch_size > 0
    for side, entries, tensors in _sides(config, engine):
        for index, entry in enumerate(entries):
            tensor = tensors.get(entry.name)
            if tensor is None or (entry.is_shape_tensor is tensor.is_shape and not tensor.is_shape):
                continue
            path = f"{side}[{index}]"
            if entry.is_shape_tensor is not tensor.is_shape:
                kind = "a shape tensor" if entry.is_shape_tensor else "an execution tensor"
                text = f"'{entry.name}' is incorrectly specified as {kind}."
                yield Problem(f"{path}.is_shape_tensor", text, f"is_shape_tensor: {str(tensor.is_shape).lower()}")
            elif tuple(entry.dims) != tuple(dim - batching for dim in tensor.shape) and tensor.shape:
                text = f"unable to load model '{config.name}', binding '{entry.name}' shape expected by framework "
                text += f"{shape_text(tensor.shape)} doesn't match model configuration shape {shape_text(entry.dims)}"
                hint = "with batching the server adds the batch size in front: one value less" if batching else ""
                yield Problem(f"{path}.dims", text, hint)


def _outside_of_profiles(config: ModelConfig, engine: EngineDescription) -> Iterator[Problem]:
    """Configured dimensions that no profile takes."""
    names = [name for group in config.instance_group for name in group.profile]
    used = profile_indices(config, names, engine.profiles)
    tensors = {tensor.name: tensor for tensor in engine.inputs if not tensor.is_shape}
    first = 1 if config.max_batch_size > 0 else 0
    for index, entry in enumerate(config.input):
        tensor = tensors.get(entry.name)
        if tensor is None or entry.allow_ragged_batch:
            continue
        shape = (*((-1,) * first), *_model_dims(entry))
        found = [dims_problem(tensor, profile, shape, first) for profile in used]
        if all(found) and len(shape) == len(tensor.shape):
            text = f"model configuration specified invalid shape for input '{entry.name}' for model {config.name}. "
            yield Problem(f"input[{index}].dims", f"{text}Error details: {found[0]}")


def _adapted(config: ModelConfig, engine: EngineDescription) -> ModelSignature:
    """The engine's signature, where a -1 of either side fits the other, and shape tensors fit: those are checked by
    themselves.
    """
    batching = config.max_batch_size > 0
    adapted: list[tuple[TensorSignature, ...]] = []
    for _, entries, tensors in _sides(config, engine):
        by_name = {entry.name: entry for entry in entries}
        adapted.append(tuple(_fitted(tensor, by_name.get(name), batching) for name, tensor in tensors.items()))
    return ModelSignature(adapted[0], adapted[1])


def _fitted(tensor: EngineTensor, entry: ModelInput | ModelOutput | None, batching: bool) -> TensorSignature:
    if entry is None:
        return TensorSignature(tensor.name, tensor.datatype, tensor.shape)
    row = datatype_of(entry.data_type)
    found = TensorSignature(tensor.name, row.name if row else "", tensor.shape)
    wanted = (-1, *_model_dims(entry)) if batching else _model_dims(entry)
    if tensor.is_shape:
        return replace(found, shape=wanted)
    if isinstance(entry, ModelInput) and entry.allow_ragged_batch:
        return replace(found, shape=(-1,) if len(tensor.shape) == 1 else tensor.shape)
    if len(wanted) != len(tensor.shape):
        return found
    # A fixed first dimension is the only batch that the engine takes.
    fitted = [mine if -1 in (mine, own) else own for mine, own in zip(wanted, tensor.shape, strict=True)]
    return replace(found, shape=tuple(fitted))


def _model_dims(entry: ModelInput | ModelOutput) -> Shape:
    return tuple(entry.reshape.shape if entry.HasField("reshape") else entry.dims)


def _sides(
    config: ModelConfig, engine: EngineDescription
) -> Iterator[tuple[str, Sequence[ModelInput] | Sequence[ModelOutput], dict[str, EngineTensor]]]:
    yield "input", config.input, {tensor.name: tensor for tensor in engine.inputs}
    yield "output", config.output, {tensor.name: tensor for tensor in engine.outputs}


def _names(tensors: Sequence[EngineTensor]) -> str:
    return ", ".join(tensor.name for tensor in tensors)
