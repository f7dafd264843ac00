"""Checks of the inputs, outputs, batch inputs and batch outputs of a configuration.

Source: docs/spec/model-config.md sections 2.3 and 2.7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from core.config.platforms import TENSORRT
from core.config.problem import Problem
from core.config.schema import BatchInput, BatchOutput, DataType, ModelConfig, ModelInput, ModelOutput, datatype_of
from core.inference.tensors import element_count, shape_text

_DATA_TYPE_HINT = "one of TYPE_BOOL, TYPE_[U]INT8..64, TYPE_FP16, TYPE_BF16, TYPE_FP32, TYPE_FP64, TYPE_STRING"


def tensor_problems(config: ModelConfig, model_name: str, *, completed: bool = True) -> list[Problem]:
    """The problems of `input` and `output`; with `completed` False auto-complete may still enable batching."""
    batching = config.max_batch_size > 0 or not completed
    problems: list[Problem] = []
    for index, entry in enumerate(config.input):
        path = f"input[{index}]"
        problems += _entry_problems(config, entry, path, "input", model_name, batching)
        if entry.format != ModelInput.FORMAT_NONE and len(entry.dims) != 3:
            problems.append(Problem(f"{path}.format", f"model input NHWC/NCHW require 3 dims for {model_name}"))
    for index, entry in enumerate(config.output):
        problems += _entry_problems(config, entry, f"output[{index}]", "output", model_name, batching)
    problems += _repeated("input", config.input, model_name)
    problems += _repeated("output", config.output, model_name)
    return problems


def batch_tensor_problems(config: ModelConfig, model_name: str) -> list[Problem]:
    """The problems of `batch_input` and `batch_output` of a completed `config`."""
    problems: list[Problem] = []
    inputs = {entry.name: entry for entry in config.input}
    outputs = {entry.name: entry for entry in config.output}
    for index, entry in enumerate(config.batch_input):
        path = f"batch_input[{index}]"
        problems += _source_problems(entry, path, "input", set(inputs), model_name)
        if not entry.target_name:
            text = f"batch input kind '{_kind(entry)}' expects a target name, got none for {model_name}"
            problems.append(Problem(f"{path}.target_name", text, "the input of the graph that takes the tensor"))
        if entry.data_type not in (DataType.TYPE_INT32, DataType.TYPE_FP32):
            text = f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {model_name}"
            problems.append(Problem(f"{path}.data_type", text))
    seen: set[str] = set()
    for index, entry in enumerate(config.batch_output):
        path = f"batch_output[{index}]"
        problems += _source_problems(entry, path, "output", set(inputs), model_name)
        for name in entry.target_name:
            if name not in outputs:
                text = f"unknown target output name '{name}' for {model_name}"
                problems.append(Problem(f"{path}.target_name", text))
            elif name in seen:
                text = f"target output name '{name}' can only be specified once for {model_name}"
                problems.append(Problem(f"{path}.target_name", text))
            else:
                problems += _scatter_problems(entry, outputs[name], inputs, path, model_name)
            seen.add(name)
    return problems


def _entry_problems(
    config: ModelConfig, entry: ModelInput | ModelOutput, path: str, side: str, model_name: str, batching: bool
) -> Iterator[Problem]:
    label = f"model {side} '{entry.name}'"
    suffix = f" for {model_name}"
    if not entry.name:
        yield Problem(f"{path}.name", f"model {side} must specify 'name'{suffix}")
    if datatype_of(entry.data_type) is None:
        yield Problem(f"{path}.data_type", f"{label} must specify 'data_type'{suffix}", _DATA_TYPE_HINT)
    yield from _shape_problems(entry, path, label, suffix, batching)
    if entry.is_shape_tensor and config.platform != TENSORRT:
        text = f"shape tensors are only supported for TensorRT platform{suffix}"
        yield Problem(f"{path}.is_shape_tensor", text)
    if entry.is_non_linear_format_io and config.platform != TENSORRT:
        text = f"Non-linear IO format is only supported for the TensorRT platform{suffix}"
        yield Problem(f"{path}.is_non_linear_format_io", text)


def _shape_problems(
    entry: ModelInput | ModelOutput, path: str, label: str, suffix: str, batching: bool
) -> Iterator[Problem]:
    dims = list(entry.dims)
    if not dims:
        hint = "write dims: [ 1 ] for a tensor with one element per item"
        if batching:
            hint += ", and dims: [ 1 ] reshape { shape: [ ] } if the model's own has the batch dimension only"
        yield Problem(f"{path}.dims", f"{label} must specify 'dims'{suffix}", hint)
        return
    rule = "must be integer >= 1, or -1 to indicate a variable-size dimension"
    if not _valid(dims):
        yield Problem(f"{path}.dims", f"{label} dimension {rule}{suffix}")
        return
    if not entry.HasField("reshape"):
        return
    reshape = list(entry.reshape.shape)
    where = f"{path}.reshape.shape"
    if not reshape and not batching:
        text = f"{label} cannot have empty reshape for non-batching model as scalar tensors are not supported{suffix}"
        yield Problem(where, text)
    elif not _valid(reshape):
        yield Problem(where, f"{label} reshape dimensions {rule}{suffix}")
    elif dims.count(-1) != reshape.count(-1) and -1 in dims and -1 in reshape:
        text = f"{label} has different number of variable-size dimensions for dims and reshape{suffix}"
        yield Problem(where, text)
    elif _chunks(dims) != _chunks(reshape):
        yield Problem(where, f"{label} has different size for dims and reshape{suffix}")


def _valid(dims: Sequence[int]) -> bool:
    return all(dim >= 1 or dim == -1 for dim in dims)


def _chunks(dims: Sequence[int]) -> list[int]:
    """The numbers of elements between the variable-size dimensions: [8, 6] for [2, 4, -1, 6]."""
    chunks: list[list[int]] = [[]]
    for dim in dims:
        if dim == -1:
            chunks.append([])
        else:
            chunks[-1].append(dim)
    return [element_count(chunk) for chunk in chunks]


def _repeated(side: str, entries: Sequence[ModelInput | ModelOutput], model_name: str) -> list[Problem]:
    counts = Counter(entry.name for entry in entries if entry.name)
    return [
        Problem(side, f"model {side} '{name}' is specified {count} times for {model_name}")
        for name, count in counts.items()
        if count > 1
    ]


def _scatter_problems(
    entry: BatchOutput, output: ModelOutput, inputs: Mapping[str, ModelInput], path: str, model_name: str
) -> Iterator[Problem]:
    """A variable dimension of a scattered output takes the size that its source has at the same position."""
    source = inputs.get(entry.source_input[0]) if len(entry.source_input) == 1 else None
    if source is None:
        return
    given, wanted = _model_dims(source), _model_dims(output)
    if -1 in wanted[len(given) :]:
        text = f"batch output '{output.name}' has a variable dimension at position {len(given) + 1} or later, where "
        text += f"its source input '{source.name}' has no dimension, for {model_name}"
        hint = f"the dims are {shape_text(wanted)} of the output and {shape_text(given)} of the input"
        yield Problem(f"{path}.target_name", text, hint)


def _model_dims(entry: ModelInput | ModelOutput) -> list[int]:
    return list(entry.reshape.shape if entry.HasField("reshape") else entry.dims)


def _source_problems(
    entry: BatchInput | BatchOutput, path: str, side: str, inputs: set[str], model_name: str
) -> list[Problem]:
    label = f"batch {side} kind '{_kind(entry)}'"
    if entry.kind not in entry.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number:
        known = ", ".join(entry.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_name)
        return [Problem(f"{path}.kind", f"unknown {label} for {model_name}", f"known are: {known}")]
    sources = list(entry.source_input)
    if len(sources) != 1:
        text = f"{label} expects 1 source input, got {len(sources)} for {model_name}"
        return [Problem(f"{path}.source_input", text)]
    unknown = [name for name in sources if name not in inputs]
    return [Problem(f"{path}.source_input", f"unknown source input name '{name}' for {model_name}") for name in unknown]


def _kind(entry: BatchInput | BatchOutput) -> str:
    field = entry.DESCRIPTOR.fields_by_name["kind"]
    value = field.enum_type.values_by_number.get(entry.kind)
    return str(value.name) if value else str(entry.kind)
