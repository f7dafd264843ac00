"""The parts that all models of a server share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trident.core.lifecycle.memory import MemoryLedger
from trident.core.lifecycle.version import ModelVersion
from trident.core.observability.metrics.custom_metrics import CustomMetrics
from trident.core.observability.payload_log.log import PayloadLog
from trident.core.observability.tracing.trace import TraceOptions
from trident.core.observability.tracing.tracer import Tracer
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.rate_limiter import RateLimiter
from trident.core.scheduling.scheduler import Scheduler
from trident.core.shared_memory import Regions

# Returns the scheduler of a version, or one around it.
Wrap = Callable[[Scheduler, ModelVersion, SchedulingContext], Scheduler]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """The parts that the loader gives to all versions.

    `gpu_uuids` are indexed by GPU number. `on_device_lost` is called with a GPU (`Placement.device`) on which nothing
    can run any more. `metrics` are those that models make. `wraps` are applied to each scheduler, in their order.
    `rate_limiter` is None in a server without one, and so is `payload_log`. `regions` are those of the clients' shared
    memory. `memory` admits loads onto the devices that it knows; by default it knows none.
    """

    gpu_uuids: Sequence[str] = ()
    on_device_lost: Callable[[str], None] = lambda device: None
    metrics: CustomMetrics = field(default_factory=CustomMetrics)
    wraps: Sequence[Wrap] = ()
    rate_limiter: RateLimiter | None = None
    regions: Regions = field(default_factory=Regions)
    tracer: Tracer = field(default_factory=lambda: Tracer(TraceOptions()))
    payload_log: PayloadLog | None = None
    memory: MemoryLedger = field(default_factory=lambda: MemoryLedger(lambda devices: {}, {}))
