"""What the views know of the application that they serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from core.engine.protocol import Engine
from core.frontend.bridge import Bridge
from core.http import errors
from core.http.options import HttpOptions
from core.http.reply import JSON, Environ, Headers
from core.http.server_timing import SERVER_TIMING, server_timing
from core.inference.request import InferenceRequest, Parameter
from core.inference.times import InferenceTimes


class HttpFrontEnd:
    """The engine, the bridge that waits for it, the options, and how a platform marks its bodies. `trace_gate` says
    whether requests may be traced.

    A subclass changes what its platform wants changed, by these and nothing else:

    * `binary_mime`, `inference_header`: the marks of a body with binary tensors after its JSON.
    * `binary_header(environ)`: the length of the JSON part as the request gives it.
    * `body_headers(json_length)`: the headers of an infer response.
    * `adopt_headers(environ, request)`: what headers add to an infer request.
    * `parameter_headers(parameters)`: what the parameters of an infer response add to its headers.
    * `add_timing(times, headers)`: what the times of an infer response add to its headers.
    * `status_of(error)`: the status of an error.
    """

    binary_mime = "application/octet-stream"
    inference_header = "Inference-Header-Content-Length"

    def __init__(self, engine: Engine, options: HttpOptions, bridge: Bridge) -> None:
        self.engine = engine
        self.options = options
        self.bridge = bridge
        self.trace_gate = engine.trace_gate
        self._header_key = "HTTP_" + self.inference_header.upper().replace("-", "_")

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[Any]:
        """Answer one request, as WSGI has it. Declared here, so that heirs have the layout of this class in C."""
        raise NotImplementedError

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
        """Add the times of a response to its `headers`."""
        headers.append((SERVER_TIMING, server_timing(times)))

    def status_of(self, error: Exception) -> int:
        """The status for `error`, which may be of any class."""
        return errors.status_of(error)
