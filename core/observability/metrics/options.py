"""The options of the metrics page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.observability.latencies.options import DEFAULT_QUANTILES, LatencyOptions, parse_quantiles


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
    def histogram_latencies(self) -> bool:
        """Off unless the value is exactly `true`, as in Triton."""
        return self.config.get("histogram_latencies") == "true"

    @property
    def latencies(self) -> LatencyOptions:
        """The distributions that are switched on (exactly `true`, as in Triton). Logs each invalid quantile."""
        quantiles = self.config.get("summary_quantiles")
        return LatencyOptions(
            histograms=self.histogram_latencies,
            summaries=self.config.get("summary_latencies") == "true",
            quantiles=DEFAULT_QUANTILES if quantiles is None else parse_quantiles(quantiles),
        )
