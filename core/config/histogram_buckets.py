"""The buckets of a model's histograms: the defaults, and those that its configuration chooses.

Source: docs/spec/model-config.md section 2.9.
"""

from __future__ import annotations

from math import isfinite

from core.config.schema import ModelConfig
from core.observability.latencies.buckets import DEFAULT_BUCKETS


def histogram_buckets(config: ModelConfig) -> dict[str, tuple[float, ...]]:
    """The bounds of every histogram of a model, ascending. The configuration is valid; unknown families are ignored."""
    buckets = dict(DEFAULT_BUCKETS)
    for control in config.model_metrics.metric_control:
        family = control.metric_identifier.family
        chosen = tuple(sorted({bound for bound in control.histogram_options.buckets if isfinite(bound)}))
        if family in buckets and chosen:
            buckets[family] = chosen
    return buckets
