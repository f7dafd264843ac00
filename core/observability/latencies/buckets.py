"""The histograms of durations and their default buckets.

Source: docs/spec/statistics-and-metrics.md section B.
"""

from __future__ import annotations

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
