"""The Scheduler protocol, and the choice of a version's scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from trident.core.backends.backend import BackendInstance
from trident.core.inference.pending_request import PendingRequest
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.dynamic_batcher import DynamicBatcher


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
        """Requests that were taken from the queue and are not done."""
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

    def remove(self, instance: BackendInstance) -> Callable[[], None]:
        """Give `instance` no more work, except for sequences that it has. Returns a function that blocks until it has
        finished: call it once, on any thread but the instance's own.

        Raises ValueError for an unknown instance and for the last one, and RuntimeError on the instance's own thread;
        then nothing has changed. Only called for models that have instances.
        """
        ...

    def forget(self, instance: BackendInstance) -> None:
        """Drop the state that `instance` remembered: its process was lost. Its requests end by themselves.

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


# The modules of ensembles and sequences are imported by servers with such models only.


def make_scheduler(context: SchedulingContext, instances: Sequence[BackendInstance]) -> Scheduler:
    """The scheduler of a version, which is not started."""
    if context.steps:
        from trident.core.scheduling.ensemble import EnsembleScheduler

        return EnsembleScheduler(context)
    if context.spec.sequence is not None:
        from trident.core.scheduling.sequence_batcher import SequenceScheduler

        return SequenceScheduler(context, instances)
    # Without `dynamic_batching` its batches hold one request.
    return DynamicBatcher(context if context.spec.batching is not None else replace(context, delay_until=0), instances)


def make_probe(context: SchedulingContext, instance: BackendInstance) -> BackendInstance:
    """Return an instance that executes the server's own requests on `instance` while no scheduler has it."""
    if context.steps or context.spec.sequence is None:
        return instance
    from trident.core.scheduling.sequence_tensors import SequenceProbe

    return SequenceProbe(instance, context.spec, context.initial_states)
