"""The route table of a SageMaker container. The v2 routes are not in it: the platform forwards its own only.

Source: docs/spec/sagemaker.md sections A2 and A5, B3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from adapters.sagemaker.errors import RouteAbsent
from adapters.sagemaker.execution_parameters import execution_parameters
from adapters.sagemaker.models import collection, member
from adapters.sagemaker.ping import ping
from core.http.metrics_application import PROMETHEUS
from core.http.reply import Environ, Reply, text_reply
from core.http.routes import GET, POST, Route

if TYPE_CHECKING:
    from adapters.sagemaker.application import SageMakerApplication

_ANY = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE", "UNKNOWN"})


def invocations(application: SageMakerApplication, environ: Environ) -> Reply:
    """By the hook, as the short way of the application does it."""
    return application.infer_view(environ, "", "")


def invoke_model(application: SageMakerApplication, environ: Environ, model: str) -> Reply:
    return application.infer_view(environ, unquote(model), "")


def metrics(application: SageMakerApplication, environ: Environ) -> Reply:
    return text_reply(200, application.metrics_page(), PROMETHEUS)


def absent(application: SageMakerApplication, environ: Environ, rest: str = "") -> Reply:
    """Whatever is no route learns which there are; Triton answers an empty 400."""
    known = MULTI if application.settings.multi_model else SINGLE
    listed = ", ".join(f"{'|'.join(sorted(route.methods))} {route.rules[0]}" for route in known)
    raise RouteAbsent(f"there is no such route; the routes are: {listed}")


_INVOCATIONS = Route("invocations", ("/invocations",), "inference", POST, invocations)
_PING = Route("ping", ("/ping",), "health", GET, ping)
_METRICS = Route("metrics", ("/metrics", "/metrics/"), "", GET, metrics)
_EXECUTION = Route("execution_parameters", ("/execution-parameters",), "metadata", GET, execution_parameters)
_MODELS = (
    Route("models", ("/models",), "model-repository", GET | POST, collection),
    Route("model", ("/models/<model>",), "model-repository", frozenset({"GET", "DELETE"}), member),
    Route("invoke_model", ("/models/<model>/invoke",), "inference", POST, invoke_model),
)

SINGLE = (_PING, _INVOCATIONS, _EXECUTION, _METRICS)
MULTI = (_PING, *_MODELS, _METRICS)
ROUTES = (_PING, _INVOCATIONS, _EXECUTION, _METRICS, *_MODELS, Route("absent", ("/", "/<path:rest>"), "", _ANY, absent))
