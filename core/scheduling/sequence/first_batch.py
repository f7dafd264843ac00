"""The first batch, which Triton's test suites have wait for a number of requests.

Source: docs/spec/schedulers.md section 3.4, "Test hooks".
"""

from __future__ import annotations

from typing import NamedTuple

from core.scheduling.sequence.seating import Seating


class FirstBatch(NamedTuple):
    """The requests that must wait in slots and in the backlog before anything is executed."""

    in_slots: int
    in_backlog: int

    def is_due(self, seating: Seating) -> bool:
        return (
            sum(sequence.queued for sequence in seating.seated) >= self.in_slots
            and sum(sequence.queued for sequence in seating.backlog) >= self.in_backlog
        )
