"""The v2 protocol as a WSGI application.

Infer requests take the short way: `__call__` knows their path and calls the view itself. All other routes, and every
infer request that is not a POST, go through Flask. Both ways end in `V2Application.answer`.
Source: docs/architecture.md section 3 point 4, docs/spec/http.md sections 1 and 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from flask import Flask, Request, Response, request
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_flask_exporter import PrometheusMetrics
from werkzeug.exceptions import NotFound
from werkzeug.routing import MapAdapter

from core.errors import InvalidRequest
from core.frontend.bridge import Bridge
from core.frontend.restricted_apis import ApiRestricted, Restrictions
from core.http import errors
from core.http.options import HttpOptions
from core.http.reply import JSON, STATUS_LINES, TEXT, Environ, Headers, Reply, plain_parts, send
from core.http.request_headers import header_of
from core.http.request_path import path_of, request_path, request_target
from core.http.route_map import url_map
from core.http.routes import INFER, ROUTES, Route
from core.http.version_text import version_number
from core.http.views.infer import infer
from core.inference.request import InferenceRequest, Parameter
from core.memo import Memo

if TYPE_CHECKING:
    from core.engine.protocol import Engine

_INFER_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?/infer")
_OFFSET_DIGITS = 10
# Any other would become a label of the request metrics, and clients could make as many as they like.
_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
# The infer view sets this for what it refuses before it parses the body: Triton answers that as text.
PLAIN_TEXT_KEY = "trident.plain_text"


class V2Application(Flask):
    """Serves `engine` over the v2 protocol; `bridge` waits for it in the way that fits the server.

    A subclass changes what its platform wants changed, by these and nothing else:

    * `routes`: the route table.
    * `binary_mime`, `inference_header`: how a body with binary tensors behind its JSON is marked.
    * `early_error_mime`: the content type of what is refused before a body is parsed.
    * `binary_header(environ)`: the length of the JSON part as the request gives it.
    * `body_headers(json_length)`: the headers of an infer response.
    * `adopt_headers(environ, request)`: what headers add to an infer request.
    * `parameter_headers(parameters)`: what the parameters of an infer response add to its headers.
    * `infer_path(path)`: which paths are infer requests, and of which model. A pure function: answers are remembered.
    * `infer_view(environ, model, version)`: what an infer request does.
    * `status_of(error)`: the status of an error.
    """

    routes: tuple[Route, ...] = ROUTES
    binary_mime = "application/octet-stream"
    inference_header = "Inference-Header-Content-Length"
    early_error_mime = TEXT

    def __init__(self, engine: Engine, options: HttpOptions, bridge: Bridge) -> None:
        super().__init__("core.http", static_folder=None, template_folder=None)
        self.engine = engine
        self.options = options
        self.bridge = bridge
        self.request_metrics = CollectorRegistry()
        self._restrictions = Restrictions(options.restricted)
        self._infer_paths: Memo[str, dict[str, str]] = Memo(1024)
        self._header_key = "HTTP_" + self.inference_header.upper().replace("-", "_")
        self._add_routes()
        PrometheusMetrics(self, path=None, group_by=_route, registry=self.request_metrics)

    # --- the hooks ---------------------------------------------------------------------------------------------------

    def binary_header(self, environ: Environ) -> str | None:
        """The text that says how long the JSON part of the request's body is, None if the request does not say."""
        header: str | None = environ.get(self._header_key)
        return header

    def body_headers(self, json_length: int | None) -> Headers:
        """Content-Type and what belongs to it; `json_length` is None if no binary tensor follows the JSON."""
        if json_length is None:
            return [("Content-Type", JSON)]
        return [("Content-Type", self.binary_mime), (self.inference_header, str(json_length))]

    def adopt_headers(self, environ: Environ, request: InferenceRequest) -> None:
        """Note in a decoded `request` what the platform says of it in headers. Raises InvalidRequest."""

    def parameter_headers(self, parameters: Mapping[str, Parameter]) -> Headers:
        """The headers that a response has because the model set `parameters`. Raises ServerError."""
        return []

    def infer_path(self, path: str) -> dict[str, str] | None:
        """The arguments for `infer_view` if a POST to `path` is an infer request, else None."""
        found = _INFER_PATH.fullmatch(path)
        return {"model": found[1], "version": found[2] or ""} if found else None

    def infer_view(self, environ: Environ, model: str, version: str) -> Reply:
        """Run the request on `model`; `version` is text, empty for the latest. Raises ServerError."""
        try:
            number = version_number(version)
        except InvalidRequest:
            environ[PLAIN_TEXT_KEY] = True
            raise
        return infer(self, environ, model, number)

    def status_of(self, error: Exception) -> int:
        """The status for `error`, which may be of any class."""
        return errors.status_of(error)

    # --- requests ----------------------------------------------------------------------------------------------------

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[Any]:
        method = environ["REQUEST_METHOD"]
        if method == "POST":
            target = request_target(environ)
            arguments = self._infer_paths.get(target) or self._find_infer(target)
            if arguments is not None:
                return send(self.answer(environ, INFER, arguments), environ, start_response)
        elif method not in _METHODS:
            environ["REQUEST_METHOD"] = "UNKNOWN"
        return self.wsgi_app(environ, start_response)

    def answer(self, environ: Environ, route: Route, arguments: dict[str, str]) -> Reply:
        """The request boundary: whatever goes wrong in a view becomes a reply here."""
        try:
            if self._restrictions:
                self._restrictions.check(route.group, partial(header_of, environ))
            if environ["REQUEST_METHOD"] not in route.methods:
                raise errors.MethodNotAllowed(route.methods)
            return route.view(self, environ, **arguments)
        except Exception as error:
            if isinstance(error, ApiRestricted) or PLAIN_TEXT_KEY in environ:
                mime = self.early_error_mime
            else:
                mime = route.refusal_mime if isinstance(error, errors.HttpError) else route.error_mime
            try:
                return self._refuse(error, mime, environ)
            finally:
                # It knows the frames that it went through, and one of them the response that has it: the cycle would
                # keep the body, and the memory that it has of the engine's, until the collector comes round.
                error.__traceback__ = None

    def binary_offset(self, environ: Environ) -> int:
        """Where in the body the tensors begin, as far as the headers tell: our worker aligns them in memory by it."""
        text = self.binary_header(environ)
        return int(text) if text and len(text) <= _OFFSET_DIGITS and text.isdecimal() else 0

    def request_metrics_page(self) -> bytes:
        """Counts and durations of the requests that went through Flask, in the Prometheus text format."""
        return generate_latest(self.request_metrics)

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Match the raw path. The request's Host, and the path as WSGI decodes it, play no part."""
        if request is None:
            return None
        path = request_path(request.environ)
        # Werkzeug takes several slashes at the start for one; Triton has no route that starts so.
        return self.url_map.bind("localhost", path_info=f"/%2F{path[2:]}" if path.startswith("//") else path)

    def _find_infer(self, target: str) -> dict[str, str] | None:
        path = path_of(target)
        arguments = self.infer_path(path)
        # Targets with a query are not remembered: a client may make up as many as it likes for one path.
        if arguments is not None and len(path) == len(target):
            self._infer_paths[target] = arguments
        return arguments

    def _refuse(self, error: Exception, mime: str, environ: Environ) -> Reply:
        status = self.status_of(error)
        errors.log_error(error, status, environ)
        return errors.error_reply(error, status, mime, environ)

    # --- Flask -------------------------------------------------------------------------------------------------------

    def _add_routes(self) -> None:
        # Not Flask's own rules, which answer OPTIONS and HEAD by themselves: both are 405 in Triton.
        self.url_map = url_map(self.routes)
        self.view_functions.update({route.name: self._flask_view(route) for route in self.routes})
        self.register_error_handler(Exception, self._unrouted)

    def _flask_view(self, route: Route) -> Callable[..., Response]:
        def view(**arguments: str) -> Response:
            return _response(self.answer(request.environ, route, arguments))

        return view

    def _unrouted(self, error: Exception) -> Response:
        """What goes wrong outside of a view: above all, that there is none."""
        refusal = errors.RouteNotFound() if isinstance(error, NotFound) else error
        return _response(self._refuse(refusal, self.early_error_mime, request.environ))


def _response(reply: Reply) -> Response:
    return Response(plain_parts(reply), STATUS_LINES[reply.status], reply.headers)


def _route(flask_request: Request) -> str:
    """The rule that a request matched, the label of its metrics: there are few, whatever paths clients make up."""
    return flask_request.url_rule.rule if flask_request.url_rule is not None else ""


# The label is called as the function is.
_route.__name__ = "route"
