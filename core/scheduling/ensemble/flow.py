"""What the steps of one way through the graph have given, and the steps that it makes ready.

Not thread-safe: the lock of its request guards it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.inference.request import InferenceRequest
from core.inference.response import Outputs
from core.scheduling.ensemble.passing import Sources
from core.scheduling.ensemble.plan import Plan
from core.scheduling.ensemble.sequence_part import SequencePart, place_of

if TYPE_CHECKING:
    from core.scheduling.ensemble.step_request import StepRequest


class Flow:
    """A request has one flow; each response of a decoupled step, `origin`, begins another.

    `sources` is what was given. `parts` are the places in a sequence that came with it, by source; None as long as
    there are none. `unwritten` is the number of steps that outputs wait for. `unfinished` are its steps that are not
    done, and its response as long as the client has not taken it; counted only for decoupled ensembles.
    """

    __slots__ = ("_missing", "_plan", "origin", "parts", "sources", "unfinished", "unwritten")

    def __init__(self, plan: Plan, origin: StepRequest | None = None) -> None:
        self._plan = plan
        self._missing = list(plan.missing)
        self.origin = origin
        self.sources: Sources = [None] * (len(plan.steps) + 1)
        self.parts: dict[int, SequencePart] | None = None
        self.unwritten = len(plan.writers)
        self.unfinished = 0

    def add(self, index: int, found: Outputs, ready: list[int]) -> None:
        """Add what the step `index` has given, and to `ready` the steps that waited only for it."""
        plan, missing = self._plan, self._missing
        self.sources[index] = found
        if index in plan.writers:
            self.unwritten -= 1
        for reader in plan.readers[index]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)

    def place(self, request: InferenceRequest) -> SequencePart:
        """The place in a sequence that came with an output, or that of `request`, which began all."""
        if self.parts is not None:
            for index in sorted(self._plan.writers.intersection(self.parts)):
                return self.parts[index]
        return place_of(request)
