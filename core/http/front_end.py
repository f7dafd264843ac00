"""The part of the application that views see, and the notes that they make about a request.

Source: docs/spec/server-options.md section 2 "HTTP", docs/spec/trace-and-log.md section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from trident.core.compiled import mypyc_attr
from trident.core.engine.protocol import Engine
from trident.core.errors import ErrorHints
from trident.core.frontend.access import AuthTokens, RestrictedApi, Restrictions
from trident.core.frontend.admin import LoadReports
from trident.core.frontend.bridge import Bridge
from trident.core.frontend.request import HeaderPattern, header_pattern
from trident.core.http import errors
from trident.core.http.errors import INFERENCE_KEY
from trident.core.http.reply import JSON, Environ, Headers, header_of
from trident.core.inference.request import InferenceRequest, InferenceTimes, Parameter
from trident.core.inference.response import InferenceResponse


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """`max_input_size` is in bytes. `header_forward_pattern` matches a part of a header's name, ignoring case; empty
    forwards no header, and a token is never forwarded if there are `tokens`, of which a client must have one.
    `health_json`: the 200 of a health probe has a JSON body, which is otherwise empty. `allow_client_shm`: clients may
    register regions of shared memory. `error_hints` says how clients get the hint of an error. `console`: browsers are
    sent to it. `grpc_port`, 0 for none, and `grpc_tls` are named in the requests that a client may copy. `control_mode`
    is --model-control-mode's, which the console shows.

    Raises ConfigInvalid for a pattern that is not a regular expression.
    """

    max_input_size: int = 67108864
    header_forward_pattern: str = ""
    restricted: tuple[RestrictedApi, ...] = ()
    tokens: AuthTokens | None = None
    health_json: bool = False
    allow_client_shm: bool = False
    error_hints: ErrorHints = ErrorHints.FIELD
    console: bool = False
    grpc_port: int = 8001
    grpc_tls: bool = False
    control_mode: str = "none"
    header_pattern: HeaderPattern | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        pattern = header_pattern(
            "http-header-forward-pattern", self.header_forward_pattern, hides_token=self.tokens is not None
        )
        object.__setattr__(self, "header_pattern", pattern)


@mypyc_attr(allow_interpreted_subclasses=True)
class HttpFrontEnd:
    """The engine, the bridge that waits for it, the options, and how a platform marks its bodies. `trace_gate` is open
    while requests may be traced.

    A subclass adapts to its platform through these hooks and nothing else:

    * `binary_mime`, `inference_header`: the marks of a body with binary tensors after its JSON.
    * `binary_header(environ)`: the length of the JSON part as the request gives it.
    * `body_headers(json_length)`: the headers of an infer response.
    * `adopt_headers(environ, request)`: what headers add to an infer request.
    * `parameter_headers(parameters)`: what the parameters of an infer response add to its headers.
    * `add_timing(times, headers)`: what the times of an infer response add to its headers.
    * `status_of(error)`: the status of an error.
    """

    binary_mime: ClassVar[str] = "application/octet-stream"
    inference_header: ClassVar[str] = "Inference-Header-Content-Length"

    def __init__(self, engine: Engine, options: HttpOptions, bridge: Bridge) -> None:
        self.engine = engine
        self.options = options
        self.bridge = bridge
        self.trace_gate = engine.trace_gate
        self.load_reports = LoadReports(engine)
        guards = (options.tokens, Restrictions(options.restricted) if options.restricted else None)
        self._guards = tuple(guard.check for guard in guards if guard is not None)
        self._header_key = "HTTP_" + self.inference_header.upper().replace("-", "_")

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[Any]:
        """Answer one WSGI request. Declared here so that subclasses have this class's layout in C."""
        raise NotImplementedError

    def check_access(self, group: str, environ: Environ) -> None:
        """Raise Unauthenticated or ApiRestricted unless the request may use the routes of `group`."""
        for check in self._guards:
            check(group, partial(header_of, environ))

    def binary_header(self, environ: Environ) -> str | None:
        """The length of the JSON part as the request header gives it; None without the header."""
        header: str | None = environ.get(self._header_key)
        return header

    def body_headers(self, json_length: int | None) -> Headers:
        """Content-Type and headers that belong to it; `json_length` is None if no binary tensor follows the JSON."""
        if json_length is None:
            return [("Content-Type", JSON)]
        return [("Content-Type", self.binary_mime), (self.inference_header, str(json_length))]

    def adopt_headers(self, environ: Environ, request: InferenceRequest) -> None:
        """Add the platform's headers to a decoded `request`. Raises InvalidRequest."""

    def parameter_headers(self, parameters: Mapping[str, Parameter]) -> Headers:
        """The headers of a response for which the model set `parameters`. Raises ServerError."""
        return []

    def add_timing(self, times: InferenceTimes, headers: Headers) -> None:
        queue, gather, infer, split, batch_size, close_reason = times
        text = _TEXT % (queue / _NS, gather / _NS, infer / _NS, split / _NS, batch_size)
        if close_reason is not None:
            text = f'{text}, close;desc="{close_reason.label}"'
        headers.append((SERVER_TIMING, text))

    def status_of(self, error: Exception) -> int:
        """The status for `error`, which may be of any class."""
        return errors.status_of(error)


SERVER_TIMING = "Server-Timing"
_TEXT = (
    "queue;dur=%.3f, compute_input;dur=%.3f, compute_infer;dur=%.3f, compute_output;dur=%.3f, "  # milliseconds
    'batch;desc="%d"'
)
_NS = 1_000_000


# The notes are entries of the request's environ. An inference that succeeds is noted only if the engine notes times,
# which it does for an access log.

PROBE_KEY: Final = "trident.probe"
"""Set for a health probe or a scrape of metrics: such requests are many and all alike."""
RECEIVED_KEY: Final = "trident.received_ns"
"""When our worker began and finished receiving the request; only while requests may be traced."""
TRACES_KEY: Final = "trident.traces"
"""The numbers of the traces of the requests that the body had."""


class InferenceNote(NamedTuple):
    """`version` is below 1 if no version has answered."""

    model: str
    version: int = 0
    times: InferenceTimes | None = None


def note_inference(environ: Environ, responses: Sequence[InferenceResponse]) -> None:
    """Note the model that answered one request with `responses`, and the longest of their times."""
    times = InferenceTimes.longest([response.times for response in responses])
    if times is not None:
        environ[INFERENCE_KEY] = InferenceNote(responses[0].model_name, responses[0].model_version, times)


def note_traces(environ: Environ, responses: Sequence[InferenceResponse]) -> None:
    numbers = [response.trace for response in responses if response.trace]
    if numbers:
        environ.setdefault(TRACES_KEY, []).extend(numbers)
