"""MetricFamily and Metric: their calls, and what is refused before the server is asked."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from trident_stub import metrics
from trident_stub.errors import TritonModelException
from trident_stub.metrics import Metric, MetricFamily, MetricKind

from tests.unit.core.backends.python.stub.trident_stub.memory_server import MemoryServer


@pytest.fixture(autouse=True)
def _family_and_metric(memory_server: MemoryServer) -> Any:
    memory_server.answers = {
        "metric_family": {"family": 3},
        "metric_create": {"metric": 4},
        "metric_value": {"value": 1.5},
    }
    yield
    gc.collect()
    metrics._gone.clear()


def metric(kind: MetricKind) -> Metric:
    return MetricFamily("f", "d", kind).Metric(buckets=[1] if kind is MetricFamily.HISTOGRAM else None)


def test_a_gauge_from_its_creation_to_its_end(memory_server: MemoryServer) -> None:
    family = MetricFamily(name="f", description="d", kind=MetricFamily.GAUGE)
    gauge = family.Metric(labels={"a": "b"})
    gauge.increment(-2)
    gauge.set(np.float32(0.5))
    assert gauge.value() == 1.5
    del gauge
    gc.collect()
    metrics.drop_unused()
    assert memory_server.calls == [
        ("metric_family", {"name": "f", "description": "d", "kind": "GAUGE"}),
        ("metric_create", {"family": 3, "labels": {"a": "b"}, "buckets": None}),
        ("metric_increment", {"metric": 4, "value": -2.0}),
        ("metric_set", {"metric": 4, "value": 0.5}),
        ("metric_value", {"metric": 4}),
        ("metric_delete", {"metric": 4}),
    ]


def test_a_histogram(memory_server: MemoryServer) -> None:
    MetricFamily("f", "d", MetricFamily.HISTOGRAM).Metric(buckets=[1, 2.5]).observe(2)
    assert memory_server.calls[1:] == [
        ("metric_create", {"family": 3, "labels": {}, "buckets": [1.0, 2.5]}),
        ("metric_observe", {"metric": 4, "value": 2.0}),
    ]


def test_refusals_of_the_server_have_the_prefix(memory_server: MemoryServer) -> None:
    gauge = metric(MetricFamily.GAUGE)
    for verb, call in (("increment", lambda: gauge.increment(1)), ("set", lambda: gauge.set(1)), ("get", gauge.value)):
        memory_server.refusals[f"metric_{'value' if verb == 'get' else verb}"] = "why"
        with pytest.raises(TritonModelException, match=f"^Failed to {verb} metric value: why$"):
            call()


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        ("GAUGE", {"labels": [1]}, "Failed to create metric. Labels must be a dictionary."),
        ("COUNTER", {"buckets": (1,)}, "Failed to create metric. Buckets must be a list."),
        ("HISTOGRAM", {"buckets": (1,)}, "Failed to create metric. Buckets must be a list."),
    ],
)
def test_metrics_that_cannot_be_made(kind: str, arguments: dict[str, Any], text: str) -> None:
    family = MetricFamily("f", "d", MetricKind[kind])
    with pytest.raises(TritonModelException) as caught:
        family.Metric(**arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize("arguments", [(None, "d", MetricKind.GAUGE), ("f", None, MetricKind.GAUGE), ("f", "d", 1)])
def test_wrong_types_of_a_family(arguments: Any) -> None:
    with pytest.raises(TypeError, match="MetricFamily"):
        MetricFamily(*arguments)


@pytest.mark.parametrize("value", ["1", None, float("nan"), float("inf"), [1]])
def test_wrong_values(value: Any) -> None:
    with pytest.raises(TypeError, match="the value of a metric must be"):
        metric(MetricFamily.GAUGE).set(value)


def test_labels_are_text() -> None:
    with pytest.raises(TypeError, match="the value of a label must be a str, not int"):
        MetricFamily("f", "d", MetricFamily.GAUGE).Metric(labels={"a": 1})  # type: ignore[dict-item]
