from __future__ import annotations

from trident.core.observability.latencies import Buckets, Exemplar


def filled() -> Buckets:
    buckets = Buckets([10, 20, 30])
    buckets.counts = [1, 2, 3, 4]
    buckets.exemplars = [("a", 9, 1000), ("b", 19, 3000), ("c", 29, 2000), None]
    return buckets


def test_limits_are_ascending_and_unique() -> None:
    assert Buckets([30, 10, 30]).limits == [10, 30]
    assert Buckets([]).counts == [0]


def test_buckets_are_merged_with_the_latest_exemplar() -> None:
    merged = filled().merged_into([30])
    assert (merged.limits, merged.counts, merged.exemplars) == ([30], [6, 4], [("b", 19, 3000), None])


def test_equal_buckets_are_added() -> None:
    other = Buckets([10, 20, 30])
    other.counts = [0, 0, 1, 1]
    other.exemplars = [None, None, ("d", 28, 2500), ("e", 99, 1)]
    total = filled().plus(other)
    assert total.counts == [1, 2, 4, 5]
    assert total.exemplars == [("a", 9, 1000), ("b", 19, 3000), ("d", 28, 2500), ("e", 99, 1)]


def test_metrics_are_in_the_unit_of_the_name() -> None:
    metrics = filled().metrics("h", (1.0, 2.0, 3.0), 7.5, 10)
    assert (metrics.name, metrics.bounds, metrics.counts, metrics.sum) == ("h", (1.0, 2.0, 3.0), (1, 2, 3, 4), 7.5)
    assert metrics.count == 10
    assert metrics.exemplars[1] == Exemplar(request_id="b", value=1.9, timestamp=3.0)
    assert metrics.exemplars[3] is None


def test_an_id_that_cannot_be_printed_is_no_exemplar() -> None:
    buckets = Buckets([1])
    buckets.exemplars = [("line\nend", 1, 1), ("nul\0", 2, 1)]
    assert buckets.metrics("h", (1.0,), 0, 1).exemplars == (None, None)
