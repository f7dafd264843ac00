from __future__ import annotations

from core.observability.metrics.options import MetricsOptions


def test_options_without_effect_are_named() -> None:
    config = {"summary_latencies": "true", "histogram_latencies": "True", "counter_latencies": "true"}
    assert MetricsOptions(config=config).without_effect == ("summary_latencies",)
    assert MetricsOptions().without_effect == ()
