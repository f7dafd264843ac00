"""The load of a model's cache as a response header, for load balancers that ask for it.

A model that keeps a cache of keys and values in blocks, as language models do, reports them in a metric of its own.
Source: docs/spec/http.md section 9; https://github.com/cncf/xds, "Open Request Cost Aggregation".
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from core.observability.metrics.snapshot import CustomFamilyMetrics

REQUEST_KEY = "HTTP_ENDPOINT_LOAD_METRICS_FORMAT"
RESPONSE_HEADER = "endpoint-load-metrics"

_FAMILY = "nv_trt_llm_kv_cache_block_metrics"
_KIND = "kv_cache_block_type"


def load_metrics(form: str, model: str, families: Iterable[CustomFamilyMetrics]) -> str | None:
    """The value of the response header in `form`, "json" or "text"; None for another form, or without the metrics.

    The metrics are those of `model` where they name a model.
    """
    blocks = {
        series.labels.get(_KIND): series.value
        for family in families
        if family.name == _FAMILY
        for series in family.series
        if series.labels.get("model", model) == model
    }
    used, most, tokens = (blocks.get(kind) for kind in ("used", "max", "tokens_per"))
    if used is None or tokens is None or not most:
        return None
    utilization, capacity = used / most, int(most * tokens)
    if form.lower() == "json":
        named = {"kv_cache_utilization": utilization, "max_token_capacity": capacity}
        return f"JSON {orjson.dumps({'named_metrics': named}).decode()}"
    if form.lower() == "text":
        return f"TEXT named_metrics.kv_cache_utilization={utilization:.6f}, named_metrics.max_token_capacity={capacity}"
    return None
