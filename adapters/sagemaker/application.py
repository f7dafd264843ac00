"""SageMaker's container contract as a WSGI application: the v2 core behind the platform's routes.

Source: docs/spec/sagemaker.md, all sections; docs/architecture.md section 3 point 4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from adapters.common.statuses import BODY_STATUSES, Statuses, status_in
from adapters.sagemaker import request_headers
from adapters.sagemaker.endpoint import SageMakerEndpoint
from adapters.sagemaker.memory import MemoryBudget
from adapters.sagemaker.model_states import ModelStates
from adapters.sagemaker.response_type import BINARY
from adapters.sagemaker.routes import endpoint_routes
from adapters.sagemaker.settings import SageMakerSettings
from core.engine.protocol import Engine
from core.errors import AlreadyLoaded, OutOfMemory
from core.frontend.bridge import Bridge
from core.http.application import InferPath, V2Application
from core.http.metrics_page import MetricsPage
from core.http.options import HttpOptions
from core.http.reply import JSON, Environ, Headers
from core.http.v2.binary_type import SIZE
from core.inference.request import InferenceRequest, Parameter
from core.inference.times import InferenceTimes

_INVOKE_PATH = re.compile(r"/models/([^/]+)/invoke")
# On a 507 the platform unloads another model and tries again.
_STATUSES: Statuses = ((OutOfMemory, 507), (AlreadyLoaded, 409), *BODY_STATUSES)


class SageMakerApplication(V2Application):
    """Serves one model of `engine`, or with `settings.multi_model` the models that the platform loads."""

    binary_mime = BINARY.essence
    inference_header = SIZE
    early_error_mime = JSON
    has_hint_field = False
    answers_options = False

    def __init__(
        self,
        engine: Engine,
        options: HttpOptions,
        bridge: Bridge,
        settings: SageMakerSettings,
        metrics_page: MetricsPage,
        *,
        memory: MemoryBudget | None = None,
        states: ModelStates | None = None,
    ) -> None:
        """`memory` and `states` are those of the models of a multi-model endpoint.

        Raises ConfigInvalid for settings that cannot be right.
        """
        endpoint = SageMakerEndpoint(engine, bridge, settings, memory, states)
        routes = endpoint_routes(endpoint, metrics_page)
        self._named = {route.name: route for route in routes}
        super().__init__(engine, options, bridge, routes)

    # --- the hooks of V2Application

    def binary_header(self, environ: Environ) -> str | None:
        content_type = environ.get("CONTENT_TYPE")
        return BINARY.size_text(content_type) if content_type else None

    def body_headers(self, json_length: int | None) -> Headers:
        return [("Content-Type", JSON if json_length is None else BINARY.of(json_length))]

    def adopt_headers(self, environ: Environ, request: InferenceRequest) -> None:
        request_headers.adopt_headers(environ, request)

    def parameter_headers(self, parameters: Mapping[str, Parameter]) -> Headers:
        return request_headers.parameter_headers(parameters)

    def add_timing(self, times: InferenceTimes, headers: Headers) -> None:
        super().add_timing(times, headers)
        request_headers.add_timing(times, headers)

    def infer_path(self, path: str) -> InferPath | None:
        if path == "/invocations":
            return self._named["invocations"], {}
        found = _INVOKE_PATH.fullmatch(path)
        return (self._named["invoke_model"], {"model": found[1]}) if found else None

    def status_of(self, error: Exception) -> int:
        return status_in(_STATUSES, error) or super().status_of(error)
