from __future__ import annotations

from google.protobuf import text_format

from trident.core.config.batching import histogram_buckets
from trident.core.config.schema import ModelConfig
from trident.core.observability.latency_options import DEFAULT_BUCKETS, FIRST_RESPONSE, QUEUE


def buckets(*controls: tuple[str, str]) -> dict[str, tuple[float, ...]]:
    text = " ".join(
        f'metric_control {{ metric_identifier {{ family: "{family}" }} histogram_options {{ buckets: [ {bounds} ] }} }}'
        for family, bounds in controls
    )
    return histogram_buckets(text_format.Parse(f"model_metrics {{ {text} }}", ModelConfig()))


def test_a_model_has_the_default_buckets_of_every_histogram() -> None:
    assert histogram_buckets(ModelConfig()) == DEFAULT_BUCKETS
    assert histogram_buckets(ModelConfig())[FIRST_RESPONSE] == (100, 500, 2000, 5000)


def test_a_model_chooses_the_buckets_of_one_histogram() -> None:
    assert buckets((FIRST_RESPONSE, "1, 10, 0.5")) == {**DEFAULT_BUCKETS, FIRST_RESPONSE: (0.5, 1, 10)}
    assert buckets((QUEUE, "0.1"), (FIRST_RESPONSE, "7")) == {**DEFAULT_BUCKETS, QUEUE: (0.1,), FIRST_RESPONSE: (7,)}


def test_bounds_without_a_meaning_are_left_out() -> None:
    assert buckets((QUEUE, "2, inf, 1, nan, 2"))[QUEUE] == (1, 2)
    assert buckets((QUEUE, "inf"), ("nv_x", "1")) == DEFAULT_BUCKETS
