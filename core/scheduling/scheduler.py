"""The Scheduler protocol, and the scheduler that a model's configuration asks for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from types import MappingProxyType
from typing import Protocol

from trident.core.backends.backend import BackendInstance
from trident.core.config.spec import ModelSpec
from trident.core.inference.pending_request import PendingRequest
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.options import DEFAULT_WINDOW, WindowLimits
from trident.core.scheduling.dynamic_batcher import DynamicBatcher
from trident.core.scheduling.instance import OnPoisoned
from trident.core.scheduling.queue import Clock
from trident.core.scheduling.rate_limiter import InstanceClaims
from trident.core.scheduling.sequence_tensors import InitialStates


class Scheduler(Protocol):
    """Takes the requests for one model version. Every method may be called on any thread.

    A request that `submit` accepts gets one response or several through its `on_response`; the last has `final` set,
    and then the request is done. A model's execution may end before that.
    """

    @property
    def queued(self) -> int:
        """Accepted requests that wait for an execution to begin."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests that have left the queue and are not done."""
        ...

    def start(self) -> None:
        """Begin to execute. Called once; requests submitted before it wait."""
        ...

    def add(self, instance: BackendInstance) -> None:
        """Execute on `instance` as well, at once if the scheduler was started. Waits for no execution.

        Raises ServerStopping after `close`, and ValueError for an instance that the scheduler already has. Only called
        for models that have instances.
        """
        ...

    def remove(self, instance: BackendInstance) -> None:
        """Give `instance` no more work and block until it has finished what it executes.

        Raises ValueError for an unknown instance and for the last one, and RuntimeError on the instance's own thread;
        then nothing has changed. Only called for models that have instances.
        """
        ...

    def forget(self, instance: BackendInstance) -> None:
        """Expect nothing of what `instance` remembers: its process was lost. Its requests end by themselves.

        Does nothing for requests that do not depend on each other.
        """
        ...

    def submit(self, pending: PendingRequest) -> None:
        """Accept a validated request. Does not block.

        Raises a ServerError, such as QueueFull or ServerStopping, for a request that is refused; then `on_response` is
        never called.
        """
        ...

    def stop(self, *, accept_nested: bool = False) -> None:
        """Accept no more requests, with `accept_nested` none but nested ones, until the next call.

        Those accepted are still served, without waiting for others to join a batch.
        """
        ...

    def drain(self, timeout_s: float | None = None) -> bool:
        """Block until no request is queued or in flight, at most `timeout_s` seconds. Returns whether that happened."""
        ...

    def close(self, timeout_s: float | None = None, because: str = "") -> bool:
        """Stop, answer what is queued with ServerStopping, and block until what executes has finished.

        `because` is what the error says, if that is not only that the server or the model stops.
        Returns whether it finished; waits at most `timeout_s` seconds for each instance. Does not close the instances.
        """
        ...


def make_scheduler(
    spec: ModelSpec,
    instances: Sequence[BackendInstance],
    statistics: ModelStatistics,
    *,
    delay_until: int = 0,
    backlog_delay_until: int = 0,
    initial_states: InitialStates = MappingProxyType({}),
    on_poisoned: OnPoisoned | None = None,
    window: WindowLimits = DEFAULT_WINDOW,
    claims: InstanceClaims | None = None,
    clock: Clock = time.monotonic_ns,
) -> Scheduler:
    """The scheduler of a loaded version, not started.

    A model without `dynamic_batching` gets a dynamic batcher whose batches hold one request; one with
    `sequence_batching` a dynamic batcher for each instance. `delay_until` is the number of requests for which batching
    waits, once, before the first batch, and `backlog_delay_until` that of the backlog of sequences. `initial_states`
    are those with which a sequence begins. `on_poisoned` is called on the thread that executes, with an instance that
    can execute nothing again. `window` is how much of a request's responses may be sent and not
    taken. `claims` are those of the instances on the resources that their executions hold.
    """

    make_batcher = partial(
        DynamicBatcher, statistics=statistics, clock=clock, on_poisoned=on_poisoned, window=window, claims=claims
    )
    if spec.sequence is None:
        return make_batcher(spec, instances, delay_until=delay_until if spec.batching is not None else 0)
    from trident.core.scheduling.sequence_batcher import SequenceScheduler  # for servers with such models only

    return SequenceScheduler(
        spec,
        instances,
        statistics,
        make_batcher,
        initial=initial_states,
        clock=clock,
        delay_until=delay_until,
        backlog_delay_until=backlog_delay_until,
    )
