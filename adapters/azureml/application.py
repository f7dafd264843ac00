"""Azure ML's routes as a WSGI application: scoring in every format of the v2 core, and two probes.

Source: docs/spec/azureml.md.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from trident.adapters.azureml.platform import LIVE_ROUTE, READY_ROUTE, SCORE_ROUTE
from trident.adapters.common.platform import Host
from trident.adapters.common.routes import BODY_STATUSES, FORMAT_ANSWER, FORMAT_BODY, PROGRESS, absent_route, status_in
from trident.core.frontend.dataplane import one_response
from trident.core.frontend.default_model import DefaultModel
from trident.core.http.admin import live, readiness, ready_reply
from trident.core.http.application import InferPath, V2Application
from trident.core.http.dataplane import infer_body, read_body
from trident.core.http.front_end import PROBE_KEY
from trident.core.http.openapi import Operation, operations
from trident.core.http.payloads.inference import body_format, decode_payload, format_for, infer_payload, payload_reply
from trident.core.http.payloads.tables import table_as_instances
from trident.core.http.reply import JSON, Environ, Reply, json_reply
from trident.core.http.routes import GET, POST, Route
from trident.core.http.text_generation import text_answer
from trident.core.inference.request import LATEST, InferenceRequest

_NOT_YET = 503
_OPERATIONS = {
    "score": Operation("Run the model", FORMAT_ANSWER, FORMAT_BODY, parameters=operations()["infer"].parameters),
    "live": Operation("Whether the process serves", PROGRESS),
    "ready": Operation("Whether the container serves", PROGRESS),
}


class AzureMLApplication(V2Application):
    """Scores with the default model."""

    untyped_error_mime: ClassVar[str] = JSON
    has_hint_field: ClassVar[bool] = False
    answers_options: ClassVar[bool] = False

    def __init__(self, host: Host, default_model: str) -> None:
        model = host.default_model(default_model, "name one in --azureml-default-model")
        self._score = Route("score", (SCORE_ROUTE,), "inference", POST, partial(_score, model))
        routes = (
            self._score,
            Route("live", (LIVE_ROUTE,), "health", GET, live),
            Route("ready", (READY_ROUTE,), "health", GET, partial(_ready, model)),
            absent_route(f"GET {LIVE_ROUTE}, GET {READY_ROUTE}, POST {SCORE_ROUTE}"),
        )
        super().__init__(host.engine, host.options, host.bridge, routes)

    def documented_routes(self) -> list[tuple[Route, Operation]]:
        return [(route, _OPERATIONS[route.name]) for route in self.routes if route.name in _OPERATIONS]

    def infer_path(self, path: str) -> InferPath | None:
        return (self._score, {}) if path == SCORE_ROUTE else None

    def status_of(self, error: Exception) -> int:
        return status_in(BODY_STATUSES, error) or super().status_of(error)


def _score(default: DefaultModel, application: V2Application, environ: Environ) -> Reply:
    """Answer a request of the v2 protocol as plain HTTP does, and any other body in the format that Accept names."""
    body = read_body(application, environ)
    model, size_text = default.find(), application.binary_header(environ)
    if size_text is None:
        if (answer := text_answer(application, environ, model, body)) is not None:
            return answer
        body = table_as_instances(body, model.spec) or body
    found = None if size_text is not None else body_format(environ.get("CONTENT_TYPE", ""), body, model.spec, "")
    if found is None:
        return infer_body(application, environ, one_response(model), body, LATEST, size_text)
    payload = decode_payload(application, body, model.spec, found)
    media_type = format_for(environ.get("HTTP_ACCEPT"), outputs=len(model.spec.outputs))
    result = infer_payload(
        application, environ, one_response(model), payload, InferenceRequest(model.spec.name, [], model_version=LATEST)
    )
    return payload_reply(application, environ, result, media_type, payload.form)


def _ready(default: DefaultModel, application: V2Application, environ: Environ) -> Reply:
    environ[PROBE_KEY] = True
    engine = application.engine
    if engine.is_ready() and default.is_ready():
        return ready_reply(application, environ)
    return json_reply(readiness(engine.phase()), _NOT_YET)
