"""A model of several engines, as one ServedModel.

Source: docs/processes.md "Several engines".
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from core.config.model_spec import ModelSpec
from core.inference.pending_request import PendingRequest
from core.inference.region_tensors import RegionInput
from core.inference.request import InferenceRequest
from core.inference.tensors import Array, Buffer
from core.remote.client import RemoteEngine, RemoteModel
from core.remote.pool.routing import home_of, least_busy
from core.remote.transport.tensor_block import LARGE


class Candidate(NamedTuple):
    """An engine that serves the model: its number in the server, itself, and the model there."""

    number: int
    engine: RemoteEngine
    model: RemoteModel


class PooledModel:
    """The model of all `candidates`, until the engines or their models change. Any thread may submit.

    A request of a sequence goes to the engine that has its state, and every request for a model whose answers an engine
    keeps, or whose responses have the order of the requests, goes to one engine; any other request to the engine with
    the fewest in flight.
    """

    answer_at_hand: None = None

    def __init__(self, candidates: Sequence[Candidate], *, is_pinned: bool) -> None:
        """`candidates` is not empty. With `is_pinned` one of them gets all requests."""
        self._candidates = list(candidates)
        first = candidates[0].model
        self.spec: ModelSpec = first.spec
        self.handover = first.handover
        self._numbers = [each.number for each in candidates]
        self._turns = itertools.count()
        if is_pinned:
            self._keep(home_of(f"model {first.spec.name}", self._numbers))

    def _keep(self, position: int) -> None:
        self._candidates = [self._candidates[position]]
        self._numbers = [self._candidates[0].number]

    def submit(self, pending: PendingRequest) -> None:
        self._chosen(pending.request).model.submit(pending)

    def _chosen(self, request: InferenceRequest) -> Candidate:
        candidates = self._candidates
        if len(candidates) == 1:
            return candidates[0]
        if request.correlation_id:
            return candidates[home_of(f"sequence {request.correlation_id}", self._numbers)]
        if type(request.inputs) is list:
            found = self._with_memory_of(request)
            if found is not None:
                return found
        return candidates[least_busy([each.engine.in_flight for each in candidates], next(self._turns))]

    def _with_memory_of(self, request: InferenceRequest) -> Candidate | None:
        """The candidate that can read the first large input in place; None if it would be copied anyway."""
        content = _large_input(request)
        if content is None:
            return None
        return next((each for each in self._candidates if each.engine.has_in_memory(content)), None)


def _large_input(request: InferenceRequest) -> Buffer | Array | None:
    for tensor in request.inputs:
        if type(tensor) is not RegionInput and tensor.nbytes >= LARGE:
            return tensor.data
    return None
