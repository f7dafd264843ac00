"""A platform's application on an engine with scripted responses, behind the test client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
from werkzeug.test import Client

from tests.unit.fake_engine import FakeEngine
from trident.adapters.common.platform import Host
from trident.core.errors import ServerError
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.admin import MetricsPage
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.inference.request import InferenceRequest, Parameter
from trident.core.inference.response import InferenceResponse, OutputTensor

V2 = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[2],"data":[1,2]}]}'


def host_of(engine: Any, options: HttpOptions | None = None, bridge: Any = None) -> Host:
    page = MetricsPage(lambda _: b"# page")
    return Host(engine=engine, bridge=bridge or ThreadBridge(), options=options or HttpOptions(), metrics_page=page)


class PlatformBench:
    """The model `simple` returns its input, unless `error` is set. `seen` are the requests that reached it."""

    def __init__(
        self, make: Callable[[Host, Any], V2Application], settings: Any, options: HttpOptions | None = None
    ) -> None:
        self.seen: list[InferenceRequest] = []
        self.error: ServerError | None = None
        self.parameters: dict[str, Parameter] | None = None
        self.engine = FakeEngine(self._respond)
        self.application = make(host_of(self.engine, options), settings)
        client = Client(self.application)
        self.get: Any = client.get
        self.open: Any = client.open

    def post(self, path: str, body: Any, content_type: str | None = "application/json", **headers: str) -> Any:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        spelled = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.open(path, method="POST", data=data, content_type=content_type, headers=spelled)

    def _respond(self, request: InferenceRequest) -> InferenceResponse:
        self.seen.append(request)
        if self.error is not None:
            return InferenceResponse("simple", 3, [], error=self.error)
        given = request.inputs[0].data
        array = given if isinstance(given, np.ndarray) else np.frombuffer(given, np.int32)
        output = OutputTensor("OUT", "INT32", array.shape, array)
        return InferenceResponse("simple", 3, [output], id=request.id, parameters=self.parameters)
