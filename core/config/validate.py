"""Checks of a configuration: by itself, and beside the graph of its model.

Every check yields the problems that it finds, with Triton's texts where Triton has one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from math import prod

from trident.core.config.ensemble import ensemble_problems
from trident.core.config.platforms import TENSORRT, THREAD_PARAMETERS, TRIED, pads_batches, platform_problems
from trident.core.config.problem import DECOUPLED, ModelSignature, Problem, TensorSignature, cache_problem, is_plain
from trident.core.config.resolve import (
    BATCH_BUCKETS,
    DESPITE_TRIAL,
    LENGTH_BUCKETS,
    LENGTH_OUTPUTS,
    LENGTH_PAD_VALUES,
    PAYLOAD_LOG,
    batches_despite_trial,
    despite_trial_problems,
    latency_target_problems,
    names_of,
    own_inputs,
    pad_value,
    pad_values_of,
    parameter,
    residence_problems,
    resolve_sequence_spec,
    sizes_of,
    switch_problems,
)
from trident.core.config.schema import (
    BatchInput,
    BatchOutput,
    DataType,
    ModelConfig,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelQueuePolicy,
    ModelSequenceBatching,
    datatype_of,
    model_dims,
)
from trident.core.inference.tensors import BY_NAME, Shape, element_count, shape_text
from trident.core.options import DEFAULT_BUCKETS

_log = logging.getLogger("trident.config")


# Source: docs/spec/model-config.md sections 2.2 to 2.10.


AGENT_KEY = "a key is MD5:<path in the model directory>, such as MD5:1/model.onnx"


def validate_model_config(
    config: ModelConfig, model_name: str, *, completed: bool = True, layout_hint: str = ""
) -> list[Problem]:
    """Every problem of a normalised `config` of the model in directory `model_name`, without those of its instance
    groups; empty for a valid one.

    With `completed` False it leaves out the checks that need the batch size, inputs and outputs from auto-complete;
    inputs and outputs are then not checked. `layout_hint` says how the model's folder differs from that of a model
    whose backend can be told from its files.
    """
    problems: list[Problem] = []
    if not config.name:
        problems.append(Problem("name", "model configuration must specify 'name'"))
    elif config.name != model_name:
        text = (
            f"unexpected directory name '{model_name}' for model '{config.name}', directory name must equal model name"
        )
        hint = f"remove 'name' from config.pbtxt, or rename the directory to '{config.name}'"
        problems.append(Problem("name", text, hint))
    problems += platform_problems(config, model_name, layout_hint)
    if not config.HasField("version_policy"):
        problems.append(Problem("version_policy", f"must specify 'version policy' for {model_name}"))
    if config.max_batch_size < 0:
        text = f"'max_batch_size' must be non-negative value for {model_name}"
        problems.append(Problem("max_batch_size", text, "0 means a model without a batch dimension"))
    files = {"default_model_filename": config.default_model_filename}
    files |= {f"cc_model_filenames[{key}]": name for key, name in sorted(config.cc_model_filenames.items())}
    for path, name in files.items():
        if not is_plain(name):
            text = f"model file name '{name}' must stay within the version directory for {model_name}"
            problems.append(Problem(path, text))
    if completed:
        problems += tensor_problems(config, model_name)
        problems += batch_tensor_problems(config, model_name)
        if not problems:
            problems += bucket_problems(config, model_name)
    problems += scheduling_problems(config, model_name, completed=completed)
    problems += count_problems(config)
    problems += _metrics_problems(config)
    problems += residence_problems(config)
    problems += switch_problems(config, PAYLOAD_LOG, "false keeps the requests of the model out of --payload-log")
    problems += agent_problems(config)
    return problems


def agent_problems(config: ModelConfig) -> Iterator[Problem]:
    for index, agent in enumerate(config.model_repository_agents.agents):
        path = f"model_repository_agents.agents[{index}]"
        if agent.name != "checksum":
            text = f"unable to find repo agent '{agent.name}': only 'checksum' is built in"
            yield Problem(f"{path}.name", text, "remove it if the model's files can be read without it")
            continue
        for key in sorted(agent.parameters):
            algorithm, colon, _ = key.partition(":")
            if not colon:
                text = f"failed to parse key: {key}"
            elif algorithm.lower() != "md5":
                text = f"Unsupported checksum algorithm: {algorithm}"
            else:
                continue
            yield Problem(f"{path}.parameters[{key}]", text, AGENT_KEY)


def _metrics_problems(config: ModelConfig) -> Iterator[Problem]:
    for index, control in enumerate(config.model_metrics.metric_control):
        path = f"model_metrics.metric_control[{index}]"
        family = control.metric_identifier.family
        if not control.HasField("metric_identifier"):
            yield Problem(path, "metric control must specify 'metric_identifier'")
        elif not family:
            yield Problem(f"{path}.metric_identifier", "metric identifier must specify non-empty 'family'")
        elif family not in DEFAULT_BUCKETS:
            _log.warning(
                "Metric family '%s' in 'metric_identifier' is not a customizable metric in Triton core.", family
            )
        if not control.HasField("histogram_options"):
            yield Problem(path, "metric control must specify 'histogram_options'")
        elif not control.histogram_options.buckets:
            yield Problem(f"{path}.histogram_options", "histogram options must specify non-empty 'buckets'")


# Source: docs/spec/model-config.md sections 2.3 and 2.7.


_DATA_TYPE_HINT = "one of TYPE_BOOL, TYPE_[U]INT8..64, TYPE_FP16, TYPE_BF16, TYPE_FP32, TYPE_FP64, TYPE_STRING"


def tensor_problems(config: ModelConfig, model_name: str, *, completed: bool = True) -> Iterator[Problem]:
    """The problems of `input` and `output`; with `completed` False auto-complete may still enable batching."""
    batching = config.max_batch_size > 0 or not completed
    for index, entry in enumerate(config.input):
        path = f"input[{index}]"
        yield from _entry_problems(config, entry, path, "input", model_name, batching)
        if entry.format != ModelInput.FORMAT_NONE and len(entry.dims) != 3:
            yield Problem(f"{path}.format", f"model input NHWC/NCHW require 3 dims for {model_name}")
    for index, output in enumerate(config.output):
        yield from _entry_problems(config, output, f"output[{index}]", "output", model_name, batching)
    sides = {"input": [entry.name for entry in config.input], "output": [entry.name for entry in config.output]}
    for side, names in sides.items():
        for name, count in Counter(filter(None, names)).items():
            if count > 1:
                yield Problem(side, f"model {side} '{name}' is specified {count} times for {model_name}")


def batch_tensor_problems(config: ModelConfig, model_name: str) -> Iterator[Problem]:
    inputs = {entry.name: entry for entry in config.input}
    outputs = {entry.name: entry for entry in config.output}
    for index, entry in enumerate(config.batch_input):
        path = f"batch_input[{index}]"
        yield from _source_problems(entry, path, "input", set(inputs), model_name)
        if not entry.target_name:
            text = f"batch input kind '{_kind(entry)}' expects a target name, got none for {model_name}"
            yield Problem(f"{path}.target_name", text, "the input of the graph that takes the tensor")
        if entry.data_type not in (DataType.TYPE_INT32, DataType.TYPE_FP32):
            text = f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {model_name}"
            yield Problem(f"{path}.data_type", text)
    seen: set[str] = set()
    for index, scattered in enumerate(config.batch_output):
        path = f"batch_output[{index}]"
        yield from _source_problems(scattered, path, "output", set(inputs), model_name)
        for name in scattered.target_name:
            if name not in outputs:
                yield Problem(f"{path}.target_name", f"unknown target output name '{name}' for {model_name}")
            elif name in seen:
                text = f"target output name '{name}' can only be specified once for {model_name}"
                yield Problem(f"{path}.target_name", text)
            else:
                yield from _scatter_problems(scattered, outputs[name], inputs, path, model_name)
            seen.add(name)


def _entry_problems(
    config: ModelConfig, entry: ModelInput | ModelOutput, path: str, side: str, model_name: str, batching: bool
) -> Iterator[Problem]:
    label = f"model {side} '{entry.name}'"
    suffix = f" for {model_name}"
    if not entry.name:
        yield Problem(f"{path}.name", f"model {side} must specify 'name'{suffix}")
    if datatype_of(entry.data_type) is None:
        yield Problem(f"{path}.data_type", f"{label} must specify 'data_type'{suffix}", _DATA_TYPE_HINT)
    yield from _tensor_shape_problems(entry, path, label, suffix, batching)
    if entry.is_shape_tensor and config.platform != TENSORRT:
        text = f"shape tensors are only supported for TensorRT platform{suffix}"
        yield Problem(f"{path}.is_shape_tensor", text)
    if entry.is_non_linear_format_io and config.platform != TENSORRT:
        text = f"Non-linear IO format is only supported for the TensorRT platform{suffix}"
        yield Problem(f"{path}.is_non_linear_format_io", text)
    elif entry.is_non_linear_format_io and len(entry.dims) != 3:
        yield Problem(f"{path}.is_non_linear_format_io", f"Non-linear IO format {side} requires 3 dims{suffix}")


def _tensor_shape_problems(
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
    if element_count(dim for dim in dims if dim != -1) > _MOST_ELEMENTS:
        text = f"element count for tensor '{entry.name}' exceeds maximum size of {_MOST_ELEMENTS}{suffix}"
        yield Problem(f"{path}.dims", text)
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


_MOST_ELEMENTS = 2**63 - 1


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


def _scatter_problems(
    entry: BatchOutput, output: ModelOutput, inputs: Mapping[str, ModelInput], path: str, model_name: str
) -> Iterator[Problem]:
    """A variable dimension of a scattered output takes the size that its source has at the same position."""
    source = inputs.get(entry.source_input[0]) if len(entry.source_input) == 1 else None
    if source is None:
        return
    given, wanted = model_dims(source), model_dims(output)
    if -1 in wanted[len(given) :]:
        text = f"batch output '{output.name}' has a variable dimension at position {len(given) + 1} or later, where "
        text += f"its source input '{source.name}' has no dimension, for {model_name}"
        hint = f"the dims are {shape_text(wanted)} of the output and {shape_text(given)} of the input"
        yield Problem(f"{path}.target_name", text, hint)


def _source_problems(
    entry: BatchInput | BatchOutput, path: str, side: str, inputs: set[str], model_name: str
) -> Iterator[Problem]:
    label = f"batch {side} kind '{_kind(entry)}'"
    sources = list(entry.source_input)
    if entry.kind not in type(entry).Kind.values():
        known = ", ".join(type(entry).Kind.keys())
        yield Problem(f"{path}.kind", f"unknown {label} for {model_name}", f"known are: {known}")
    elif len(sources) != 1:
        text = f"{label} expects 1 source input, got {len(sources)} for {model_name}"
        yield Problem(f"{path}.source_input", text)
    elif sources[0] not in inputs:
        yield Problem(f"{path}.source_input", f"unknown source input name '{sources[0]}' for {model_name}")


def _kind(entry: BatchInput | BatchOutput | ModelSequenceBatching.Control) -> str:
    kinds = type(entry).Kind
    return kinds.Name(entry.kind) if entry.kind in kinds.values() else str(entry.kind)


# Source: docs/spec/schedulers.md sections 3.2 and 3.4; docs/spec/model-config.md sections 2.2 and 2.10.


def scheduling_problems(config: ModelConfig, model_name: str, *, completed: bool = True) -> Iterator[Problem]:
    """The problems of the scheduler; with `completed` False auto-complete may still fill max_batch_size."""
    if config.HasField("dynamic_batching"):
        yield from _dynamic_batching_problems(config, model_name)
    yield from latency_target_problems(config, completed=completed)
    if config.backend in TRIED:
        yield from despite_trial_problems(config)
    yield from sequence_problems(config, model_name)
    yield from ensemble_problems(config, model_name)
    if config.response_cache.enable:
        if config.model_transaction_policy.decoupled:
            yield cache_problem(model_name, DECOUPLED)
        if config.HasField("sequence_batching"):
            yield cache_problem(model_name, "sequence batching scheduler")


def _dynamic_batching_problems(config: ModelConfig, model_name: str) -> Iterator[Problem]:
    batching, suffix = config.dynamic_batching, f" for {model_name}"
    yield from _preferred_size_problems(
        "dynamic_batching.preferred_batch_size",
        f"dynamic batching preferred size must be {{}}{suffix}",
        batching.preferred_batch_size,
        config,
    )
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        text = f"default priority level must be in range [1, {levels}]{suffix}"
        yield Problem("dynamic_batching.default_priority_level", text)
    if levels and any(not 1 <= level <= levels for level in batching.priority_queue_policy):
        text = f"priority queue policy must have priority level in range [1, {levels}]{suffix}"
        yield Problem("dynamic_batching.priority_queue_policy", text)
    if not batching.preserve_ordering:
        return
    if levels > 1:
        text = f"Only one priority level is allowed when 'preserve_ordering' is true{suffix}"
        yield Problem("dynamic_batching.priority_levels", text)
    policies = {"default_queue_policy": batching.default_queue_policy}
    for level, policy in sorted(batching.priority_queue_policy.items()):
        policies[f"priority_queue_policy[{level}]"] = policy
    for name, policy in policies.items():
        if policy.timeout_action == ModelQueuePolicy.DELAY and policy.default_timeout_microseconds != 0:
            text = f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true{suffix}"
            yield Problem(f"dynamic_batching.{name}.timeout_action", text)


def _preferred_size_problems(path: str, text: str, sizes: Sequence[int], config: ModelConfig) -> Iterator[Problem]:
    if any(size <= 0 for size in sizes):
        yield Problem(path, text.format("positive"))
    limit = config.max_batch_size
    if any(size > limit for size in sizes):
        yield Problem(path, text.format("<= max batch size"), f"max_batch_size is {limit}")


# Source: docs/spec/schedulers.md section 3.4.


_FALSE_TRUE = ("int32_false_true", "fp32_false_true", "bool_false_true")
_QUOTED = "'int32_false_true', 'fp32_false_true' {} 'bool_false_true'"
_ID_DATATYPES = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")
_FLAG_HINT = "for example: int32_false_true: [ 0, 1 ]"


def sequence_problems(config: ModelConfig, model_name: str) -> Iterator[Problem]:
    if not config.HasField("sequence_batching"):
        return
    suffix = f" for {model_name}"
    batching = config.sequence_batching
    # Written so that it also finds a NaN.
    if batching.HasField("direct") and not 0 <= batching.direct.minimum_slot_utilization <= 1:
        text = f"sequence batching minimum slot utilization must be in range (0.0, 1.0]{suffix}"
        yield Problem("sequence_batching.direct.minimum_slot_utilization", text)
    if batching.HasField("oldest"):
        yield from _preferred_size_problems(
            "sequence_batching.oldest.preferred_batch_size",
            f"sequence batching preferred batch size must be {{}}{suffix}",
            batching.oldest.preferred_batch_size,
            config,
        )
    yield from _control_problems(batching, suffix)
    yield from _sequence_state_problems(config)
    yield from _client_problems(config, suffix)


def _control_problems(batching: ModelSequenceBatching, suffix: str) -> Iterator[Problem]:
    tensors: set[str] = set()
    kinds: set[int] = set()
    for index, entry in enumerate(batching.control_input):
        path = f"sequence_batching.control_input[{index}]"
        if not entry.name:
            yield Problem(f"{path}.name", f"sequence batching control tensor must have a name{suffix}")
        elif entry.name in tensors or len(entry.control) > 1:
            text = f"sequence batching control tensor '{entry.name}' is specified for multiple control kinds{suffix}"
            yield Problem(path, text)
        tensors.add(entry.name)
        for number, control in enumerate(entry.control):
            kind = _kind(control)
            if control.kind in kinds:
                yield Problem(path, f"sequence batching specifies multiple {kind} tensors{suffix}")
            kinds.add(control.kind)
            where = f"{path}.control[{number}]"
            if control.kind == ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID:
                if any(getattr(control, name) for name in _FALSE_TRUE):
                    yield Problem(
                        where, f"sequence batching must not specify either {_QUOTED.format('or')} for {kind}{suffix}"
                    )
                datatype = datatype_of(control.data_type)
                if datatype is None or datatype.name not in _ID_DATATYPES:
                    text = f"unexpected data type for control {kind}{suffix}. Allowed data types are "
                    allowed = "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
                    yield Problem(f"{where}.data_type", text + allowed)
            else:
                yield from _flag_problems(control, where, kind, suffix)


def _flag_problems(control: ModelSequenceBatching.Control, path: str, kind: str, suffix: str) -> Iterator[Problem]:
    given = [name for name in _FALSE_TRUE if getattr(control, name)]
    if not given:
        text = f"sequence batching must specify either {_QUOTED.format('or')} for {kind}{suffix}"
        yield Problem(path, text, _FLAG_HINT)
    elif len(given) > 1:
        text = f"sequence batching specifies more than one from {_QUOTED.format('and')} for {kind}{suffix}"
        yield Problem(path, text, _FLAG_HINT)
    elif len(getattr(control, given[0])) != 2:
        text = f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind}{suffix}"
        yield Problem(f"{path}.{given[0]}", text, _FLAG_HINT)


def _sequence_state_problems(config: ModelConfig) -> Iterator[Problem]:
    inputs: set[str] = set()
    outputs: set[str] = set()
    for index, state in enumerate(config.sequence_batching.state):
        path = f"sequence_batching.state[{index}]"
        name = state.input_name
        if not name or not state.output_name:
            text = f"a state of model '{config.name}' must specify 'input_name' and 'output_name'"
            yield Problem(path, text)
        if name in inputs:
            yield Problem(f"{path}.input_name", f"State input name '{name}' specified more than once.")
        if state.output_name in outputs:
            text = f"State output name '{state.output_name}' specified more than once."
            yield Problem(f"{path}.output_name", text)
        inputs.add(name)
        outputs.add(state.output_name)
        if datatype_of(state.data_type) is None:
            yield Problem(f"{path}.data_type", f"state '{name}' of model '{config.name}' must specify 'data_type'")
        if any(dim < 1 and dim != -1 for dim in state.dims):
            text = f"state '{name}' of model '{config.name}' has a dimension that is neither -1 nor at least 1"
            yield Problem(f"{path}.dims", text)
        yield from _memory_problems(config, state, path)
        yield from _initial_problems(state, path)


def _memory_problems(config: ModelConfig, state: ModelSequenceBatching.State, path: str) -> Iterator[Problem]:
    if not state.use_growable_memory:
        return
    where = f"{path}.use_growable_memory"
    if not state.use_same_buffer_for_input_output:
        text = "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name "
        yield Problem(where, f"{text}'{state.input_name}'.", "set use_same_buffer_for_input_output: true as well")
    if any(group.kind != ModelInstanceGroup.KIND_GPU for group in config.instance_group):
        text = "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change the "
        text += "instance type to KIND_GPU or set 'use_growable_memory' to false for state input "
        yield Problem(where, f"{text}'{state.input_name}'.")


def _initial_problems(state: ModelSequenceBatching.State, path: str) -> Iterator[Problem]:
    where, name = f"{path}.initial_state", state.input_name
    if len(state.initial_state) > 1:
        text = f"initial_state field for state input '{name}' must contain exactly one or zero element. Found "
        yield Problem(where, f"{text}'{len(state.initial_state)}' elements.")
        return
    for initial in state.initial_state:
        if initial.data_type != state.data_type:
            text = f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
            yield Problem(f"{where}.data_type", text)
        if not initial.name:
            text = f"Field 'name' must be set when using initial_state for state input '{name}'."
            yield Problem(f"{where}.name", text)
        yield from _initial_dims_problems(initial.dims, state.dims, f"{where}.dims", name)
        if initial.WhichOneof("state_data") is None:
            text = f"initial_state setting expects state'{name}' to have state_data set"
            yield Problem(where, text, "set zero_data: true, or data_file to a file in the folder initial_state")


def _initial_dims_problems(given: Sequence[int], dims: Sequence[int], path: str, name: str) -> Iterator[Problem]:
    if len(given) != len(dims):
        text = "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
        yield Problem(path, f"{text}'{name}'. {len(given)} != {len(dims)}")
        return
    for mine, wanted in zip(given, dims, strict=True):
        if mine < 0:
            text = f"'initial_state' field for state input name '{name}' contains variable dimensions."
            yield Problem(path, text)
            return
        if wanted not in (-1, mine):
            text = f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. "
            yield Problem(path, f"{text}{mine} != {wanted}")
            return


def _client_problems(config: ModelConfig, suffix: str) -> Iterator[Problem]:
    """Controls and states come from the scheduler, so clients cannot send them as well."""
    batching = config.sequence_batching
    controls = [entry.name for entry in batching.control_input]
    states = [state.input_name for state in batching.state]
    for index, entry in enumerate(config.input):
        for what, names in (("control", controls), ("state", states)):
            if entry.name in names:
                text = f"sequence batching {what} tensor '{entry.name}' must not be a model input{suffix}"
                yield Problem(f"input[{index}].name", text, "clients do not send it: remove it from 'input'")
    for name in states:
        if name in controls:
            text = f"sequence batching tensor '{name}' is specified as control and as state{suffix}"
            yield Problem("sequence_batching.state", text)


# A typing error here would keep a load busy, or take all memory, without a word. Triton has no bounds.
# Source: docs/spec/model-config.md section "In Trident".


MOST_INSTANCES = 1024
MOST_BYTES = 4 << 30
"""The largest size of one item of a warmup sample, or of one state, that is made at the load."""
MOST_EXECUTIONS = 10_000
"""Limit for all warmup samples, or combinations of buckets, on one instance at the load."""
MOST_REQUESTS = 1_000_000
"""Limit for all warmup samples on one instance at the load."""
MOST_THREADS = 1024
"""Limit for one session, or for one of its pools."""

_REFERENCE_BYTES = 8  # of a string


def count_problems(config: ModelConfig) -> Iterator[Problem]:
    instances = [0 if group.passive else group.count * max(1, len(group.gpus)) for group in config.instance_group]
    executions = [max(1, sample.count) if sample.batch_size else 0 for sample in config.model_warmup]
    requests = [each * sample.batch_size for each, sample in zip(executions, config.model_warmup, strict=True)]
    sizes = {
        f"model_warmup[{index}].inputs": sum(_bytes(entry.data_type, entry.dims) for entry in sample.inputs.values())
        for index, sample in enumerate(config.model_warmup)
    }
    for number, state in enumerate(config.sequence_batching.state):
        all_dims = (state.dims, *(initial.dims for initial in state.initial_state))
        sizes[f"sequence_batching.state[{number}].dims"] = max(_bytes(state.data_type, dims) for dims in all_dims)
    amounts = [
        _total("instance_group[{}].count", instances, MOST_INSTANCES, "instances"),
        _total("model_warmup[{}].count", executions, MOST_EXECUTIONS, "executions"),
        _total("model_warmup[{}].batch_size", requests, MOST_REQUESTS, "requests"),
    ]
    amounts += [(path, size, MOST_BYTES, "bytes for one item") for path, size in sizes.items()]
    for name in THREAD_PARAMETERS.get(config.backend, ()):
        with suppress(ValueError):  # which the backend refuses
            amounts.append((_path(name), int(parameter(config, name) or "0"), MOST_THREADS, "threads"))
    for path, amount, most, what in amounts:
        if amount > most:
            text = f"'{path}' of model '{config.name}' means {amount} {what}, more than the maximum of {most}"
            yield Problem(path, text)


def _total(path: str, counts: Sequence[int], most: int, what: str) -> tuple[str, int, int, str]:
    """The amount of all entries up to the first at which it is more than `most`, in whose path it is reported."""
    index, total = next(((i, total) for i, total in enumerate(accumulate(counts)) if total > most), (0, 0))
    return path.format(index), total, most, what


def _bytes(data_type: int, dims: Iterable[int]) -> int:
    """The size of a tensor with 1 for each variable dimension; 0 for one of an unknown datatype."""
    datatype = datatype_of(data_type)
    if datatype is None:
        return 0
    return element_count(max(dim, 1) for dim in dims) * (datatype.size or _REFERENCE_BYTES)


# Source: docs/ragged-batching.md; docs/spec/model-config.md section "In Trident".


_LARGEST = 2**31 - 1
# Their tensors have a row for each item, so that they can be padded with the rows.
_KINDS_BY_ITEM = (BatchInput.BATCH_ITEM_SHAPE, BatchInput.BATCH_ITEM_SHAPE_FLATTEN)


def bucket_problems(config: ModelConfig, model_name: str) -> Iterator[Problem]:
    if not pads_batches(config):
        return
    wrong_sizes = [
        *_size_problems(config, BATCH_BUCKETS, model_name),
        *_size_problems(config, LENGTH_BUCKETS, model_name),
    ]
    if wrong_sizes:
        yield from wrong_sizes
        return
    combinations = prod(len(sizes_of(parameter(config, name))) or 1 for name in (BATCH_BUCKETS, LENGTH_BUCKETS))
    if combinations > MOST_EXECUTIONS:
        text = f"'{_path(BATCH_BUCKETS)}' of model '{model_name}' means {combinations} combinations, more than the "
        hint = "each is executed at the load: write fewer sizes"
        yield Problem(_path(BATCH_BUCKETS), f"{text}maximum of {MOST_EXECUTIONS}", hint)
    if parameter(config, BATCH_BUCKETS):
        largest, most = sizes_of(parameter(config, BATCH_BUCKETS))[-1], config.max_batch_size
        if most == 0:
            text = f"{BATCH_BUCKETS} needs a model that batches, and max_batch_size is 0 for {model_name}"
            yield Problem(_path(BATCH_BUCKETS), text, f"set max_batch_size to {largest}, or remove {BATCH_BUCKETS}")
        elif largest != most:
            text = f"the largest size of {BATCH_BUCKETS} is {largest}, but max_batch_size is {most} for {model_name}"
            hint = f"they must be equal: set max_batch_size to {largest}, or end the sizes with {most}"
            yield Problem(_path(BATCH_BUCKETS), text, hint)
    if parameter(config, LENGTH_BUCKETS):
        yield from _length_problems(config, model_name)
    else:
        for name in (LENGTH_PAD_VALUES, LENGTH_OUTPUTS):
            if parameter(config, name):
                text = f"{name} is without effect, because there is no {LENGTH_BUCKETS}, for {model_name}"
                yield Problem(_path(name), text, f"add {LENGTH_BUCKETS}, or remove {name}")
    if parameter(config, BATCH_BUCKETS) or parameter(config, LENGTH_BUCKETS):
        yield from _shape_problems(config, model_name)


def _size_problems(config: ModelConfig, name: str, model_name: str) -> Iterator[Problem]:
    text = parameter(config, name)
    if name in config.parameters and not text.strip():
        yield Problem(_path(name), f"{name} is empty for {model_name}", 'sizes with commas, such as "1,4,16"')
        return
    try:
        sizes = sizes_of(text)
    except ValueError:
        yield Problem(_path(name), f"{name} '{text}' is not a list of sizes for {model_name}", 'such as "1,4,16"')
        return
    ascending = tuple(sorted(set(sizes)))
    if sizes and sizes[0] < 1:
        yield Problem(_path(name), f"{name} has a size below 1 for {model_name}", "sizes are 1 or more")
    elif sizes != ascending:
        fitting = ",".join(map(str, ascending))
        yield Problem(_path(name), f"{name} '{text}' is not ascending for {model_name}", f'write "{fitting}"')
    elif sizes and sizes[-1] > _LARGEST:
        text = f"{name} has the size {sizes[-1]}, larger than any dimension, for {model_name}"
        yield Problem(_path(name), text, f"{_LARGEST} at most")


def _length_problems(config: ModelConfig, model_name: str) -> Iterator[Problem]:
    variable = {entry.name: entry for entry in config.input if -1 in entry.dims}
    if not variable:
        text = f"{LENGTH_BUCKETS} needs an input with a variable dimension for {model_name}"
        yield Problem(_path(LENGTH_BUCKETS), text, "write -1 in the dims of the input that is to be padded")
    for entry in variable.values():
        if list(entry.dims).count(-1) > 1:
            text = f"input '{entry.name}' has several variable dimensions, and {LENGTH_BUCKETS} pads one, "
            hint = "fix the others in dims"
            yield Problem(_path(LENGTH_BUCKETS), f"{text}for {model_name}", hint)
        if entry.HasField("reshape"):
            text = f"input '{entry.name}' has a reshape, and {LENGTH_BUCKETS} pads only what the graph takes as it is, "
            yield Problem(_path(LENGTH_BUCKETS), f"{text}for {model_name}", "write the dims of the graph")
    yield from _pad_value_problems(config, variable, model_name)
    outputs = {entry.name: entry for entry in config.output}
    for name in names_of(parameter(config, LENGTH_OUTPUTS)):
        if name not in outputs:
            text = f"{LENGTH_OUTPUTS} names '{name}', which is not an output of {model_name}"
            yield Problem(_path(LENGTH_OUTPUTS), text, f"the outputs are: {', '.join(outputs)}")
        elif -1 not in outputs[name].dims:
            text = f"{LENGTH_OUTPUTS} names '{name}', which has no variable dimension, for {model_name}"
            yield Problem(_path(LENGTH_OUTPUTS), text, "remove it: there is nothing to cut")


def _pad_value_problems(config: ModelConfig, variable: dict[str, ModelInput], model_name: str) -> Iterator[Problem]:
    try:
        values = pad_values_of(parameter(config, LENGTH_PAD_VALUES))
    except ValueError as error:
        text = f"{LENGTH_PAD_VALUES}: {error} for {model_name}"
        yield Problem(_path(LENGTH_PAD_VALUES), text, 'such as "input_ids=1, scores=-inf"')
        return
    for name, text in values.items():
        datatype = datatype_of(variable[name].data_type) if name in variable else None
        if datatype is None:
            message = f"{LENGTH_PAD_VALUES} names '{name}', which is not an input with a variable dimension, "
            hint = f"these are: {', '.join(variable)}"
            yield Problem(_path(LENGTH_PAD_VALUES), f"{message}for {model_name}", hint)
            continue
        try:
            pad_value(datatype, text)
        except ValueError as error:
            message = f"{LENGTH_PAD_VALUES}: input '{name}' of {datatype.config_name} cannot hold '{text}'"
            yield Problem(_path(LENGTH_PAD_VALUES), f"{message} for {model_name}", str(error))


def _shape_problems(config: ModelConfig, model_name: str) -> Iterator[Problem]:
    for index, entry in enumerate(config.input):
        if entry.allow_ragged_batch:
            text = f"input '{entry.name}' is ragged, and batch buckets cannot pad it, for {model_name}"
            yield Problem(f"input[{index}].allow_ragged_batch", text, "use either ragged inputs or buckets")
        if entry.is_shape_tensor:
            text = f"input '{entry.name}' is a shape tensor, whose values batch buckets would pad, for {model_name}"
            hint = "remove the buckets: a plan with shape tensors decides about shapes itself"
            yield Problem(f"input[{index}].is_shape_tensor", text, hint)
    for index, batch_input in enumerate(config.batch_input):
        if batch_input.kind not in _KINDS_BY_ITEM:
            kind = BatchInput.Kind.Name(batch_input.kind)
            text = f"batch input kind '{kind}' has an element for each request, which batch buckets cannot pad, "
            hint = "BATCH_ITEM_SHAPE tells the model the real length of each row"
            yield Problem(f"batch_input[{index}].kind", f"{text}for {model_name}", hint)
    if config.HasField("sequence_batching"):
        text = f"the rows of sequences belong to their slots, so that batch buckets cannot add rows, for {model_name}"
        yield Problem("sequence_batching", text, "remove the buckets, or the sequence batching")
    if config.batch_output:
        text = f"a batch output has no fixed shape, so that it cannot be used with batch buckets for {model_name}"
        yield Problem("batch_output", text, "outputs are cut to the real rows and lengths without it")


def _path(name: str) -> str:
    return f"parameters[{name}]"


# Contradictions between a configuration and the graph. Source: docs/spec/onnxruntime-backend.md section 5.4.


def validate_against_signature(config: ModelConfig, signature: ModelSignature, model_name: str) -> list[Problem]:
    """Every contradiction between a validated `config` and `signature`; empty if they fit."""
    problems = [*control_problems(config, signature, model_name)]
    graph_names = {tensor.name for tensor in signature.inputs}
    states = {state.input_name for state in config.sequence_batching.state}
    expected = sum(not entry.optional for entry in config.input)
    expected += sum(name in states or name in graph_names for name in own_inputs(config))
    expected += sum(len(entry.target_name) for entry in config.batch_input)
    provided = len(signature.inputs)
    if expected != provided:
        text = (
            f"unable to load model '{model_name}', configuration expects {expected} inputs, model provides {provided}"
        )
        names = ", ".join(sorted(tensor.name for tensor in signature.inputs))
        problems.append(Problem("input", text, f"the inputs of the model are: {names}"))
    for index, entry in enumerate(config.input):
        allowed = signature.optional_inputs if entry.optional else signature.inputs
        if entry.optional and config.max_batch_size > 0 and not signature.batches_optional:
            text = (
                f"unable to load model '{model_name}', optional input '{entry.name}' is not supported for models that "
            )
            problems.append(Problem(f"input[{index}].optional", f"{text}support batching"))
        problems += _input_problems(config, entry, allowed, f"input[{index}]", model_name)
    for index, batch_input in enumerate(config.batch_input):
        for name in batch_input.target_name:
            problems += _batch_input_problems(batch_input, name, signature, f"batch_input[{index}]", model_name)
    # These are split by the shape of their source input, so that the graph's dimensions do not apply.
    scatter = BatchOutput.BATCH_SCATTER_WITH_INPUT_SHAPE
    scattered = {name for entry in config.batch_output if entry.kind == scatter for name in entry.target_name}
    for index, output in enumerate(config.output):
        path = f"output[{index}]"
        tensor = _named(signature.outputs, output.name)
        if tensor is None:
            problems.append(_unexpected("output", output.name, signature.outputs, f"{path}.name"))
            continue
        problems += _datatype_problems("output", output, tensor, path, model_name)
        if output.name not in scattered:
            problems += _dims_problems(config, output, tensor, path, model_name, wider=True)
    for index, state in enumerate(config.sequence_batching.state):
        problems += _signature_state_problems(config, state, signature, f"sequence_batching.state[{index}]", model_name)
    return problems


def control_problems(config: ModelConfig, signature: ModelSignature, model_name: str) -> Iterator[Problem]:
    sequence = resolve_sequence_spec(config)
    if sequence is None:
        return
    unable = f"unable to load model '{model_name}', sequence control"
    tensors = {tensor.name: tensor for tensor in signature.inputs}
    for control in (sequence.start, sequence.end, sequence.ready, sequence.correlation_id):
        if control is None:
            continue
        path, name, datatype = "sequence_batching.control_input", control.name, control.datatype
        tensor = tensors.get(name)
        if tensor is None:
            text = f"configuration specified sequence control '{name}', but model does not provide that input"
            yield Problem(path, text, f"the inputs of the model are: {', '.join(sorted(tensors))}")
            continue
        dims = tensor.shape[1:] if config.max_batch_size > 0 else tensor.shape
        # A variable dimension of the graph can be 1.
        if len(dims) != 1 or dims[0] not in (1, -1):
            text = f"{unable} '{name}' in model has dims {shape_text(dims)} but dims [1] is expected"
            yield Problem(path, text)
        if tensor.datatype != datatype.name:
            row = BY_NAME.get(tensor.datatype)
            has = row.onnx_name.removeprefix("tensor(").removesuffix(")").upper() if row else "an unknown type"
            text = f"{unable} '{name}', the model expects data-type {has} but the model configuration specifies "
            yield Problem(path, f"{text}data-type {DataType.Name(datatype.config_number)}")


def batching_problem(config: ModelConfig, signature: ModelSignature) -> Problem | None:
    """The warning that `config` batches requests which the graph does not keep apart; None if it does not."""
    fault = signature.batching_fault
    if fault is None or config.max_batch_size == 0:
        return None
    seen = f"a trial has shown that the graph does not keep the requests of a batch apart: {fault.seen}"
    cure = f"set max_batch_size to 0 and let the dims begin with the first dimension, or {fault.cure}"
    if batches_despite_trial(config):
        text = f"requests that are batched fail, or get wrong answers, as {DESPITE_TRIAL} wants"
    else:
        text = "so each request is executed alone, and no batch is padded"
        cure = f"{cure}; the parameter {DESPITE_TRIAL}, set to true, batches them nevertheless"
    return Problem("max_batch_size", f"{seen}; {text}", cure)


def separates_requests(config: ModelConfig, signature: ModelSignature) -> bool:
    """Return true if each request runs alone because of a trial. Logs a warning that it does, or that it should."""
    problem = batching_problem(config, signature)
    if problem is not None:
        _log.warning("model '%s': %s (%s)", config.name, problem.message, problem.hint)
    return problem is not None and not batches_despite_trial(config)


def _input_problems(
    config: ModelConfig, entry: ModelInput, allowed: tuple[TensorSignature, ...], path: str, model_name: str
) -> Iterator[Problem]:
    tensor = _named(allowed, entry.name)
    if tensor is None:
        yield _unexpected("input", entry.name, allowed, f"{path}.name")
        return
    yield from _datatype_problems("input", entry, tensor, path, model_name)
    if not entry.allow_ragged_batch:
        yield from _dims_problems(config, entry, tensor, path, model_name, narrower=True)
        return
    ragged = f"unable to load model '{model_name}', configuration expects model provides input with shape [-1] "
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


def _signature_state_problems(
    config: ModelConfig, state: ModelSequenceBatching.State, signature: ModelSignature, path: str, model_name: str
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
    dims = model_dims(entry)
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
    """Return what to write for `tensor`.

    A configuration has no empty dims: a tensor of the batch dimension alone, such as a label per row, needs a reshape.
    """
    dims = [dim or -1 for dim in tensor.shape[batching:]]
    if batching and not dims:
        return "write dims: [ 1 ] reshape { shape: [ ] }"
    return f"write dims: {shape_text(dims or [1])}{' and no reshape' if entry.HasField('reshape') else ''}"


def _fits(full: Shape, provided: Shape, narrower: bool, wider: bool) -> bool:
    """Return true if configured dimensions match the graph's: equal, a number for a variable one (`narrower`), or a
    variable one for a number (`wider`).

    What a graph says of an output becomes more precise as it is optimized, so that its file, in which people look the
    dimensions up, may have -1 where the session knows the number. A configuration cannot express the dimension 0 of a
    graph; it has -1 in its place.
    """
    return len(full) == len(provided) and all(
        mine == (theirs or -1) or (narrower and theirs == -1) or (wider and mine == -1)
        for mine, theirs in zip(full, provided, strict=True)
    )


def _named(tensors: Iterable[TensorSignature], name: str) -> TensorSignature | None:
    return next((tensor for tensor in tensors if tensor.name == name), None)


def _unexpected(side: str, name: str, tensors: Iterable[TensorSignature], path: str) -> Problem:
    allowed = ", ".join(sorted(tensor.name for tensor in tensors))
    return Problem(path, f"unexpected inference {side} '{name}', allowed {side}s are: {allowed}")


# Settings that have no effect. Source: docs/spec/model-config.md, "In Trident".


def settings_without_effect(written: ModelConfig) -> list[Problem]:
    return [problem for is_set, problem in _without_effect(written) if is_set]


def _without_effect(config: ModelConfig) -> Iterator[tuple[object, Problem]]:
    """Yield each setting without effect: a true value if it is set, and its problem."""
    optimization = config.optimization
    is_plan = TENSORRT in (config.platform, f"{config.backend}_plan")
    # Without an instance group the server chooses the devices.
    groups = config.instance_group
    is_cpu_only = bool(groups) and all(group.kind == ModelInstanceGroup.KIND_CPU for group in groups)
    path = "optimization.priority"
    text = "The threads of all models have the priority of the server's process."
    yield optimization.priority and not is_plan, Problem(path, text)
    cuda = optimization.cuda
    is_used = is_plan and cuda == type(cuda)(busy_wait_events=cuda.busy_wait_events)
    text = "Only busy_wait_events has an effect, and only for TensorRT plans: CUDA graphs are not captured."
    yield optimization.HasField("cuda") and not is_used, Problem("optimization.cuda", text)
    accelerators = optimization.execution_accelerators.gpu_execution_accelerator
    path = "optimization.execution_accelerators.gpu_execution_accelerator"
    hint = "remove it, or add a group of KIND_GPU"
    yield accelerators and is_cpu_only, Problem(path, "No instance group is on a GPU.", hint)
    for name in ("input_pinned_memory", "output_pinned_memory"):
        is_off = optimization.HasField(name) and not getattr(optimization, name).enable
        text = "Pinned memory is used for the batches of a GPU in any case."
        yield is_off, Problem(f"optimization.{name}", text)
    for name, text in (
        ("gather_kernel_buffer_threshold", "Batches are gathered on the CPU, never by a kernel."),
        ("eager_batching", "A batch is formed when an instance is free, not while it is busy."),
    ):
        yield getattr(optimization, name), Problem(f"optimization.{name}", text)
    for index, group in enumerate(groups):
        for name, text in (
            ("host_policy", "There are no host policies: threads are not bound to cores or nodes."),
            ("secondary_devices", "Instances use only the device of their group."),
            ("passive", "A passive group gets no instances, because nothing would use them."),
        ):
            yield getattr(group, name), Problem(f"instance_group[{index}].{name}", text)
    text = "These files are for GPUs by compute capability, and no instance group is on a GPU."
    yield config.cc_model_filenames and is_cpu_only, Problem("cc_model_filenames", text)
    name, text = _STRATEGY, "Custom batching libraries are not loaded: the dynamic batcher forms the batches."
    yield name in config.parameters, Problem(_path(name), text)
    for index, sample in enumerate(config.model_warmup):
        path = f"model_warmup[{index}].batch_size"
        yield sample.batch_size == 0, Problem(path, "A sample with a batch size of 0 is not run.", "1 or more")


_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"
