"""Resolves a validated configuration into the ModelSpec that the hot path reads, and into the warmup samples.

Source: docs/spec/model-config.md sections "In Trident" and 2.8 (warmup); docs/spec/schedulers.md section 3.2;
docs/ragged-batching.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trident.core.config.platforms import pads_batches
from trident.core.config.problem import Problem, open_file, path_inside, read_file
from trident.core.config.request_check import RequestValidator
from trident.core.config.schema import (
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelQueuePolicy,
    ModelSequenceBatching,
    ModelWarmup,
    datatype_of,
)
from trident.core.config.spec import (
    BatchingSpec,
    BucketSpec,
    FlagControl,
    IdControl,
    InputSpec,
    ModelSpec,
    OutputSpec,
    QueuePolicy,
    SequenceSpec,
    StateSpec,
)
from trident.core.errors import ConfigInvalid, InvalidRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.tensors import (
    BY_CONFIG_NUMBER,
    BY_NAME,
    BYTES,
    Array,
    Datatype,
    Shape,
    bytes_array,
    element_count,
    unpack_bytes,
)
from trident.core.options import DEFAULT_BUCKETS

_NS_PER_US = 1000


def resolve_model_spec(config: ModelConfig, version: int, labels: Mapping[str, tuple[str, ...]]) -> ModelSpec:
    """The spec of one version; `config` is complete, normalised and validated; `labels` are keyed by output."""
    batching, sequence = _batching(config), resolve_sequence_spec(config)
    delayed = batching or sequence
    return ModelSpec(
        name=config.name,
        version=version,
        platform=config.platform,
        backend=config.backend,
        max_batch_size=config.max_batch_size,
        inputs={entry.name: _input(entry) for entry in config.input},
        outputs={entry.name: _output(entry, labels.get(entry.name, ())) for entry in config.output},
        batching=batching,
        sequence=sequence,
        buckets=bucket_spec(config),
        decoupled=config.model_transaction_policy.decoupled,
        response_cache=config.response_cache.enable and not config.model_transaction_policy.decoupled,
        counts_arrival=(delayed is not None and delayed.max_queue_delay_ns > 0) or target_p99_ns(config) > 0,
        metric_tags=dict(config.metric_tags),
    )


def with_graph_labels(spec: ModelSpec, config: ModelConfig, labels: Mapping[str, tuple[str, ...]]) -> ModelSpec:
    """`spec` with the labels that the graph has, by output, for each output without a label file in `config`."""
    filed = {entry.name for entry in config.output if entry.label_filename}
    outputs = {
        name: output if name in filed else replace(output, labels=labels.get(name, ()))
        for name, output in spec.outputs.items()
    }
    return replace(spec, outputs=outputs)


def _input(entry: ModelInput) -> InputSpec:
    return InputSpec(
        name=entry.name,
        datatype=BY_CONFIG_NUMBER[entry.data_type],
        dims=tuple(entry.dims),
        model_dims=_model_dims(entry),
        optional=entry.optional,
        allow_ragged_batch=entry.allow_ragged_batch,
        is_shape_tensor=entry.is_shape_tensor,
    )


def _output(entry: ModelOutput, labels: tuple[str, ...]) -> OutputSpec:
    return OutputSpec(
        name=entry.name,
        datatype=BY_CONFIG_NUMBER[entry.data_type],
        dims=tuple(entry.dims),
        model_dims=_model_dims(entry),
        labels=labels,
    )


def _model_dims(entry: ModelInput | ModelOutput) -> Shape | None:
    return tuple(entry.reshape.shape) if entry.HasField("reshape") else None


def _batching(config: ModelConfig) -> BatchingSpec | None:
    if not config.HasField("dynamic_batching"):
        return None
    batching = config.dynamic_batching
    levels = batching.priority_levels
    by_level = batching.priority_queue_policy if levels else {}  # without levels they mean nothing
    return BatchingSpec(
        # For a model that cannot batch the batcher sends one request at a time.
        preferred_batch_sizes=tuple(sorted(set(batching.preferred_batch_size))) or (max(1, config.max_batch_size),),
        max_queue_delay_ns=batching.max_queue_delay_microseconds * _NS_PER_US,
        target_p99_ns=target_p99_ns(config),
        preserve_ordering=batching.preserve_ordering,
        priority_levels=levels,
        default_priority_level=batching.default_priority_level,
        default_policy=_queue_policy(batching.default_queue_policy),
        level_policies={level: _queue_policy(policy) for level, policy in by_level.items()},
    )


def _queue_policy(policy: ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        delay_on_timeout=policy.timeout_action == ModelQueuePolicy.DELAY,
        default_timeout_ns=policy.default_timeout_microseconds * _NS_PER_US,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


# --- sequences

_FLAG_DATATYPES = {"int32_false_true": "INT32", "fp32_false_true": "FP32", "bool_false_true": "BOOL"}

_Control = ModelSequenceBatching.Control
_ID = _Control.CONTROL_SEQUENCE_CORRID


def resolve_sequence_spec(config: ModelConfig) -> SequenceSpec | None:
    if not config.HasField("sequence_batching"):
        return None
    batching = config.sequence_batching
    largest = max(1, config.max_batch_size)
    is_direct = not batching.HasField("oldest")
    if is_direct:
        slots = largest
        preferred, delay_us = _utilized(batching.direct, largest)
        preserve_ordering = False
    else:
        oldest = batching.oldest
        slots = oldest.max_candidate_sequences if oldest.max_candidate_sequences > 0 else largest
        preferred = tuple(sorted(set(oldest.preferred_batch_size))) or (largest,)
        delay_us = oldest.max_queue_delay_microseconds
        preserve_ordering = oldest.preserve_ordering
    # Validated: no kind and no tensor comes twice.
    controls = {control.kind: (entry.name, control) for entry in batching.control_input for control in entry.control}
    flags = {kind: _flag(name, control) for kind, (name, control) in controls.items() if kind != _ID}
    id_control = controls.get(_ID)
    return SequenceSpec(
        is_direct=is_direct,
        slots=slots,
        max_idle_ns=batching.max_sequence_idle_microseconds * _NS_PER_US,
        preferred_batch_sizes=preferred,
        max_queue_delay_ns=delay_us * _NS_PER_US,
        preserve_ordering=preserve_ordering,
        start=flags.get(_Control.CONTROL_SEQUENCE_START),
        end=flags.get(_Control.CONTROL_SEQUENCE_END),
        ready=flags.get(_Control.CONTROL_SEQUENCE_READY),
        correlation_id=id_control and IdControl(name=id_control[0], datatype=BY_CONFIG_NUMBER[id_control[1].data_type]),
        states=tuple(
            StateSpec(
                input_name=state.input_name,
                output_name=state.output_name,
                datatype=BY_CONFIG_NUMBER[state.data_type],
                dims=tuple(state.dims),
            )
            for state in batching.state
        ),
        is_iterative=batching.iterative_sequence,
    )


def backend_spec(spec: ModelSpec) -> ModelSpec:
    """`spec` as the model itself sees it: with the controls and states that no client sends or gets."""
    sequence = spec.sequence
    if sequence is None:
        return spec
    inputs = dict(spec.inputs)
    for control in (sequence.start, sequence.end, sequence.ready, sequence.correlation_id):
        if control is not None:
            inputs[control.name] = InputSpec(name=control.name, datatype=control.datatype, dims=(1,))
    outputs = dict(spec.outputs)
    for state in sequence.states:
        inputs[state.input_name] = InputSpec(name=state.input_name, datatype=state.datatype, dims=state.dims)
        if state.output_name not in outputs:
            outputs[state.output_name] = OutputSpec(name=state.output_name, datatype=state.datatype, dims=state.dims)
    return replace(spec, inputs=inputs, outputs=outputs)


def own_inputs(config: ModelConfig) -> list[str]:
    """The inputs of the graph that the scheduler provides: controls and states."""
    batching = config.sequence_batching
    controls = [entry.name for entry in batching.control_input if entry.control]
    return controls + [state.input_name for state in batching.state]


def own_outputs(config: ModelConfig) -> list[str]:
    return [state.output_name for state in config.sequence_batching.state]


def _utilized(direct: ModelSequenceBatching.StrategyDirect, largest: int) -> tuple[tuple[int, ...], int]:
    """The batch sizes that are executed at once, and for how many microseconds smaller ones wait."""
    utilization, delay_us = direct.minimum_slot_utilization, direct.max_queue_delay_microseconds
    if not utilization or not delay_us:
        return (largest,), 0
    # As the protobuf field a utilization is a float of 32 bits: 0.7 of 10 slots must be 7.
    fewest = max(1, math.ceil(round(utilization * largest, 4)))
    return tuple(range(fewest, largest + 1)), delay_us


def _flag(name: str, control: ModelSequenceBatching.Control) -> FlagControl:
    for field, datatype in _FLAG_DATATYPES.items():
        values = getattr(control, field)
        if values:
            return FlagControl(name=name, datatype=BY_NAME[datatype], false=float(values[0]), true=float(values[1]))
    raise ValueError(f"the control '{name}' has no values, which validation refuses")


# --- buckets

BATCH_BUCKETS = "BATCH_BUCKETS"
LENGTH_BUCKETS = "LENGTH_BUCKETS"
LENGTH_PAD_VALUES = "LENGTH_PAD_VALUES"
LENGTH_OUTPUTS = "LENGTH_OUTPUTS"

_TRUE, _FALSE = ("1", "true"), ("0", "false")


def bucket_spec(config: ModelConfig) -> BucketSpec | None:
    if not pads_batches(config):
        return None
    batch_sizes = sizes_of(parameter(config, BATCH_BUCKETS))
    lengths = sizes_of(parameter(config, LENGTH_BUCKETS))
    if not batch_sizes and not lengths:
        return None
    batch_axes = 1 if config.max_batch_size > 0 else 0
    return BucketSpec(
        batch_sizes=batch_sizes,
        lengths=lengths,
        axes={i.name: batch_axes + list(i.dims).index(-1) for i in config.input if lengths and -1 in i.dims},
        pad_values=pad_values_of(parameter(config, LENGTH_PAD_VALUES)),
        outputs=names_of(parameter(config, LENGTH_OUTPUTS)),
    )


def parameter(config: ModelConfig, name: str) -> str:
    """The text of a parameter; empty if there is none. Does not add it to `config`."""
    return str(config.parameters[name].string_value) if name in config.parameters else ""


_SWITCH = {"true": True, "1": True, "false": False, "0": False}


def switch(config: ModelConfig, name: str, default: bool = False) -> bool:
    """The value of a parameter that is true or false; `default` where there is none that is valid."""
    return _SWITCH.get(parameter(config, name).lower(), default)


def switch_problems(config: ModelConfig, name: str, hint: str) -> list[Problem]:
    text = parameter(config, name)
    if name not in config.parameters or text.lower() in _SWITCH:
        return []
    return [Problem(f"parameters[{name}]", f"{name} must be true or false, got '{text}' for {config.name}", hint)]


def names_of(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def sizes_of(text: str) -> tuple[int, ...]:
    """The sizes in a list with commas, in its order. Raises ValueError for what is not a whole number."""
    return tuple(int(size) for size in text.split(",")) if text.strip() else ()


def pad_values_of(text: str) -> dict[str, str]:
    """The values by name in a list such as `A=1, B=-1`. Raises ValueError for an entry without a name or a sign."""
    values: dict[str, str] = {}
    for entry in names_of(text):
        name, sign, value = entry.partition("=")
        if not sign or not name.strip():
            raise ValueError(f"'{entry}' is not NAME=VALUE")
        values[name.strip()] = value.strip()
    return values


def pad_value(datatype: Datatype, text: str = "") -> Any:
    """The element that `text` means in a tensor of `datatype`; without text 0, false, or the empty string.

    Raises ValueError if the datatype has no such element.
    """
    if datatype is BYTES:
        return text.encode()
    if not text:
        return datatype.dtype.type(0)
    if datatype.name == "BOOL":
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(f"'{text}' is not true or false")
        return np.bool_(text.lower() in _TRUE)
    if datatype.name == "BF16":
        # The upper half of the bits of a 32-bit number.
        return np.uint16(np.float32(float(text)).view(np.uint32) >> 16)
    if datatype.kind == "f":
        return datatype.dtype.type(float(text))
    number, limits = int(text), np.iinfo(datatype.dtype)
    if not limits.min <= number <= limits.max:
        raise ValueError(f"{number} is not between {limits.min} and {limits.max}")
    return datatype.dtype.type(number)


# --- a target instead of a delay


TARGET_P99 = "TARGET_P99_MS"
_PATH = f"parameters[{TARGET_P99}]"
_LONGEST_MS = 3_600_000
_NS_PER_MS = 1_000_000


def target_p99_ns(config: ModelConfig) -> int:
    return round(_target_ms(config) * _NS_PER_MS) if TARGET_P99 in config.parameters else 0


def latency_target_problems(config: ModelConfig, *, completed: bool) -> list[Problem]:
    """The problems of the target; with `completed` False auto-complete may still fill max_batch_size."""
    if TARGET_P99 not in config.parameters:
        return []
    name = config.name
    text = parameter(config, TARGET_P99)
    problems = []
    if not 0 < _target_ms(config) <= _LONGEST_MS:
        message = f"{TARGET_P99} must be milliseconds from above 0 to {_LONGEST_MS}, got '{text}' for {name}"
        hint = 'give the latency that one in a hundred requests may exceed, such as string_value: "20"'
        problems.append(Problem(_PATH, message, hint))
    if not config.HasField("dynamic_batching"):
        hint = "add 'dynamic_batching { }', whose delay and size the target sets, or remove the parameter"
        problems.append(Problem(_PATH, f"{TARGET_P99} needs dynamic_batching for {name}", hint))
    elif completed and config.max_batch_size < 2:
        hint = "set max_batch_size to the largest batch that fits into memory, or remove the parameter"
        problems.append(Problem(_PATH, f"{TARGET_P99} needs a max_batch_size of at least 2 for {name}", hint))
    batching = config.dynamic_batching
    for field, is_set in (
        ("max_queue_delay_microseconds", batching.max_queue_delay_microseconds > 0),
        # A completed configuration names the default.
        ("preferred_batch_size", list(batching.preferred_batch_size) not in ([], [config.max_batch_size])),
    ):
        if is_set:
            message = f"{TARGET_P99} sets what {field} sets for {name}"
            problems.append(
                Problem(f"dynamic_batching.{field}", message, f"remove one of the two: {TARGET_P99} or {field}")
            )
    if config.model_transaction_policy.decoupled:
        hint = "a decoupled model answers after its execution: give it a max_queue_delay_microseconds instead"
        problems.append(Problem(_PATH, f"{TARGET_P99} is not for the decoupled model {name}", hint))
    return problems


def _target_ms(config: ModelConfig) -> float:
    try:
        return float(parameter(config, TARGET_P99))
    except ValueError:
        return float("nan")


# --- how long it stays in memory, in a server that loads on demand


PINNED = "PINNED"
IDLE_SECS = "IDLE_SECS"


def is_pinned(config: ModelConfig) -> bool:
    return switch(config, PINNED)


def idle_seconds(config: ModelConfig) -> float | None:
    """The seconds without requests after which it is unloaded, 0 for never; None without a valid value."""
    text = parameter(config, IDLE_SECS)
    try:
        seconds = float(text) if text else -1.0
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def residence_problems(config: ModelConfig) -> list[Problem]:
    problems = switch_problems(config, PINNED, "with true the model is never unloaded to free memory for others")
    if IDLE_SECS in config.parameters and idle_seconds(config) is None:
        text = f"{IDLE_SECS} must be seconds from 0, got '{parameter(config, IDLE_SECS)}' for {config.name}"
        problems.append(Problem(f"parameters[{IDLE_SECS}]", text, "0 keeps it loaded however long it is idle"))
    return problems


PAYLOAD_LOG = "PAYLOAD_LOG"
"""The parameter that keeps the requests of a model out of the payload log, if it is false."""

# --- despite a trial of its rows


DESPITE_TRIAL = "BATCH_DESPITE_TRIAL"


def batches_despite_trial(config: ModelConfig) -> bool:
    return switch(config, DESPITE_TRIAL)


def despite_trial_problems(config: ModelConfig) -> list[Problem]:
    hint = 'give string_value: "true" to combine requests although a trial has shown that this makes answers wrong'
    return switch_problems(config, DESPITE_TRIAL, hint)


# --- histograms


def histogram_buckets(config: ModelConfig) -> dict[str, tuple[float, ...]]:
    """The bounds of every histogram of a model, ascending. The configuration is valid; unknown families are ignored."""
    buckets = dict(DEFAULT_BUCKETS)
    for control in config.model_metrics.metric_control:
        family = control.metric_identifier.family
        chosen = tuple(sorted({bound for bound in control.histogram_options.buckets if math.isfinite(bound)}))
        if family in buckets and chosen:
            buckets[family] = chosen
    return buckets


# --- warmup samples

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
            try:
                RequestValidator(spec).check(sample.request(spec))
            except InvalidRequest as error:
                raise ConfigInvalid(sample.failure(error.message), hint=error.hint) from error
            if 1 != sample.batch_size > spec.max_batch_size:
                text = f"batch size {sample.batch_size} for '{spec.name}', max allowed is {spec.max_batch_size}"
                raise ConfigInvalid(sample.failure(text))
        except ConfigInvalid as error:
            problems.append(Problem.of(f"model_warmup[{index}]", error))
    return problems


def _sample(model: str, setting: ModelWarmup, model_directory: Path) -> WarmupSample:
    try:
        inputs = tuple(
            _sample_input(model, name, each, model_directory) for name, each in sorted(setting.inputs.items())
        )
    except (MemoryError, OverflowError, ValueError) as error:  # impossible dimensions
        text = f"the warmup sample '{setting.name}' cannot be made: {error or 'not enough memory'}"
        raise ConfigInvalid(text, model=model) from error
    return WarmupSample(name=setting.name, batch_size=setting.batch_size, count=max(setting.count, 1), inputs=inputs)


def _sample_input(model: str, name: str, setting: ModelWarmup.Input, model_directory: Path) -> WarmupInput:
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
        count = element_count(dims)
        random = np.random.default_rng(_SEED).integers(0, 256, count * datatype.size, dtype=np.uint8)
        if datatype.name == "BOOL":
            random &= 1  # other bytes are not valid booleans
        array = random.view(datatype.dtype).reshape(dims)
    elif source == "input_data_file":
        array = _from_file(model, name, setting.input_data_file, datatype, dims, model_directory, is_state=False)
    else:
        raise ConfigInvalid(f"{_PREFIX}warmup setting expects input '{name}' to have input_data_type set", model=model)
    return WarmupInput(name, datatype, array)


def _zeros(datatype: Datatype, dims: Shape) -> Array:
    """Zeros or empty strings, with 1 for each variable dimension."""
    dims = tuple(1 if dim == -1 else dim for dim in dims)
    if datatype is BYTES:
        return bytes_array([b""] * element_count(dims), dims)
    return np.zeros(dims, datatype.dtype)


def _from_file(
    model: str, name: str, file_name: str, datatype: Datatype, dims: Shape, model_directory: Path, *, is_state: bool
) -> Array:
    """The first value of the state `name`, or its value in a warmup sample, from a file. Raises ConfigInvalid."""
    folder, kind, of, prefix, end = "warmup", "warmup", "input", _PREFIX, ""
    if is_state:
        folder, kind, of, prefix, end = "initial_state", "initial state", "state input", "", "."
    path = path_inside(model_directory, f"{folder}/{file_name}")
    if path is None:
        text = f"{kind} file path '{file_name}' for {of} '{name}' in model '{model}' is outside model directory"
        raise ConfigInvalid(text, model=model)
    found = _read_tensor(path, datatype, dims, name=name, model=model, prefix=prefix)
    if isinstance(found, int):
        text = f"{prefix}{folder} setting expects {element_count(dims) * datatype.size} bytes, but the data provided "
        raise ConfigInvalid(f"{text}from {file_name} only has {found} bytes{end}", model=model)
    return found


def _read_tensor(
    path: Path, datatype: Datatype, dims: Shape, *, name: str, model: str, prefix: str = ""
) -> Array | int:
    """The tensor `name` in the file at `path`, whose surplus is ignored; or the size of a file that is too short.

    Raises ConfigInvalid.
    """
    expected = element_count(dims) * datatype.size
    try:
        if expected:
            with open_file(path) as file:
                content = file.read(expected)
        else:
            content = read_file(path)
    except OSError as error:
        raise ConfigInvalid(f"failed to open text file for read {path}: {error.strerror}", model=model) from error
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
            name, datatype = state.input_name, state.datatype
            if not initial:
                # Triton does not clear the memory. Zeros reveal nothing of other requests.
                found[name] = _zeros(datatype, state.dims)
            elif initial[0].WhichOneof("state_data") == "zero_data":
                found[name] = _zeros(datatype, tuple(initial[0].dims))
            else:
                file, dims = initial[0].data_file, tuple(initial[0].dims)
                found[name] = _from_file(config.name, name, file, datatype, dims, model_directory, is_state=True)
        except (MemoryError, OverflowError, ValueError) as error:
            raise ConfigInvalid(
                f"the initial state of '{state.input_name}' cannot be made: {error or 'not enough memory'}",
                model=config.name,
            ) from error
    return found
