"""The v2 protocol as a WSGI application: a Flask application, and a fast path around it.

Infer and generate requests and the server's own probes take the fast path: `__call__` knows their path and calls the
view itself. All other requests go through Flask (core/http/flask_app.py), which the first of them imports. Both paths
end in `V2Application.answer`.
Source: docs/architecture.md section 3 point 4, docs/spec/http.md sections 1 and 2.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote

from prometheus_client import CollectorRegistry, Counter

from trident.core.compiled import mypyc_attr
from trident.core.engine.protocol import Engine
from trident.core.errors import ModelNotFound, ServerError
from trident.core.frontend.access import HEALTH, PAGE
from trident.core.frontend.bridge import Bridge
from trident.core.frontend.dataplane import is_served
from trident.core.frontend.request import HTTP, NOT_NOTED, Span, end_trace
from trident.core.http import errors
from trident.core.http.body import MAX_LENGTH, body_too_large, raw_too_large, too_large
from trident.core.http.front_end import (
    PROBE_KEY,
    RECEIVED_KEY,
    TRACES_KEY,
    HttpFrontEnd,
    HttpOptions,
    InferenceNote,
)
from trident.core.http.openapi import Operation, operations, undescribed
from trident.core.http.reply import (
    EXECUTED_KEY,
    TEXT,
    Environ,
    Reply,
    path_of,
    request_path,
    request_target,
    send,
    text_reply,
)
from trident.core.http.routes import INFERENCE, ROUTES, Route
from trident.core.http.text_routes import openai_error
from trident.core.memo import Memo
from trident.core.observability.log import verbose_level

if TYPE_CHECKING:
    from trident.core.http.flask_app import FlaskApp


_log = logging.getLogger("trident.http")

_LEVEL = verbose_level(1)
# Triton prints the number of a method in evhtp, its HTTP library.
_METHODS: Final = "GET HEAD POST PUT DELETE MKCOL COPY MOVE OPTIONS PROPFIND PROPPATCH LOCK UNLOCK TRACE CONNECT PATCH"
_NUMBERS: Final = {method: number for number, method in enumerate(_METHODS.split())}


def log_request(environ: Environ) -> None:
    number = _NUMBERS.get(environ["REQUEST_METHOD"], len(_NUMBERS))
    _log.log(_LEVEL, "HTTP request: %d %s", number, request_path(environ))


_INFER_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?/(infer|generate|generate_stream)")
_INFER_ROUTES = {route.name: route for route in INFERENCE}
_MOST_PATHS = 1024
# A route with this method has all of them: it refuses what no other route takes.
_ANY_METHOD = "TRACE"
# The most bytes of a body that nothing reads.
_UNREAD = 65536
_OFFSET_DIGITS = 10
# Any other method would become a label of the request metrics, and clients could make up as many as they like.
_COUNTED_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
_OTHER_METHOD = "UNKNOWN"

InferPath = tuple[Route, dict[str, str]]


@mypyc_attr(allow_interpreted_subclasses=True)
class V2Application(HttpFrontEnd):
    """Serves `engine` over the v2 protocol; `bridge` waits for it as the server requires.

    A subclass, which may be of another package, changes the hooks of HttpFrontEnd and these, and nothing else:

    * `untyped_error_mime`: the content type of what Triton sends without one: refusals before the body is parsed, and
      errors of executions.
    * `has_hint_field`: whether the body of an error may have its hint in a field.
    * `answers_options`: whether OPTIONS is answered with the methods of a route; otherwise it is a wrong method.
    * `documented_routes()`: what the OpenAPI document says of the routes.
    * `named(arguments)`: the model that a route means, where a name may be percent-encoded.
    * `find_route(environ)`: the route of a path.
    * `admit(environ)`: what is refused by its head, and the size of a body.
    * `infer_path(path)`: the paths of infer and generate requests. A pure function: its results are remembered.

    `routes` is the route table. `request_metrics` has the counts of the responses of all routes, and those that Flask's
    exporter keeps of the routes that go through Flask, from the first such request on.
    """

    # Compiled code sees the value of an interpreted subclass only where the attribute is one of the class.
    untyped_error_mime: ClassVar[str] = TEXT
    has_hint_field: ClassVar[bool] = True
    answers_options: ClassVar[bool] = True

    def __init__(
        self, engine: Engine, options: HttpOptions, bridge: Bridge, routes: tuple[Route, ...] = ROUTES
    ) -> None:
        super().__init__(engine, options, bridge)
        self.routes = routes
        self.request_metrics = CollectorRegistry()
        self._infer_paths: Memo[str, InferPath] = Memo(_MOST_PATHS)
        self._responses = Counter(
            "trident_http_responses",
            "Responses of all routes including the infer routes",
            ("method", "route", "status"),
            registry=self.request_metrics,
        )
        self._errors = Counter(
            "trident_http_errors",
            "Responses with an error, of all routes including the infer routes",
            ("method", "model", "route", "status"),
            registry=self.request_metrics,
        )
        # Results of `labels`, which takes longer than counting.
        self._responses_of: dict[tuple[str, str, int], Counter] = {}
        probes = [(rule, route) for route in self.routes if route.group == HEALTH for rule in route.rules]
        self._probes = {rule: route for rule, route in probes if "<" not in rule}
        self._openai_labels = {route.label for route in self.routes if route.openai_errors}
        self._flask: FlaskApp | None = None
        self._making_flask = threading.Lock()

    # --- the hooks ---------------------------------------------------------------------------------------------------

    def infer_path(self, path: str) -> InferPath | None:
        """The route of a POST to `path`, and the arguments of its view, if it is one of inference; else None."""
        found = _INFER_PATH.fullmatch(path)
        return (_INFER_ROUTES[found[3]], {"model": found[1], "version": found[2] or ""}) if found else None

    def documented_routes(self) -> list[tuple[Route, Operation]]:
        """The routes of the OpenAPI document, each with its description.

        Excludes the console's routes and the catch-all route for any method.
        """
        described = [
            each for each in self.routes if not each.label.startswith("/console") and _ANY_METHOD not in each.methods
        ]
        return [(route, operations().get(route.name) or undescribed(route)) for route in described]

    # --- requests ----------------------------------------------------------------------------------------------------

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[Any]:
        method = environ["REQUEST_METHOD"]
        if method == "POST":
            found = self._infer_paths.get(environ.get("RAW_URI", "")) or self._find_infer(environ)
            if found is not None:
                route, arguments = found
                return send(self.answer(environ, route, arguments), environ, start_response)
        elif method not in _COUNTED_METHODS:
            environ["REQUEST_METHOD"] = _OTHER_METHOD
        elif method == "GET" and (probe := self._probes.get(request_path(environ))) is not None:
            environ[PROBE_KEY] = True
            return send(self.answer(environ, probe, {}), environ, start_response)
        return self.wsgi_app(environ, start_response)

    def wsgi_app(self, environ: Environ, start_response: Any) -> Iterable[Any]:
        """Answer through Flask."""
        return self.flask().wsgi_app(environ, start_response)

    def find_route(self, environ: Environ) -> Route | None:
        """The route of the request's path, for any method; None without one."""
        found = self._infer_paths.get(environ.get("RAW_URI", "")) or self._find_infer(environ)
        found = found or self.flask().route_map.find(request_path(environ))
        return found[0] if found is not None else None

    def flask(self) -> FlaskApp:
        """As `flask_app`, on the hub."""
        return self._flask or self.bridge.run(self.flask_app)

    def flask_app(self) -> FlaskApp:
        """The Flask application. The first call imports Flask: a tenth of a second, so not on the hub."""
        with self._making_flask:
            if self._flask is None:
                from trident.core.http.flask_app import FlaskApp

                self._flask = FlaskApp(self)
            return self._flask

    def answer(self, environ: Environ, route: Route, arguments: dict[str, str]) -> Reply:
        """The request boundary: any exception of a view becomes a reply here."""
        try:
            method = environ["REQUEST_METHOD"]
            group = PAGE if route.open_get and method == "GET" else route.group
            self.check_access(group, environ)
            if "%" in arguments.get("model", ""):
                arguments = self.named(arguments)
            if method in route.methods:
                reply = route.view(self, environ, **arguments)
            elif method == "OPTIONS" and self.answers_options:
                reply = text_reply(200, b"", TEXT, [("Allow", ", ".join(sorted({*route.methods, "OPTIONS"})))])
            else:
                raise errors.MethodNotAllowed(route.methods)
        except Exception as error:
            try:
                model = arguments.get("model", "")
                return self._refuse(error, self._error_mime(error, route, environ), environ, route.label, model)
            finally:
                # The traceback refers to the frames that the error passed, and one of them to the response that has
                # the error: this cycle would keep the body, and its shared memory, until the garbage collector runs.
                error.__traceback__ = None
        if not route.passes_on:
            self._count_response(environ["REQUEST_METHOD"], route.label, reply.status)
        return reply

    def admit(self, environ: Environ) -> int | Reply:
        """The size limit for the body of the request whose head is in `environ`, or the reply that refuses it by its
        head. Our worker asks before it receives a long body."""
        route = self.find_route(environ)
        if route is None:
            return self.refuse(errors.RouteNotFound(self.flask().hint(request_path(environ))), environ)
        if _ANY_METHOD in route.methods:
            return self.answer(environ, route, {})
        try:
            self.check_access(route.group, environ)
            method = environ["REQUEST_METHOD"]
            if method not in route.methods and method != "OPTIONS":
                raise errors.MethodNotAllowed(route.methods)
            most = self.options.max_input_size if method == "POST" else _UNREAD
            is_binary = route.group == "inference" and self.binary_header(environ) is not None
            if is_binary and self.binary_offset(environ):
                most = MAX_LENGTH  # as in Triton, nothing else limits binary tensors behind JSON
            length = int(environ.get("CONTENT_LENGTH") or 0)
            if length > most:
                if is_binary:
                    raise raw_too_large(length, most)
                raise (too_large if route.name in _INFER_ROUTES else body_too_large)(str(length), most)
        except ServerError as error:
            found = self._find_infer(environ)
            model = found[1].get("model", "") if found is not None else ""
            return self._refuse(error, self._error_mime(error, route, environ), environ, route.label, model)
        return most

    def binary_offset(self, environ: Environ) -> int:
        """The offset of the tensors in the body, 0 if the headers do not give it. Our worker aligns the body by it."""
        text = self.binary_header(environ)
        return int(text) if text and len(text) <= _OFFSET_DIGITS and text.isdecimal() else 0

    def end_traces(self, environ: Environ, sent: Span) -> None:
        """Record when our worker sent the response to a traced request; (0, 0) if its client has gone."""
        received = environ.get(RECEIVED_KEY, NOT_NOTED)
        for number in environ.pop(TRACES_KEY):
            end_trace(self.engine, number, HTTP, received, sent)

    def refuse(self, error: Exception, environ: Environ) -> Reply:
        return self._refuse(error, self.untyped_error_mime, environ, "")

    def _find_infer(self, environ: Environ) -> InferPath | None:
        target = request_target(environ)
        path = path_of(target)
        found = self.infer_path(path)
        # Targets with a query are not remembered: a client may make up as many as it likes for one path.
        if found is not None and len(path) == len(target) and "RAW_URI" in environ:
            self._infer_paths[target] = found
        return found

    def named(self, arguments: dict[str, str]) -> dict[str, str]:
        """The arguments of a route whose model name has a percent sign; the name is percent-decoded if only the decoded
        one is that of a model."""
        name, decoded = arguments["model"], unquote(arguments["model"])
        return {**arguments, "model": decoded} if not self._knows(name) and self._knows(decoded) else arguments

    def _knows(self, name: str) -> bool:
        """True if a model has that name, even one that does not serve. Loads none."""
        try:
            if self.engine.model_nowait(name) is None:
                self.bridge.run_long(self.engine.is_model_ready, name, -1)
        except ModelNotFound:
            return False
        except ServerError:
            pass
        return True

    def _count_response(self, method: str, label: str, status: int) -> None:
        key = (method, label, status)
        series = self._responses_of.get(key)
        if series is None:
            series = self._responses_of[key] = self._responses.labels(method, label, str(status))
        series.inc()

    def _error_mime(self, error: Exception, route: Route, environ: Environ) -> str:
        if (isinstance(error, ServerError) and error.before_parsing) or environ.get(EXECUTED_KEY):
            return self.untyped_error_mime
        return route.refusal_mime if isinstance(error, errors.HttpError) else route.error_mime

    def _refuse(self, error: Exception, mime: str, environ: Environ, label: str, model: str = "") -> Reply:
        status = self.status_of(error)
        if isinstance(error, ServerError) and error.model:
            model = error.model
        if model:
            environ.setdefault(errors.INFERENCE_KEY, InferenceNote(model))
        note: InferenceNote | None = environ.get(errors.INFERENCE_KEY)
        served = note.model if note is not None and is_served(self.engine, note.model) else ""
        method = environ["REQUEST_METHOD"] if environ["REQUEST_METHOD"] in _COUNTED_METHODS else _OTHER_METHOD
        self._errors.labels(method, served, label, str(status)).inc()
        self._count_response(method, label, status)
        if label in self._openai_labels and isinstance(error, ServerError):
            return openai_error(self, environ, error)
        errors.log_error(error, status, environ)
        hints = self.options.error_hints
        return errors.error_reply(error, status, mime, environ, hints=hints, has_hint_field=self.has_hint_field)
