"""The part of a model configuration that the hot path needs, resolved once at load into frozen plain data.

Front ends know no other part of a model's configuration. The data can be sent to another process as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace

from trident.core.inference.tensors import Datatype, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input. `dims` are the dimensions that clients send, without the batch dimension.

    `model_dims` are those that the backend receives (`reshape`); None without a reshape. A shape tensor has no batch
    dimension: all requests of a batch have the same values.
    """

    name: str
    datatype: Datatype
    dims: Shape
    model_dims: Shape | None = None
    optional: bool = False
    allow_ragged_batch: bool = False
    is_shape_tensor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """One output. `dims` are those that clients receive, `model_dims` those that the backend produces (`reshape`)."""

    name: str
    datatype: Datatype
    dims: Shape
    model_dims: Shape | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """ModelQueuePolicy (docs/spec/schedulers.md section 3.2). Times are in nanoseconds, 0 means none;
    a size of 0 means no limit.
    """

    delay_on_timeout: bool = False
    default_timeout_ns: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSpec:
    """`dynamic_batching`, resolved. 0 `priority_levels` means one level without priorities.

    Levels that are not in `level_policies` have the default policy: there may be 2**64 of them.

    With `target_p99_ns`, which is 0 for none, the batcher sets its delay and the size of its batches itself.
    """

    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_ns: int = 0
    target_p99_ns: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_policy: QueuePolicy = QueuePolicy()
    level_policies: dict[int, QueuePolicy] = field(default_factory=dict)

    @property
    def policies(self) -> tuple[QueuePolicy, ...]:
        return (self.default_policy, *self.level_policies.values())

    @property
    def may_expire(self) -> bool:
        return any(policy.default_timeout_ns and not policy.delay_on_timeout for policy in self.policies)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSpec:
    """The sizes to which a batch is padded, ascending. Without `batch_sizes` it keeps its rows; its largest is the
    maximum batch size.

    `lengths` are those of `axes`: the variable dimension of each input that has one, the batch dimension counted.
    `pad_values` are texts, by input; other inputs are padded with 0 or empty strings. `outputs` are those whose
    variable dimensions are said to be as long as the inputs.
    """

    batch_sizes: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    axes: dict[str, int] = field(default_factory=dict)
    pad_values: dict[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    def rows(self, items: int) -> int:
        """The rows of a padded batch with that many items, at most the largest size."""
        sizes = self.batch_sizes
        return sizes[bisect_left(sizes, items)] if sizes else items

    def length(self, longest: int) -> int:
        """The length to which a batch is padded whose longest input is so long; 0 if no length is padded."""
        lengths = self.lengths
        return lengths[bisect_left(lengths, longest)] if lengths else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One version of a model. Without `batching` and `sequence` one request is executed at a time.

    Without `buckets` no batch is padded.
    `response_cache`: its responses are cached, if the server has a cache.
    `counts_arrival`: a batch may wait for requests, so it matters when each of them arrived.
    """

    name: str
    version: int
    platform: str
    backend: str
    max_batch_size: int
    inputs: dict[str, InputSpec]
    outputs: dict[str, OutputSpec]
    batching: BatchingSpec | None = None
    sequence: SequenceSpec | None = None
    buckets: BucketSpec | None = None
    decoupled: bool = False
    response_cache: bool = False
    counts_arrival: bool = False
    metric_tags: dict[str, str] = field(default_factory=dict)

    @property
    def preserves_ordering(self) -> bool:
        return any(part is not None and part.preserve_ordering for part in (self.batching, self.sequence))

    def separated(self) -> ModelSpec:
        """The same, but no execution has rows of two requests, or rows that no client sent."""
        batching, sequence, buckets = self.batching, self.sequence, self.buckets
        if batching is not None:
            batching = replace(batching, preferred_batch_sizes=(1,), max_queue_delay_ns=0, target_p99_ns=0)
        if sequence is not None:
            sequence = replace(sequence, is_direct=False, preferred_batch_sizes=(1,), max_queue_delay_ns=0)
        if buckets is not None:
            buckets = replace(buckets, batch_sizes=()) if buckets.lengths else None
        return replace(self, batching=batching, sequence=sequence, buckets=buckets, counts_arrival=False)


# Source: docs/spec/schedulers.md section 3.4.


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagControl:
    """A tensor that tells the model START, END or READY, with the values for false and true."""

    name: str
    datatype: Datatype
    false: float
    true: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IdControl:
    """The tensor that tells the model the correlation id."""

    name: str
    datatype: Datatype


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """A state: what the model writes to `output_name` is its input `input_name` in the next request of the sequence.

    `dims` are without the batch dimension; -1 may change from request to request.
    """

    input_name: str
    output_name: str
    datatype: Datatype
    dims: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSpec:
    """`sequence_batching`.

    `is_direct`: a sequence has a slot of the batch, not only an instance. `slots` is how many sequences an instance
    has at once. `is_iterative`: a sequence is one request, which the model may ask to execute again. The
    requests that are ready on an instance form batches of `preferred_batch_sizes`, within `max_queue_delay_ns`.
    """

    is_direct: bool
    slots: int
    max_idle_ns: int
    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_ns: int = 0
    preserve_ordering: bool = False
    start: FlagControl | None = None
    end: FlagControl | None = None
    ready: FlagControl | None = None
    correlation_id: IdControl | None = None
    states: tuple[StateSpec, ...] = ()
    is_iterative: bool = False
