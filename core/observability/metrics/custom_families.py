"""The families of the metrics that models made, as the page shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from core.observability.metrics.exposition import MetricFamily, Sample, number
from core.observability.metrics.snapshot import CustomFamilyMetrics, CustomSeriesMetrics


def custom_families(families: Iterable[CustomFamilyMetrics]) -> Iterator[MetricFamily]:
    for family in families:
        samples = [sample for series in family.series for sample in _samples(family.type, series)]
        yield MetricFamily(family.name, family.type, family.description, tuple(samples))


def _samples(kind: str, series: CustomSeriesMetrics) -> Iterator[Sample]:
    if kind != "histogram":
        yield Sample(series.labels, series.value)
        return
    for bound, total in zip((*series.bounds, float("inf")), accumulate(series.counts), strict=True):
        yield Sample({**series.labels, "le": number(bound)}, total, "_bucket")
    yield Sample(series.labels, sum(series.counts), "_count")
    yield Sample(series.labels, series.value, "_sum")
