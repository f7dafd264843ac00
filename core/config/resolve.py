"""Resolves a validated configuration into the ModelSpec that the hot path reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from trident.core.config.batching import bucket_spec, target_p99_ns, waits_out_delay
from trident.core.config.schema import ModelConfig, ModelInput, ModelOutput, ModelQueuePolicy, ModelSequenceBatching
from trident.core.config.spec import (
    BatchingSpec,
    FlagControl,
    IdControl,
    InputSpec,
    ModelSpec,
    OutputSpec,
    QueuePolicy,
    SequenceSpec,
    StateSpec,
)
from trident.core.inference.tensors import BY_CONFIG_NUMBER, BY_NAME, Shape

_NS_PER_US = 1000
_FLAG_DATATYPES = {"int32_false_true": "INT32", "fp32_false_true": "FP32", "bool_false_true": "BOOL"}

_Control = ModelSequenceBatching.Control
_ID = _Control.CONTROL_SEQUENCE_CORRID


def resolve_sequence_spec(config: ModelConfig) -> SequenceSpec | None:
    """The sequences of a model; None for a model whose requests do not depend on each other."""
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
    controls = dict(_controls(batching))
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
        states=tuple(_state(state) for state in batching.state),
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
    """The outputs of the graph that are states."""
    return [state.output_name for state in config.sequence_batching.state]


def _utilized(direct: ModelSequenceBatching.StrategyDirect, largest: int) -> tuple[tuple[int, ...], int]:
    """The batch sizes that are executed at once, and for how many microseconds smaller ones wait."""
    utilization, delay_us = direct.minimum_slot_utilization, direct.max_queue_delay_microseconds
    if not utilization or not delay_us:
        return (largest,), 0
    # As the protobuf field a utilization is a float of 32 bits: 0.7 of 10 slots must be 7.
    fewest = max(1, math.ceil(round(utilization * largest, 4)))
    return tuple(range(fewest, largest + 1)), delay_us


def _controls(batching: ModelSequenceBatching) -> Iterator[tuple[int, tuple[str, ModelSequenceBatching.Control]]]:
    """Each kind with the name of its tensor. Validated: no kind and no tensor comes twice."""
    for entry in batching.control_input:
        for control in entry.control:
            yield control.kind, (entry.name, control)


def _flag(name: str, control: ModelSequenceBatching.Control) -> FlagControl:
    for field, datatype in _FLAG_DATATYPES.items():
        values = getattr(control, field)
        if values:
            return FlagControl(name=name, datatype=BY_NAME[datatype], false=float(values[0]), true=float(values[1]))
    raise ValueError(f"the control '{name}' has no values, which validation refuses")


def _state(state: ModelSequenceBatching.State) -> StateSpec:
    return StateSpec(
        input_name=state.input_name,
        output_name=state.output_name,
        datatype=BY_CONFIG_NUMBER[state.data_type],
        dims=tuple(state.dims),
    )


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
        waits_out_delay=waits_out_delay(config),
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
