"""The route table of a SageMaker container. It has no v2 routes, because the platform forwards only its own.

Source: docs/spec/sagemaker.md sections A2 and A5, B3.
"""

from __future__ import annotations

from functools import partial
from urllib.parse import unquote

from adapters.common.absent_route import absent_route
from adapters.common.metrics_route import metrics_route
from adapters.sagemaker.endpoint import SageMakerEndpoint
from adapters.sagemaker.execution_parameters import execution_parameters
from adapters.sagemaker.invocations import invoke
from adapters.sagemaker.models import collection, member
from adapters.sagemaker.ping import ping
from adapters.sagemaker.request_headers import TARGET_MODEL, environ_key
from adapters.sagemaker.settings import InferenceType
from core.frontend.version_text import LATEST
from core.http.application import V2Application
from core.http.metrics_page import MetricsPage
from core.http.reply import Environ, Reply
from core.http.routes import GET, POST, Route
from core.http.views.generate import answer_events, answer_object, read_identity

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
