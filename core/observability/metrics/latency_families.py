"""The families of the distributions of durations: Triton's names where it has them.

A version on a GPU has one series of each, without `gpu_uuid`: a distribution cannot be split as counters can.
Source: docs/spec/statistics-and-metrics.md section B.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from core.observability.latencies.buckets import COMPUTE, FIRST_RESPONSE, QUEUE, REQUEST
from core.observability.latencies.histogram import HistogramMetrics
from core.observability.latencies.summaries import CACHE_SUMMARIES, SUMMARIES, SummaryMetrics
from core.observability.metrics.exposition import MetricFamily, Sample, number
from core.observability.metrics.model_labels import model_labels
from core.observability.metrics.snapshot import ModelMetrics

_HISTOGRAMS = {
    FIRST_RESPONSE: "Duration from request to first response in milliseconds",
    REQUEST: "Seconds from a request to its response, of successful requests",
    QUEUE: "Seconds in the queue, of successful requests",
    COMPUTE: "Seconds from the start to the end of its execution, of successful requests",
}
_SUMMARIES = dict(
    zip(
        SUMMARIES,
        (
            "Summary of inference request duration in microseconds (includes cached requests)",
            "Summary of inference queuing duration in microseconds (includes cached requests)",
            "Summary of compute input duration in microseconds (does not include cached requests)",
            "Summary of compute inference duration in microseconds (does not include cached requests)",
            "Summary of inference compute output duration in microseconds (does not include cached requests)",
            "Summary of cache hit duration per model, in microseconds",
            "Summary of cache miss duration per model, in microseconds",
        ),
        strict=True,
    )
)


def latency_families(models: Iterable[ModelMetrics], *, has_cache: bool) -> Iterator[MetricFamily]:
    """The histograms and summaries of all versions, in the order of the page; families without series included.

    `has_cache`: the server has a response cache.
    """
    labelled = [(model_labels(entry), entry.latencies) for entry in models]
    for name, text in _HISTOGRAMS.items():
        samples = [
            sample
            for labels, latencies in labelled
            for histogram in latencies.histograms
            if histogram.name == name
            for sample in _histogram_samples(labels, histogram)
        ]
        yield MetricFamily(name, "histogram", text, tuple(samples))
    for name, text in _SUMMARIES.items():
        if name in CACHE_SUMMARIES and not has_cache:
            continue
        samples = [
            sample
            for labels, latencies in labelled
            for summary in latencies.summaries
            if summary.name == name
            for sample in _summary_samples(labels, summary)
        ]
        yield MetricFamily(name, "summary", text, tuple(samples))


def _histogram_samples(labels: Mapping[str, str], histogram: HistogramMetrics) -> Iterator[Sample]:
    bounds = (*histogram.bounds, float("inf"))
    counts = accumulate(histogram.counts)
    for bound, count, exemplar in zip(bounds, counts, histogram.exemplars, strict=True):
        yield Sample({**labels, "le": number(bound)}, count, "_bucket", exemplar)
    yield Sample(labels, histogram.count, "_count")
    yield Sample(labels, histogram.sum, "_sum")


def _summary_samples(labels: Mapping[str, str], summary: SummaryMetrics) -> Iterator[Sample]:
    for quantile, value in summary.quantiles:
        yield Sample({**labels, "quantile": number(quantile)}, value)
    yield Sample(labels, summary.count, "_count")
    yield Sample(labels, summary.sum, "_sum")
