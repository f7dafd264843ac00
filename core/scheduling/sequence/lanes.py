"""The lanes of a model: one for each of its instances.

Source: docs/spec/schedulers.md section 3.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from core.backends.base import BackendInstance
from core.config.model_spec import BatchingSpec, ModelSpec
from core.inference.pending_request import PendingRequest
from core.scheduling.batcher import DynamicBatcher, Through
from core.scheduling.open_requests import Again, refuse_again
from core.scheduling.sequence.controls import Controls
from core.scheduling.sequence.direct_instance import DirectInstance
from core.scheduling.sequence.lane import Lane


class MakeBatcher(Protocol):
    """Makes the batcher of instances, which executes nothing until `held` requests are queued."""

    def __call__(
        self, of: ModelSpec, using: Sequence[BackendInstance], held: int, through: Through | None, again: Again, /
    ) -> DynamicBatcher: ...


class Lanes:
    """Not thread-safe: the scheduler's lock guards it.

    `again` submits a request of an iterative model once more, in the lane that has executed it. The batcher of each
    instance waits for `delay_until` requests, once, before its first batch.
    """

    def __init__(
        self,
        spec: ModelSpec,
        controls: Controls,
        make_batcher: MakeBatcher,
        again: Callable[[Lane, PendingRequest], None],
        delay_until: int,
    ) -> None:
        assert spec.sequence is not None
        self._spec = spec
        self._sequence = spec.sequence
        self._batched = _batched(spec)
        self._controls = controls
        self._make_batcher = make_batcher
        self._again = again
        self._delay_until = delay_until
        self._lanes: list[Lane] = []

    def __iter__(self) -> Iterator[Lane]:
        """All lanes. There may be others meanwhile."""
        return iter(list(self._lanes))

    @property
    def queued(self) -> int:
        """Requests that wait for an execution."""
        return sum(lane.batcher.queued for lane in self._lanes)

    @property
    def in_flight(self) -> int:
        """Requests that are executed."""
        return sum(lane.batcher.in_flight for lane in self._lanes)

    @property
    def roomiest(self) -> Lane | None:
        """The lane for a new sequence: that with the lowest free slot; None if all slots are taken."""
        return min((lane for lane in self._lanes if lane.has_room), key=lambda lane: lane.lowest, default=None)

    def make(self, instance: BackendInstance) -> Lane:
        """A lane for a new instance, to be added. Raises ValueError for one that has a lane."""
        if any(lane.instance is instance for lane in self._lanes):
            raise ValueError(f"'{instance.placement.name}' is an instance already")
        lane = Lane(instance, self._sequence.slots)
        through: Through | None = None
        if self._sequence.is_direct:
            through = partial(DirectInstance, controls=self._controls, sequences=lane.sequences)
        again = partial(self._again, lane) if self._sequence.is_iterative else refuse_again
        lane.batcher = self._make_batcher(self._batched, [instance], self._delay_until, through, again)
        return lane

    def add(self, lane: Lane) -> None:
        """Let sequences have the slots of `lane`."""
        self._lanes.append(lane)

    def retire(self, instance: BackendInstance) -> Lane:
        """Seat no more sequences in the lane of `instance`. Raises ValueError for an unknown one, and the last one."""
        open_lanes = [lane for lane in self._lanes if not lane.is_leaving]
        lane = next((lane for lane in open_lanes if lane.instance is instance), None)
        if lane is None:
            raise ValueError(f"'{instance.placement.name}' is not an instance")
        if len(open_lanes) == 1:
            raise ValueError(f"'{instance.placement.name}' is the last instance")
        lane.is_leaving = True
        return lane

    def remove(self, lane: Lane) -> None:
        """Forget a lane without sequences, whose batcher is closed."""
        self._lanes.remove(lane)


def _batched(spec: ModelSpec) -> ModelSpec:
    """`spec` for the batcher of one instance, whose requests are those of different sequences."""
    sequence = spec.sequence
    assert sequence is not None
    batching = None
    if spec.max_batch_size > 0:
        batching = BatchingSpec(
            preferred_batch_sizes=sequence.preferred_batch_sizes, max_queue_delay_ns=sequence.max_queue_delay_ns
        )
    return replace(spec, batching=batching, sequence=None)
