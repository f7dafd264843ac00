"""What follows from a change of the sequences, to be done when the lock is released."""

from __future__ import annotations

from core.errors import ServerError
from core.inference.pending_request import PendingRequest
from core.scheduling.rejection import Rejection
from core.scheduling.sequence.open_sequence import OpenSequence


class Change:
    """Requests that enter the batchers of their instances, and those that are answered unrun."""

    __slots__ = ("entering", "rejections")

    def __init__(self) -> None:
        self.entering: list[tuple[OpenSequence, PendingRequest]] = []
        self.rejections: list[Rejection] = []

    def enter(self, sequence: OpenSequence, pending: PendingRequest) -> None:
        sequence.inside = pending
        self.entering.append((sequence, pending))

    def refuse(self, pending: PendingRequest, error: ServerError) -> None:
        self.rejections.append(Rejection(pending, error))
