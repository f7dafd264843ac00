"""The metric families of batch buckets: how often each is used, and how much of it is padding.

Source: docs/ragged-batching.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from core.observability.bucket_statistics import BucketStatistics
from core.observability.metrics.exposition import MetricFamily, Sample
from core.observability.statistics import StatisticsSnapshot

_FAMILIES: tuple[tuple[str, str, Callable[[BucketStatistics], int]], ...] = (
    (
        "trident_bucket_executions_total",
        "Model executions whose batch was padded to the bucket, or filled it",
        lambda bucket: bucket.execution_count,
    ),
    (
        "trident_bucket_elements_total",
        "Elements of inputs that requests sent, in executions of the bucket",
        lambda bucket: bucket.element_count,
    ),
    (
        "trident_bucket_padding_elements_total",
        "Elements of inputs that were added to fill the bucket",
        lambda bucket: bucket.padding_count,
    ),
)


def bucket_families(models: Iterable[tuple[Mapping[str, str], StatisticsSnapshot]]) -> Iterator[MetricFamily]:
    """The families of all model versions, each with its labels. A series appears with the first use of its bucket."""
    buckets = [(_labels(labels, bucket), bucket) for labels, snapshot in models for bucket in snapshot.buckets]
    for name, text, count in _FAMILIES:
        samples = tuple(Sample(labels, count(bucket)) for labels, bucket in buckets)
        yield MetricFamily(name, "counter", text, samples)


def _labels(labels: Mapping[str, str], bucket: BucketStatistics) -> dict[str, str]:
    """`batch_size` and `length`, where the model pads to them."""
    sizes = {"batch_size": bucket.batch_size, "length": bucket.length}
    return {**labels, **{name: str(size) for name, size in sizes.items() if size}}
