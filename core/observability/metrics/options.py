"""The options of the metrics page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_WITHOUT_EFFECT = ("histogram_latencies", "summary_latencies")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """--allow-gpu-metrics, --allow-cpu-metrics, --metrics-interval-ms and the values of --metrics-config by name."""

    gpu: bool = True
    cpu: bool = True
    interval_ms: float = 2000.0
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def counter_latencies(self) -> bool:
        """On unless the value is exactly `false`, as in Triton. Unknown names in `config` are ignored."""
        return self.config.get("counter_latencies") != "false"

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The settings that are switched on (exactly `true`) and that this server does not support, for the log."""
        return tuple(name for name in _WITHOUT_EFFECT if self.config.get(name) == "true")
