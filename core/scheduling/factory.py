"""Makes the scheduler that a model's configuration asks for."""

from __future__ import annotations

from collections.abc import Sequence

from core.backends.base import BackendInstance
from core.config.model_spec import ModelSpec
from core.inference.times import TimesFor
from core.inference.window_limits import DEFAULT_WINDOW, WindowLimits
from core.observability.statistics import ModelStatistics
from core.scheduling.batcher import DynamicBatcher
from core.scheduling.instance import OnPoisoned
from core.scheduling.protocol import Scheduler
from core.scheduling.rate_limiter.instance_claims import InstanceClaims


def make_scheduler(
    spec: ModelSpec,
    instances: Sequence[BackendInstance],
    statistics: ModelStatistics,
    *,
    delay_until: int = 0,
    on_poisoned: OnPoisoned | None = None,
    times_for: TimesFor = TimesFor.NOBODY,
    window: WindowLimits = DEFAULT_WINDOW,
    claims: InstanceClaims | None = None,
) -> Scheduler:
    """The scheduler of a loaded version, not started.

    A model without `dynamic_batching` gets a dynamic batcher whose batches hold one request. `delay_until` is the
    number of requests for which dynamic batching waits, once, before the first batch. `on_poisoned` is called on the
    thread that executes, with an instance that can execute nothing again; it must not raise. `times_for` says for whom
    responses carry their times. `window` is how much of a request's responses may be sent and not taken. `claims`
    are those of the instances on the resources that their executions hold.
    """
    held = delay_until if spec.batching is not None else 0
    return DynamicBatcher(
        spec,
        instances,
        statistics,
        delay_until=held,
        on_poisoned=on_poisoned,
        times_for=times_for,
        window=window,
        claims=claims,
    )
