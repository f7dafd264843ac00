"""A Vertex AI container on an engine with scripted responses, behind the test client."""

from __future__ import annotations

from typing import Any

from tests.unit.adapters.platform_bench import V2, PlatformBench
from trident.adapters.vertex.application import VertexApplication
from trident.adapters.vertex.platform import VertexSettings
from trident.core.http.front_end import HttpOptions

PREDICT = "/v1/endpoints/12/deployedModels/34:predict"
HEALTH = "/v1/endpoints/12/deployedModels/34"
PUBLIC = ("health", "metadata", "inference", "model-config", "statistics", "metrics")


class VertexBench(PlatformBench):
    def __init__(self, options: HttpOptions | None = None, **settings: Any) -> None:
        given = {"predict_route": PREDICT, "health_route": HEALTH, "public_groups": PUBLIC, **settings}
        super().__init__(VertexApplication, VertexSettings(**given), options)

    def predict(
        self, body: Any = V2, content_type: str | None = "application/json", path: str = PREDICT, **headers: str
    ) -> Any:
        return self.post(path, body, content_type, **headers)

    def responses(self) -> dict[tuple[str, str, int], int]:
        """The counts of responses by method, route and status."""
        (family,) = [one for one in self.application.request_metrics.collect() if one.name == "trident_http_responses"]
        totals = [sample for sample in family.samples if sample.name.endswith("_total")]
        return {
            (one.labels["method"], one.labels["route"], int(one.labels["status"])): int(one.value) for one in totals
        }

    def redirect(self, target: str, body: bytes = b"", **headers: str) -> Any:
        return self.predict(body, X_Vertex_Ai_Triton_Redirect=target, **headers)
