"""Resolves a validated configuration into the ModelSpec that the hot path reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from core.config.buckets import bucket_spec
from core.config.latency_target import target_p99_ns
from core.config.model_spec import BatchingSpec, InputSpec, ModelSpec, OutputSpec, QueuePolicy
from core.config.queue_delay import waits_out_delay
from core.config.schema import ModelConfig, ModelInput, ModelOutput, ModelQueuePolicy
from core.config.sequence.resolve import resolve_sequence_spec
from core.inference.tensors import BY_CONFIG_NUMBER, Shape

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
