"""The warmup samples of a configuration, with their tensors, and their problems.

Source: docs/spec/model-config.md section 2.8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trident.core.config.problem import Problem, path_inside
from trident.core.config.request_check import RequestValidator
from trident.core.config.resolve import backend_spec
from trident.core.config.schema import ModelConfig, ModelSequenceBatching, ModelWarmup, datatype_of
from trident.core.config.spec import BucketSpec, ModelSpec, StateSpec
from trident.core.errors import ConfigInvalid, InvalidRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.tensors import BYTES, Array, Datatype, Shape, bytes_array, element_count, unpack_bytes

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
        array = _zeros(datatype, dims)
    elif source == "random_data":
        array = _random(datatype, dims)
    elif source == "input_data_file":
        array = _from_file(model, name, setting.input_data_file, datatype, dims, model_directory)
    else:
        raise ConfigInvalid(f"{_PREFIX}warmup setting expects input '{name}' to have input_data_type set", model=model)
    return WarmupInput(name, datatype, array)


def _zeros(datatype: Datatype, dims: Shape) -> Array:
    """Zeros or empty strings, with 1 for each variable dimension."""
    dims = tuple(1 if dim == -1 else dim for dim in dims)
    if datatype is BYTES:
        return bytes_array([b""] * element_count(dims), dims)
    return np.zeros(dims, datatype.dtype)


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
    found = _read_tensor(path, datatype, dims, name=name, model=model, prefix=_PREFIX)
    if isinstance(found, int):
        expected = element_count(dims) * datatype.size
        raise ConfigInvalid(
            f"{_PREFIX}warmup setting expects {expected} bytes, but the data provided from {file_name} only has "
            f"{found} bytes",
            model=model,
        )
    return found


def _read_tensor(
    path: Path, datatype: Datatype, dims: Shape, *, name: str, model: str, prefix: str = ""
) -> Array | int:
    """The tensor `name` in the file at `path`, whose surplus is ignored; or the size of a file that is too short.

    Raises ConfigInvalid.
    """
    expected = element_count(dims) * datatype.size
    try:
        with path.open("rb") as file:
            content = file.read(expected) if expected else file.read()
    except OSError as error:
        raise ConfigInvalid(f"failed to open file for read {path}: {error.strerror}", model=model) from error
    if datatype is BYTES:
        try:
            elements = unpack_bytes(content, element_count(dims), name=name, model=model, prefix=prefix)
        except InvalidRequest as error:
            raise ConfigInvalid(error.message, model=model) from error
        return bytes_array(elements, dims)
    if len(content) < expected:
        return len(content)
    return np.frombuffer(content[:expected], datatype.dtype).reshape(dims)


# Source: docs/ragged-batching.md.


def bucket_samples(spec: ModelSpec, samples: Sequence[WarmupSample]) -> list[WarmupSample]:
    """One sample for each combination of sizes, the largest first, so that memory is allocated once.

    The values are those of the first of `samples`, the warmup samples of the configuration, repeated to the length;
    without one, zeros and empty strings.
    """
    buckets = spec.buckets
    if buckets is None:
        return []
    values = {given.name: given.array for given in samples[0].inputs} if samples else {}
    return [
        _bucket_sample(spec, buckets, values, batch_size, length)
        for batch_size in reversed(buckets.batch_sizes or (1,))
        for length in reversed(buckets.lengths or (0,))
    ]


def _bucket_sample(
    spec: ModelSpec, buckets: BucketSpec, values: Mapping[str, Array], batch_size: int, length: int
) -> WarmupSample:
    parts = [f"batch size {batch_size}"] if buckets.batch_sizes else []
    parts += [f"length {length}"] if length else []
    batch_axes = 1 if spec.max_batch_size > 0 else 0
    inputs = []
    for name, given in spec.inputs.items():
        if given.optional:
            continue
        axis = buckets.axes[name] - batch_axes if name in buckets.axes else None
        array = values[name] if name in values else _zeros(given.datatype, given.dims)
        if axis is not None:
            array = np.take(array, np.arange(length) % max(array.shape[axis], 1), axis)
        inputs.append(WarmupInput(name, given.datatype, array))
    return WarmupSample(f"bucket of {', '.join(parts)}", batch_size, 1, tuple(inputs))


# Source: docs/spec/schedulers.md section 3.4, "Implicit state".


def initial_states(config: ModelConfig, states: tuple[StateSpec, ...], model_directory: Path) -> dict[str, Array]:
    """The first value of each of `states`, by input, without batch dimension. Raises ConfigInvalid."""
    given = {state.input_name: state.initial_state for state in config.sequence_batching.state}
    found: dict[str, Array] = {}
    for state in states:
        try:
            initial = given[state.input_name]
            found[state.input_name] = (
                _initial_state(config.name, state, initial[0], model_directory)
                if initial
                # Triton leaves the memory as it is. Zeros tell nothing of other requests.
                else _zeros(state.datatype, state.dims)
            )
        except (MemoryError, OverflowError, ValueError) as error:
            raise ConfigInvalid(
                f"the initial state of '{state.input_name}' cannot be made: {error or 'not enough memory'}",
                model=config.name,
            ) from error
    return found


def _initial_state(
    model: str, state: StateSpec, initial: ModelSequenceBatching.InitialState, model_directory: Path
) -> Array:
    dims: Shape = tuple(initial.dims)
    if initial.WhichOneof("state_data") == "zero_data":
        return _zeros(state.datatype, dims)
    path = path_inside(model_directory, f"initial_state/{initial.data_file}")
    if path is None:
        raise ConfigInvalid(
            f"initial state file path '{initial.data_file}' for state input '{state.input_name}' in model '{model}' "
            "is outside model directory",
            model=model,
        )
    found = _read_tensor(path, state.datatype, dims, name=state.input_name, model=model)
    if isinstance(found, int):
        expected = element_count(dims) * state.datatype.size
        raise ConfigInvalid(
            f"initial_state setting expects {expected} bytes, but the data provided from {initial.data_file} only has "
            f"{found} bytes.",
            model=model,
        )
    return found
