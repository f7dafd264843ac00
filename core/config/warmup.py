"""The warmup samples of a configuration, with their tensors, and their problems.

Source: docs/spec/model-config.md section 2.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from core.config.model_spec import ModelSpec
from core.config.paths import path_inside
from core.config.problem import Problem
from core.config.request_validator import RequestValidator
from core.config.schema import ModelConfig, ModelWarmup, datatype_of
from core.config.sequence.resolve import backend_spec
from core.errors import ConfigInvalid, InvalidRequest
from core.inference.request import InferenceRequest, InputTensor
from core.inference.tensors import Array, Datatype, Shape, bytes_array, element_count, unpack_bytes

_PREFIX = "[request id: <id_unknown>] "
# Random tensors are the same at every start, so that a failed warmup can be reproduced.
_SEED = 0


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """One input of a sample. `array` has the datatype's numpy type and no batch dimension."""

    name: str
    datatype: Datatype
    array: Array


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One sample: a batch of `batch_size` requests with one item each, executed `count` times in a row."""

    name: str
    batch_size: int
    count: int
    inputs: tuple[WarmupInput, ...]

    def request(self, spec: ModelSpec) -> InferenceRequest:
        """A request with one item, for the version that `spec` describes, not yet validated.

        The controls and states of a sequence, which Triton wants in a sample, come from the scheduler.
        """
        own = backend_spec(spec).inputs.keys() - spec.inputs.keys()
        inputs = []
        for each in self.inputs:
            if each.name in own:
                continue
            array = each.array[None, ...] if spec.max_batch_size > 0 else each.array
            inputs.append(InputTensor(each.name, each.datatype.name, array.shape, array))
        return InferenceRequest(spec.name, inputs, model_version=spec.version)

    def failure(self, message: str) -> str:
        """The reason of a version that failed at this sample with `message`."""
        return f"failed to run warmup sample '{self.name}': {message}; "


def warmup_samples(config: ModelConfig, model_directory: Path) -> list[WarmupSample]:
    """The samples of `model_warmup`, with files from `warmup/` in the model directory. Empty samples are skipped.

    Raises ConfigInvalid.
    """
    return [_sample(config.name, setting, model_directory) for setting in config.model_warmup if setting.batch_size > 0]


def warmup_problems(config: ModelConfig, spec: ModelSpec, model_directory: Path) -> list[Problem]:
    """The problems that would keep the samples from running on the version that `spec` describes; none is run."""
    problems: list[Problem] = []
    for index, setting in enumerate(config.model_warmup):
        if setting.batch_size <= 0:
            continue
        try:
            sample = _sample(config.name, setting, model_directory)
            _check(sample, spec)
        except ConfigInvalid as error:
            problems.append(Problem.of(f"model_warmup[{index}]", error))
    return problems


def _check(sample: WarmupSample, spec: ModelSpec) -> None:
    """Raise ConfigInvalid with the text of the server when it runs the sample."""
    try:
        RequestValidator(spec).check(sample.request(spec))
    except InvalidRequest as error:
        raise ConfigInvalid(sample.failure(error.message), hint=error.hint) from error
    if 1 != sample.batch_size > spec.max_batch_size:
        text = f"batch size {sample.batch_size} for '{spec.name}', max allowed is {spec.max_batch_size}"
        raise ConfigInvalid(sample.failure(text))


def _sample(model: str, setting: ModelWarmup, model_directory: Path) -> WarmupSample:
    try:
        inputs = tuple(_input(model, name, each, model_directory) for name, each in sorted(setting.inputs.items()))
    except (MemoryError, OverflowError, ValueError) as error:  # impossible dimensions
        text = f"the warmup sample '{setting.name}' cannot be made: {error or 'not enough memory'}"
        raise ConfigInvalid(text, model=model) from error
    return WarmupSample(name=setting.name, batch_size=setting.batch_size, count=max(setting.count, 1), inputs=inputs)


def _input(model: str, name: str, setting: ModelWarmup.Input, model_directory: Path) -> WarmupInput:
    dims: Shape = tuple(setting.dims)
    if any(dim < 0 for dim in dims):
        raise ConfigInvalid(
            f"warmup setting expects all variable-size dimensions are specified for input '{name}'", model=model
        )
    datatype = datatype_of(setting.data_type)
    if datatype is None:
        raise ConfigInvalid(f"warmup setting expects input '{name}' to have 'data_type' set", model=model)
    source = setting.WhichOneof("input_data_type")
    if source == "zero_data" or (source == "random_data" and datatype.size == 0):
        array = bytes_array([b""] * element_count(dims), dims) if datatype.size == 0 else np.zeros(dims, datatype.dtype)
    elif source == "random_data":
        array = _random(datatype, dims)
    elif source == "input_data_file":
        array = _from_file(model, name, setting.input_data_file, datatype, dims, model_directory)
    else:
        raise ConfigInvalid(f"{_PREFIX}warmup setting expects input '{name}' to have input_data_type set", model=model)
    return WarmupInput(name, datatype, array)


def _random(datatype: Datatype, dims: Shape) -> Array:
    count = element_count(dims)
    random = np.random.default_rng(_SEED).integers(0, 256, count * datatype.size, dtype=np.uint8)
    if datatype.name == "BOOL":
        random &= 1  # other bytes are not valid booleans
    return random.view(datatype.dtype).reshape(dims)


def _from_file(model: str, name: str, file_name: str, datatype: Datatype, dims: Shape, model_directory: Path) -> Array:
    path = path_inside(model_directory, f"warmup/{file_name}")
    if path is None:
        raise ConfigInvalid(
            f"warmup file path '{file_name}' for input '{name}' in model '{model}' is outside model directory",
            model=model,
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigInvalid(f"failed to open file for read {path}: {error.strerror}", model=model) from error
    if datatype.size == 0:
        try:
            elements = unpack_bytes(content, element_count(dims), name=name, model=model, prefix=_PREFIX)
        except InvalidRequest as error:
            raise ConfigInvalid(error.message, model=model) from error
        return bytes_array(elements, dims)
    expected = element_count(dims) * datatype.size
    if len(content) < expected:
        raise ConfigInvalid(
            f"{_PREFIX}warmup setting expects {expected} bytes, but the data provided from {file_name} only has "
            f"{len(content)} bytes",
            model=model,
        )
    return np.frombuffer(content[:expected], dtype=datatype.dtype).reshape(dims)
