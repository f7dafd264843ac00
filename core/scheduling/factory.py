"""Makes the scheduler that a model's configuration asks for."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from trident.core.backends.backend import BackendInstance
from trident.core.config.spec import ModelSpec
from trident.core.inference.window_limits import DEFAULT_WINDOW, WindowLimits
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.scheduling.batcher import DynamicBatcher, Through
from trident.core.scheduling.instance import OnPoisoned
from trident.core.scheduling.open_requests import Again, refuse_again
from trident.core.scheduling.protocol import Scheduler
from trident.core.scheduling.rate_limiter import InstanceClaims

if TYPE_CHECKING:
    from trident.core.scheduling.sequence_requests import InitialStates


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
) -> Scheduler:
    """The scheduler of a loaded version, not started.

    A model without `dynamic_batching` gets a dynamic batcher whose batches hold one request; one with
    `sequence_batching` a dynamic batcher for each instance. `delay_until` is the number of requests for which batching
    waits, once, before the first batch, and `backlog_delay_until` that of the backlog of sequences. `initial_states`
    are those with which a sequence begins. `on_poisoned` is called on the thread that executes, with an instance that
    can execute nothing again; it must not raise. `window` is how much of a request's responses may be sent and not
    taken. `claims` are those of the instances on the resources that their executions hold.
    """

    def batcher(
        of: ModelSpec,
        using: Sequence[BackendInstance],
        held: int,
        through: Through | None = None,
        again: Again = refuse_again,
    ) -> DynamicBatcher:
        return DynamicBatcher(
            of,
            using,
            statistics,
            delay_until=held,
            on_poisoned=on_poisoned,
            window=window,
            claims=claims,
            through=through,
            again=again,
        )

    if spec.sequence is None:
        return batcher(spec, instances, delay_until if spec.batching is not None else 0)
    from trident.core.scheduling.sequence_batcher import SequenceScheduler  # for servers with such models only

    return SequenceScheduler(
        spec,
        instances,
        statistics,
        batcher,
        initial=initial_states,
        delay_until=delay_until,
        backlog_delay_until=backlog_delay_until,
    )
