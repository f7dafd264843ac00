from __future__ import annotations

import pytest

from trident.core.http.generate import load_metrics
from trident.core.observability.metrics.snapshot import CustomFamilyMetrics, CustomSeriesMetrics


def family(name: str = "nv_trt_llm_kv_cache_block_metrics", model: str = "", **blocks: float) -> CustomFamilyMetrics:
    of_model = {"model": model} if model else {}
    series = tuple(
        CustomSeriesMetrics(labels={**of_model, "kv_cache_block_type": kind}, value=value)
        for kind, value in blocks.items()
    )
    return CustomFamilyMetrics(name=name, type="gauge", description="", series=series)


BLOCKS = family(used=30, max=120, tokens_per=64, free=90)
TEXT = "TEXT named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=7680"


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("text", TEXT),
        ("TEXT", TEXT),
        ("json", 'JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":7680}}'),
        ("grpc", None),
        ("", None),
    ],
)
def test_the_form_is_the_one_asked_for(form: str, value: str | None) -> None:
    assert load_metrics(form, "m", [family("other", used=1, max=1, tokens_per=1), BLOCKS]) == value


@pytest.mark.parametrize(
    "families",
    [
        [],
        [family("other", used=30, max=120, tokens_per=64)],
        [family(max=120, tokens_per=64)],
        [family(used=1, tokens_per=64)],
        [family(used=1, max=120)],
        [family(used=0, max=0, tokens_per=64)],
        [family(model="other", used=30, max=120, tokens_per=64)],
    ],
)
def test_without_all_three_metrics_there_is_none(families: list[CustomFamilyMetrics]) -> None:
    assert load_metrics("text", "m", families) is None


def test_of_several_models_the_metrics_of_the_requests_model_count() -> None:
    others = [family(model="m", used=30, max=120, tokens_per=64), family(model="n", used=1, max=1, tokens_per=1)]
    assert load_metrics("text", "m", others) == TEXT
