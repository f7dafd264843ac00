from __future__ import annotations

from trident.core.observability.metrics.snapshot import MetricsOptions


def test_distributions_are_off_unless_the_value_is_exactly_true() -> None:
    assert not MetricsOptions().latencies.is_any
    found = MetricsOptions(config={"summary_latencies": "true", "histogram_latencies": "True"}).latencies
    assert (found.histograms, found.summaries) == (False, True)
    assert MetricsOptions(config={"histogram_latencies": "true"}).latencies.histograms


def test_quantiles_are_those_of_the_configuration() -> None:
    assert MetricsOptions(config={"summary_quantiles": "0.9:0.01,0.25:0"}).latencies.quantiles == (0.9, 0.25)
    assert MetricsOptions().latencies.quantiles == (0.5, 0.9, 0.95, 0.99, 0.999)
