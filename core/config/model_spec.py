"""What the hot path needs of a model configuration, resolved once at load into frozen plain data.

It is also what a front end may know of a model: it can be sent to another process as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from core.inference.tensors import Datatype, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input. `dims` are the client's, without the batch dimension; `model_dims` what the backend sees (`reshape`).

    `model_dims` is None where no reshape is configured.
    """

    name: str
    datatype: Datatype
    dims: Shape
    model_dims: Shape | None = None
    optional: bool = False
    allow_ragged_batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """One output. `dims` are the client's, without the batch dimension; `model_dims` what the backend produces."""

    name: str
    datatype: Datatype
    dims: Shape
    model_dims: Shape | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """ModelQueuePolicy (docs/spec/schedulers.md section 3.2). Times in nanoseconds; 0 means none, size 0 means
    unbounded.
    """

    delay_on_timeout: bool = False
    default_timeout_ns: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSpec:
    """`dynamic_batching` resolved. `priority_levels` 0: one level, no priorities. `policies`: one per level."""

    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_ns: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    policies: tuple[QueuePolicy, ...] = (QueuePolicy(),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One version of a model. `batching` None means the default scheduler: one request per execution."""

    name: str
    version: int
    platform: str
    backend: str
    max_batch_size: int
    inputs: dict[str, InputSpec]
    outputs: dict[str, OutputSpec]
    batching: BatchingSpec | None = None
    decoupled: bool = False
    metric_tags: dict[str, str] = field(default_factory=dict)
