"""Which distributions of durations are kept."""

from __future__ import annotations

import logging
from dataclasses import dataclass

FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
REQUEST = "trident_inference_request_duration_seconds"
QUEUE = "trident_inference_queue_duration_seconds"
COMPUTE = "trident_inference_compute_duration_seconds"

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
DEFAULT_BUCKETS: dict[str, tuple[float, ...]] = {
    FIRST_RESPONSE: (100.0, 500.0, 2000.0, 5000.0),
    REQUEST: _SECONDS,
    QUEUE: _SECONDS,
    COMPUTE: _SECONDS,
}
"""The upper bounds of each histogram, without +Inf, in the unit of its name. A model may choose others for these."""


_log = logging.getLogger("trident.observability")

DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOptions:
    """`histogram_latencies`, `summary_latencies` and `summary_quantiles` of --metrics-config. `steps`: the durations of
    requests are counted for the console."""

    histograms: bool = False
    summaries: bool = False
    steps: bool = False
    quantiles: tuple[float, ...] = DEFAULT_QUANTILES

    @property
    def is_any(self) -> bool:
        """Whether there is anything to measure."""
        return self.histograms or self.summaries or self.steps


def parse_quantiles(text: str) -> tuple[float, ...]:
    """The quantiles of `<quantile>:<error>,...`, in their order; the defaults if none is valid.

    An invalid pair is logged and left out, as in Triton. The error that a pair allows is not needed: every quantile is
    within one percent of the value.
    """
    found: list[float] = []
    for pair in text.split(","):
        quantile, error = (_fraction(part) for part in (pair.partition(":")[0], pair.partition(":")[2]))
        if quantile is None or error is None:
            _log.warning("Invalid option: [%s]", pair)
        elif quantile not in found:
            found.append(quantile)
    return tuple(found) or DEFAULT_QUANTILES


def _fraction(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None
