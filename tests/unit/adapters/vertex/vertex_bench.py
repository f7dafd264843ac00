"""A Vertex AI container on an engine with scripted responses, behind the test client."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
from werkzeug.test import Client

from tests.unit.fake_engine import FakeEngine
from trident.adapters.vertex.application import VertexApplication
from trident.adapters.vertex.platform import VertexSettings
from trident.core.errors import ServerError
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.admin import MetricsPage
from trident.core.http.front_end import HttpOptions
from trident.core.inference.request import InferenceRequest, Parameter
from trident.core.inference.response import InferenceResponse, OutputTensor

PREDICT = "/v1/endpoints/12/deployedModels/34:predict"
HEALTH = "/v1/endpoints/12/deployedModels/34"
V2 = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[2],"data":[1,2]}]}'
PUBLIC = ("health", "metadata", "inference", "model-config", "statistics", "metrics")


class VertexBench:
    """The model `simple` returns its input, unless `error` is set. `seen` are the requests that reached it."""

    def __init__(self, options: HttpOptions | None = None, **settings: Any) -> None:
        self.seen: list[InferenceRequest] = []
        self.error: ServerError | None = None
        self.parameters: dict[str, Parameter] | None = None
        self.engine = FakeEngine(self._respond)
        given = {"predict_route": PREDICT, "health_route": HEALTH, "public_groups": PUBLIC, **settings}
        self.application = VertexApplication(
            self.engine,
            options or HttpOptions(),
            ThreadBridge(),
            VertexSettings(**given),
            MetricsPage(lambda _: b"# page"),
        )
        client = Client(self.application)
        self.get: Any = client.get
        self.open: Any = client.open

    def post(
        self, body: Any = V2, content_type: str | None = "application/json", path: str = PREDICT, **headers: str
    ) -> Any:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        spelled = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.open(path, method="POST", data=data, content_type=content_type, headers=spelled)

    def responses(self) -> dict[tuple[str, str, int], int]:
        """The counts of responses by method, route and status."""
        (family,) = [one for one in self.application.request_metrics.collect() if one.name == "trident_http_responses"]
        totals = [sample for sample in family.samples if sample.name.endswith("_total")]
        return {
            (one.labels["method"], one.labels["route"], int(one.labels["status"])): int(one.value) for one in totals
        }

    def redirect(self, target: str, body: bytes = b"", **headers: str) -> Any:
        return self.post(body, X_Vertex_Ai_Triton_Redirect=target, **headers)

    def _respond(self, request: InferenceRequest) -> InferenceResponse:
        self.seen.append(request)
        if self.error is not None:
            return InferenceResponse("simple", 3, [], error=self.error)
        given = request.inputs[0].data
        array = given if isinstance(given, np.ndarray) else np.frombuffer(given, np.int32)
        output = OutputTensor("OUT", "INT32", array.shape, array)
        return InferenceResponse("simple", 3, [output], id=request.id, parameters=self.parameters)
