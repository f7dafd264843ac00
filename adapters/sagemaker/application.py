"""SageMaker's container contract as a WSGI application: the v2 core behind the platform's routes.

Source: docs/spec/sagemaker.md, all sections; docs/architecture.md section 3 point 4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from urllib.parse import unquote

from trident.adapters.common.routes import BODY_STATUSES, Statuses, absent_route, metrics_route, status_in
from trident.adapters.sagemaker import invocations as request_headers
from trident.adapters.sagemaker.invocations import BINARY, TARGET_MODEL, environ_key, execution_parameters, invoke, ping
from trident.adapters.sagemaker.memory import MemoryBudget
from trident.adapters.sagemaker.model_registry import SageMakerEndpoint
from trident.adapters.sagemaker.model_states import ModelStates
from trident.adapters.sagemaker.models import collection, member
from trident.adapters.sagemaker.settings import InferenceType, SageMakerSettings
from trident.core.engine.protocol import Engine
from trident.core.errors import AlreadyLoaded, OutOfMemory
from trident.core.frontend.bridge import Bridge
from trident.core.frontend.request import LATEST
from trident.core.http.application import InferPath, V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.http.generate import answer_events, answer_object, read_identity
from trident.core.http.metrics import MetricsPage
from trident.core.http.reply import JSON, Environ, Headers, Reply
from trident.core.http.routes import GET, POST, Route
from trident.core.http.v2_request import SIZE
from trident.core.inference.request import InferenceRequest, InferenceTimes, Parameter

_TARGET_MODEL = environ_key(TARGET_MODEL)
_GENERATES = {InferenceType.GENERATE: answer_object, InferenceType.GENERATE_STREAM: answer_events}
_GET_DELETE = frozenset({"GET", "DELETE"})


def endpoint_routes(endpoint: SageMakerEndpoint, metrics_page: MetricsPage) -> tuple[Route, ...]:
    """All routes in both modes: the routes of the other mode say which setting opens them."""
    settings = endpoint.settings
    health = Route("ping", ("/ping",), "health", GET, partial(ping, settings.ping_mode))
    metrics = metrics_route(metrics_page)
    single = (
        Route("invocations", ("/invocations",), "inference", POST, partial(_invocations, endpoint)),
        Route(
            "execution_parameters", ("/execution-parameters",), "metadata", GET, partial(execution_parameters, settings)
        ),
    )
    multi = (
        Route("models", ("/models",), "model-repository", GET | POST, partial(collection, endpoint)),
        Route("model", ("/models/<model>",), "model-repository", _GET_DELETE, partial(member, endpoint)),
        Route("invoke_model", ("/models/<model>/invoke",), "inference", POST, partial(_invoke_model, endpoint)),
    )
    listed = (health, *(multi if settings.multi_model else single), metrics)
    return (health, *single, metrics, *multi, absent_route(", ".join(map(_shown, listed))))


def _invocations(endpoint: SageMakerEndpoint, application: V2Application, environ: Environ) -> Reply:
    generate = _GENERATES.get(endpoint.settings.inference_type)
    if generate is not None:
        return generate(application, environ, endpoint.default_model(), read_identity(application, environ), LATEST)
    return invoke(application, environ, endpoint.default_model(), endpoint.response_types)


def _invoke_model(endpoint: SageMakerEndpoint, application: V2Application, environ: Environ, model: str) -> Reply:
    archive = environ.get(_TARGET_MODEL, "")
    name = unquote(model)
    with endpoint.loaded_models().invocation(name, archive):
        return invoke(application, environ, application.engine.model(name), endpoint.response_types)


def _shown(route: Route) -> str:
    return f"{'|'.join(sorted(route.methods))} {route.rules[0]}"


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
