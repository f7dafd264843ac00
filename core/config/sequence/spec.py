"""What the scheduler needs of `sequence_batching`, resolved once at load.

Source: docs/spec/schedulers.md section 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.inference.tensors import Datatype, Shape


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

    `is_direct`: a sequence has a place in the batch, not only on an instance. `slots` is how many sequences an instance
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
