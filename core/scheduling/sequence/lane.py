"""The slots of one model instance."""

from __future__ import annotations

import heapq

from core.backends.base import BackendInstance
from core.scheduling.batcher import DynamicBatcher
from core.scheduling.sequence.open_sequence import OpenSequence


class Lane:
    """A model instance with its batcher and the sequences that are bound to it. Guarded by the scheduler's lock.

    `sequences` are by slot. A lane that `is_leaving` gets no new sequence.
    """

    def __init__(self, instance: BackendInstance, slots: int) -> None:
        self.instance = instance
        self.batcher: DynamicBatcher
        self.sequences: dict[int, OpenSequence] = {}
        self.is_leaving = False
        self._slots = slots
        self._fresh = 0
        self._released: list[int] = []

    @property
    def lowest(self) -> int:
        """The lowest free slot; `slots` if none is free."""
        return self._released[0] if self._released else self._fresh

    @property
    def has_room(self) -> bool:
        return not self.is_leaving and self.lowest < self._slots

    def seat(self, sequence: OpenSequence) -> None:
        """Give `sequence` the lowest free slot."""
        if self._released:
            slot = heapq.heappop(self._released)
        else:
            slot = self._fresh
            self._fresh += 1
        sequence.lane, sequence.slot = self, slot
        self.sequences[slot] = sequence

    def release(self, sequence: OpenSequence) -> None:
        """Free the slot of `sequence`."""
        del self.sequences[sequence.slot]
        heapq.heappush(self._released, sequence.slot)
        if not self.sequences:
            self._fresh = 0
            self._released.clear()
