"""The metrics that models make: their store, and how the page shows them."""

from __future__ import annotations

import orjson
import pytest

from trident.core.errors import InvalidRequest, ServerError, Unsupported
from trident.core.observability.metrics.custom_metrics import CustomMetrics, MetricKind, OwnMetrics
from trident.core.observability.metrics.families import is_reserved, metric_families, render
from trident.core.observability.statistics import MetricsOptions, MetricsSnapshot
from trident.core.remote.calls import from_plain, to_plain

COUNTER, GAUGE, HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM


def page(metrics: CustomMetrics, *, openmetrics: bool = False) -> str:
    """The custom part of the page of a front end in another process."""
    snapshot = MetricsSnapshot(custom=metrics.snapshot())
    arrived = from_plain(orjson.loads(orjson.dumps(to_plain(snapshot))), MetricsSnapshot)
    families = metric_families(arrived, MetricsOptions(gpu=False, cpu=False))
    own = [family for family in families if not is_reserved(family.name)]
    return render(own, openmetrics=openmetrics).decode()


@pytest.fixture
def metrics() -> CustomMetrics:
    return CustomMetrics(is_reserved)


@pytest.fixture
def own(metrics: CustomMetrics) -> OwnMetrics:
    return metrics.owner()


def test_the_page_has_counters_gauges_and_histograms(metrics: CustomMetrics, own: OwnMetrics) -> None:
    words = own.create_metric(own.create_family("words_total", "Words read", COUNTER), {"model": "m", "lang": 'e"n'})
    own.increment(words, 3)
    own.increment(words, 0.5)
    free = own.create_metric(own.create_family("free", "Free\nslots", GAUGE), {})
    own.set(free, 7)
    own.increment(free, -2)
    sizes = own.create_metric(own.create_family("sizes", "Sizes", HISTOGRAM), {"model": "m"}, [1.0, 2.5])
    for size in (0.5, 1.0, 2.0, 9.0):
        own.observe(sizes, size)
    assert own.value(words) == 3.5
    assert own.value(free) == 5
    assert page(metrics) == (
        "# HELP free Free\\nslots\n# TYPE free gauge\nfree 5\n"
        "# HELP sizes Sizes\n# TYPE sizes histogram\n"
        'sizes_bucket{model="m",le="1"} 2\nsizes_bucket{model="m",le="2.5"} 3\nsizes_bucket{model="m",le="+Inf"} 4\n'
        'sizes_count{model="m"} 4\nsizes_sum{model="m"} 12.5\n'
        '# HELP words_total Words read\n# TYPE words_total counter\nwords_total{lang="e\\"n",model="m"} 3.5\n'
    )


def test_series_disappears_with_its_last_metric(metrics: CustomMetrics, own: OwnMetrics) -> None:
    family = own.create_family("c", "", COUNTER)
    first, second = (own.create_metric(family, {"a": "1"}) for _ in range(2))
    own.increment(first, 5)
    own.delete(first)
    own.delete(first)
    assert own.value(second) == 5
    own.delete(second)
    assert page(metrics) == ""
    with pytest.raises(InvalidRequest, match="there is no metric"):
        own.value(second)
    assert own.value(own.create_metric(family, {"a": "1"})) == 0


def test_metrics_of_an_ended_process_disappear(metrics: CustomMetrics, own: OwnMetrics) -> None:
    other = metrics.owner()
    for owner in (own, other):
        owner.create_metric(owner.create_family("shared", "", GAUGE), {})
    own.create_metric(own.create_family("single", "", GAUGE), {})
    own.close()
    assert "single" not in page(metrics)
    assert "shared 0" in page(metrics)
    other.close()
    assert page(metrics) == ""
    # The name is free again, for another kind, too.
    metrics.owner().create_family("shared", "", COUNTER)


def test_metric_family_is_unique_by_name(own: OwnMetrics) -> None:
    assert own.create_family("c", "", COUNTER) == own.create_family("c", "other", COUNTER)
    with pytest.raises(InvalidRequest, match="Family name already exists with different type"):
        own.create_family("c", "", GAUGE)
    own.create_family("sizes", "", HISTOGRAM)
    own.create_family("words_total", "", COUNTER)
    for name in ("sizes_count", "words"):
        with pytest.raises(InvalidRequest, match="would have a series of"):
            own.create_family(name, "", GAUGE)
    own.create_family("nv_llm_tokens", "", COUNTER)


@pytest.mark.parametrize(
    "name",
    ["nv_inference_count", "nv_gpu_utilization", "nv_cpu_utilization", "trident_x", "flask_http_request_total"],
)
def test_custom_metrics_cannot_use_names_of_the_server(own: OwnMetrics, name: str) -> None:
    with pytest.raises(InvalidRequest, match="is a metric of the server"):
        own.create_family(name, "", COUNTER)


@pytest.mark.parametrize("name", ["", "1st", "a-b", "a b", "é", "__a", 'a"} 1\nb'])
def test_names_that_readers_reject_are_refused(own: OwnMetrics, name: str) -> None:
    with pytest.raises(InvalidRequest, match="Invalid metric name"):
        own.create_family(name, "", COUNTER)
    with pytest.raises(InvalidRequest, match="Invalid label name"):
        own.create_metric(own.create_family("c", "", COUNTER), {name: "x"})
    with pytest.raises(InvalidRequest, match="Invalid label name 'le'"):
        own.create_metric(own.create_family("h", "", HISTOGRAM), {"le": "1"}, [1.0])


@pytest.mark.parametrize("buckets", [[1.0, 1.0], [2.0, 1.0], [1.0, float("nan")], [float("inf")]])
def test_histogram_buckets_must_ascend(own: OwnMetrics, buckets: list[float]) -> None:
    with pytest.raises(InvalidRequest, match="Bucket Boundaries must be strictly sorted"):
        own.create_metric(own.create_family("h", "", HISTOGRAM), {}, buckets)


@pytest.mark.parametrize(
    ("kind", "operation", "text"),
    [
        (COUNTER, "observe", "TRITONSERVER_METRIC_KIND_COUNTER does not support Observe"),
        (HISTOGRAM, "increment", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment"),
        (HISTOGRAM, "set", "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set"),
    ],
)
def test_each_kind_has_its_operations(own: OwnMetrics, kind: MetricKind, operation: str, text: str) -> None:
    buckets = [1.0] if kind is HISTOGRAM else None
    metric = own.create_metric(own.create_family("m", "", kind), {}, buckets)
    with pytest.raises(ServerError) as raised:
        getattr(own, operation)(metric, -1.0)
    assert raised.value.message == text
    assert kind is HISTOGRAM or own.value(metric) == 0


def test_custom_metrics_are_refused_without_a_metrics_page() -> None:
    with pytest.raises(Unsupported, match="metrics are disabled"):
        CustomMetrics(enabled=False).owner().create_family("c", "", COUNTER)
