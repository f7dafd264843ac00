"""SageMaker's container contract as a WSGI application: the v2 core behind the platform's routes.

Source: docs/spec/sagemaker.md, all sections; docs/architecture.md section 3 point 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import ClassVar, Final
from urllib.parse import unquote

from trident.adapters.common.platform import Host
from trident.adapters.common.routes import (
    BODY_STATUSES,
    FORMAT_ANSWER,
    FORMAT_BODY,
    PROGRESS,
    RouteAbsent,
    Statuses,
    absent_route,
    metrics_route,
    status_in,
)
from trident.adapters.sagemaker import invocations as request_headers
from trident.adapters.sagemaker.invocations import (
    BINARY,
    TARGET_MODEL,
    ResponseTypes,
    environ_key,
    invoke,
    session_of,
)
from trident.adapters.sagemaker.multi_model import LoadedModels, collection, member
from trident.adapters.sagemaker.platform import (
    DEFAULT_MODEL,
    IN_FLIGHT_MB,
    MULTI_MODEL,
    InferenceType,
    PingMode,
    SageMakerSettings,
)
from trident.core.engine.protocol import ServedModel
from trident.core.errors import AlreadyLoaded, OutOfMemory
from trident.core.http import completions
from trident.core.http.admin import MetricsPage, readiness, ready_reply
from trident.core.http.application import InferPath, V2Application
from trident.core.http.generate import answer_events, answer_object, read_identity
from trident.core.http.openapi import Operation, operations
from trident.core.http.payloads.inference import SIZE
from trident.core.http.reply import JSON, TEXT, Environ, Headers, Reply, empty_reply, json_reply
from trident.core.http.routes import GET, POST, ROUTES, Route, View
from trident.core.http.stream import Forms, open_socket
from trident.core.inference.request import LATEST, InferenceRequest, InferenceTimes, Parameter

BIDIRECTIONAL_STREAM = "/invocations-bidirectional-stream"
_MB = 1 << 20
_NOT_YET = 503
_TARGET_MODEL = environ_key(TARGET_MODEL)
_GENERATES = {InferenceType.GENERATE: answer_object, InferenceType.GENERATE_STREAM: answer_events}
_OPENAI = {"chat_completions", "completions", "embeddings", "v1_models"}
_GET_DELETE = frozenset({"GET", "DELETE"})


class SageMakerEndpoint:
    """The state that the routes of one container share. Any thread."""

    def __init__(self, host: Host, settings: SageMakerSettings) -> None:
        """Raises ConfigInvalid for settings that cannot be right."""
        self.settings = settings
        self.response_types = ResponseTypes(settings)
        cure = f"set {DEFAULT_MODEL} to the model that /invocations runs"
        self._default_model = host.default_model(settings.default_model, cure)
        self._loaded = LoadedModels(host.engine, settings.models_root) if settings.multi_model else None

    def default_model(self) -> ServedModel:
        """The model of /invocations. Raises RouteAbsent on a multi-model endpoint, else as `DefaultModel.find`."""
        if self._loaded is not None:
            raise RouteAbsent("this endpoint serves many models: name one with POST /models/{name}/invoke")
        return self._default_model.find()

    def loaded_models(self) -> LoadedModels:
        """The models of a multi-model endpoint. Raises RouteAbsent on an endpoint with one model."""
        if self._loaded is None:
            raise RouteAbsent(
                f"this endpoint serves one model, by POST /invocations: {MULTI_MODEL} is not 'true'",
                hint=f"set {MULTI_MODEL}=true for an endpoint that loads models by POST /models",
            )
        return self._loaded


def endpoint_routes(endpoint: SageMakerEndpoint, metrics_page: MetricsPage) -> tuple[Route, ...]:
    """All routes in both modes: the routes of the other mode say which setting opens them."""
    settings = endpoint.settings
    health = Route("ping", ("/ping",), "health", GET, partial(ping, settings.ping_mode))
    metrics = metrics_route(metrics_page)
    single = (
        Route("invocations", ("/invocations",), "inference", POST, partial(_invocations, endpoint)),
        Route("bidirectional_stream", (BIDIRECTIONAL_STREAM,), "inference", GET, partial(_stream, endpoint)),
        Route(
            "execution_parameters", ("/execution-parameters",), "metadata", GET, partial(execution_parameters, settings)
        ),
    )
    # The platform passes /endpoints/NAME/openai/v1/chat/completions to /v1/chat/completions; OpenAI's other routes are
    # for clients beside the platform. Callers of these cannot name a model of a multi-model endpoint.
    views: dict[str, View] = {
        "chat_completions": partial(completions.chat_completions, default=settings.default_model),
        "completions": partial(completions.completions, default=settings.default_model),
    }
    openai = [replace(route, view=views.get(route.name, route.view)) for route in ROUTES if route.name in _OPENAI]
    multi = (
        Route("models", ("/models",), "model-repository", GET | POST, partial(collection, endpoint.loaded_models)),
        Route("model", ("/models/<model>",), "model-repository", _GET_DELETE, partial(member, endpoint.loaded_models)),
        Route("invoke_model", ("/models/<model>/invoke",), "inference", POST, partial(_invoke_model, endpoint)),
    )
    listed = (health, *(multi if settings.multi_model else (*single, *openai)), metrics)
    served = [] if settings.multi_model else openai
    return (health, *single, *served, metrics, *multi, absent_route(", ".join(map(_shown, listed))))


def execution_parameters(settings: SageMakerSettings, application: V2Application, environ: Environ) -> Reply:
    """Bodies within the server's limit, and as many at once as the platform's limit for all bodies in flight allows."""
    payload = min(settings.max_payload_mb, max(1, application.options.max_input_size // _MB))
    transforms = settings.max_concurrent_transforms
    if payload:
        transforms = max(1, min(transforms, IN_FLIGHT_MB // payload))
    return json_reply(
        {"MaxConcurrentTransforms": transforms, "BatchStrategy": settings.batch_strategy, "MaxPayloadInMB": payload}
    )


def ping(mode: PingMode, application: V2Application, environ: Environ) -> Reply:
    """200 when the server is ready, or only live in that mode; otherwise 503 (in Triton 400) with the start's progress.

    The body of the 200 is empty; a header has the models whose last load failed.
    """
    engine = application.engine
    serves = engine.is_live() if mode is PingMode.LIVE else engine.is_ready()
    if not serves:
        return json_reply(readiness(engine.phase()), _NOT_YET)
    return ready_reply(application, environ) if engine.is_ready() else empty_reply(TEXT)


def _invocations(endpoint: SageMakerEndpoint, application: V2Application, environ: Environ) -> Reply:
    model = endpoint.default_model()

    def answer() -> Reply:
        generate = _GENERATES.get(endpoint.settings.inference_type)
        if generate is not None:
            return generate(application, environ, model, read_identity(application, environ), LATEST)
        return invoke(application, environ, model, endpoint.response_types)

    return _in_session(endpoint, environ, model, answer)


def _in_session(
    endpoint: SageMakerEndpoint, environ: Environ, model: ServedModel, answer: Callable[[], Reply]
) -> Reply:
    """Return the reply of `answer` with its session header, if it has a session and the model has not set one."""
    session = session_of(environ, model.spec, endpoint.settings)
    if session is None:
        return answer()
    reply = None
    try:
        reply = answer()
    finally:
        if reply is None or reply.status >= HTTPStatus.BAD_REQUEST:
            session.give_up(model)
    if reply.status < HTTPStatus.BAD_REQUEST:
        own = {name for name, _ in reply.headers}
        reply.headers += [header for header in session.headers() if header[0] not in own]
    return reply


def _stream(endpoint: SageMakerEndpoint, application: V2Application, environ: Environ) -> Reply:
    """The WebSocket that the platform opens for InvokeEndpointWithBidirectionalStream."""
    return open_socket(application, environ, lambda: (endpoint.default_model(), LATEST), Forms(binary=True))


def _invoke_model(endpoint: SageMakerEndpoint, application: V2Application, environ: Environ, model: str) -> Reply:
    name = unquote(model)
    models = endpoint.loaded_models()
    served = application.engine.model(name)
    models.note_archive(name, environ.get(_TARGET_MODEL, ""))
    return _in_session(endpoint, environ, served, lambda: invoke(application, environ, served, endpoint.response_types))


def _shown(route: Route) -> str:
    return f"{'|'.join(sorted(route.methods))} {route.rules[0]}"


_INVOKE_PATH = re.compile(r"/models/([^/]+)/invoke")
# On a 507 the platform unloads another model and tries again.
_STATUSES: Statuses = ((OutOfMemory, 507), (AlreadyLoaded, 409), *BODY_STATUSES)


class SageMakerApplication(V2Application):
    """Serves one model of `engine`, or with `settings.multi_model` the models that the platform loads."""

    binary_mime: ClassVar[str] = BINARY.essence
    inference_header: ClassVar[str] = SIZE
    untyped_error_mime: ClassVar[str] = JSON
    has_hint_field: ClassVar[bool] = False
    answers_options: ClassVar[bool] = False

    def __init__(self, host: Host, settings: SageMakerSettings) -> None:
        """Raises ConfigInvalid for settings that cannot be right."""
        routes = endpoint_routes(SageMakerEndpoint(host, settings), host.metrics_page)
        self._named = {route.name: route for route in routes}
        self._is_multi_model = settings.multi_model
        super().__init__(host.engine, host.options, host.bridge, routes)

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

    def documented_routes(self) -> list[tuple[Route, Operation]]:
        shown = OPERATIONS.keys() - (_SINGLE if self._is_multi_model else _MULTI)
        known = {**{name: operations()[name] for name in _OPENAI}, **OPERATIONS}
        return [(route, known[route.name]) for route in self.routes if route.name in shown | _OPENAI]

    def named(self, arguments: dict[str, str]) -> dict[str, str]:
        """The multi-model routes take the encoding off names themselves, once."""
        return arguments

    def infer_path(self, path: str) -> InferPath | None:
        if path == "/invocations":
            return self._named["invocations"], {}
        found = _INVOKE_PATH.fullmatch(path)
        return (self._named["invoke_model"], {"model": found[1]}) if found else None

    def status_of(self, error: Exception) -> int:
        return status_in(_STATUSES, error) or super().status_of(error)


_INVOKE = Operation(
    "Run the model",
    {**FORMAT_ANSWER, BINARY.essence: "any"},
    {JSON: FORMAT_BODY[JSON], BINARY.essence: "bytes", **FORMAT_BODY},
    needs_body=False,
)
_MODELS = {"models": [{"modelName": "text", "modelUrl": "text"}], "nextPageToken?": "text"}

OPERATIONS: Final = {
    "ping": Operation("Whether the container serves", PROGRESS),
    "invocations": _INVOKE,
    "bidirectional_stream": Operation("Requests and answers on a WebSocket", status=HTTPStatus.SWITCHING_PROTOCOLS),
    "execution_parameters": Operation(
        "How batch transform sends bodies",
        {"MaxConcurrentTransforms": "count", "BatchStrategy": "text", "MaxPayloadInMB": "count"},
    ),
    "metrics": Operation("Metrics as Prometheus reads them", {TEXT: "text"}),
    "models": Operation(
        "The loaded models; a POST loads one", {JSON: _MODELS, TEXT: "text"}, {"model_name": "text", "url": "text"}
    ),
    "model": Operation("Where the model was loaded from; a DELETE unloads it", {JSON: "object", TEXT: "text"}),
    "invoke_model": _INVOKE,
}
_SINGLE = {"invocations", "bidirectional_stream", "execution_parameters"}
_MULTI = {"models", "model", "invoke_model"}
