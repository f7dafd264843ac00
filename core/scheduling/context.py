"""The context that the parts of one version's scheduler share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trident.core.backends.backend import BackendInstance
from trident.core.config.ensemble import PRESERVE_ORDER, EnsembleStep, ensemble_steps
from trident.core.config.resolve import initial_states, switch
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import ModelSpec
from trident.core.inference.pending_request import PendingRequest, deliver
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Array
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.options import DEFAULT_WINDOW, WindowLimits
from trident.core.scheduling.rate_limiter import InstanceReservations

# Monotonic nanoseconds.
Clock = Callable[[], int]
Respond = Callable[[PendingRequest, InferenceResponse], None]


class StepModel(Protocol):
    """The version of a model that a step of an ensemble runs on. Any thread."""

    @property
    def spec(self) -> ModelSpec: ...

    def submit(self, pending: PendingRequest) -> None:
        """Run a request. An error is a response, perhaps before this returns."""
        ...


@dataclass(slots=True)
class SchedulingContext:
    """Made for each version; its parts do not change it.

    `window` is how much of a request's responses may be sent before its client has taken them. `reservations` are those
    of the instances on the resources that their executions hold. `on_poisoned` is called on the thread that executed,
    with an instance that can never execute again. `initial_states` are the values with which a sequence begins, by
    input. `steps` are those of an ensemble, each with the version that runs it; `max_in_flight` limits the requests of
    each, 0 for no limit. With `preserves_order` the responses of a decoupled step are passed on in their order. For
    tests, nothing is executed until `delay_until` requests are queued for the first time, and `backlog_delay_until` in
    the backlog of sequences.

    `respond` delivers the response to a request; `refuse` the error of one that is not executed: it is delivered at
    once, also where responses keep an order, as in Triton.
    """

    spec: ModelSpec
    statistics: ModelStatistics
    clock: Clock = time.monotonic_ns
    window: WindowLimits = DEFAULT_WINDOW
    reservations: InstanceReservations = field(default_factory=InstanceReservations)
    on_poisoned: Callable[[BackendInstance], None] | None = None
    initial_states: Mapping[str, Array] = field(default_factory=dict)
    steps: Sequence[tuple[EnsembleStep, StepModel]] = ()
    max_in_flight: int = 0
    preserves_order: bool = True
    delay_until: int = 0
    backlog_delay_until: int = 0
    respond: Respond = deliver
    refuse: Respond = deliver

    def configure(self, config: ModelConfig, directory: Path, models: Sequence[StepModel]) -> None:
        """Take over what only sequences and ensembles need; `models` are those of the ensemble's steps.

        Raises ConfigInvalid if the initial states of sequences cannot be read.
        """
        if self.spec.sequence is not None:
            self.initial_states = initial_states(config, self.spec.sequence.states, directory)
        self.steps = tuple(zip(ensemble_steps(config), models, strict=True))
        self.max_in_flight = config.ensemble_scheduling.max_inflight_requests
        self.preserves_order = switch(config, PRESERVE_ORDER, default=True)
