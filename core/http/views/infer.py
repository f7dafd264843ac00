"""The infer view: one HTTP body in, one HTTP body out.

Flask's route and the short way of `V2Application.__call__` both end here, and so do the adapters' own infer routes.
What those share that read other formats than the v2 protocol's stands here too: `servable`, `read_whole`, `prepare`,
`run`, `finish` and `off_hub`.
Source: docs/spec/http.md section 4 "Processing order".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from werkzeug.wsgi import get_input_stream

from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest, ServerError, Unsupported
from core.frontend.bridge import P
from core.frontend.request_parameters import forward_header
from core.http.compression import IDENTITY, choose_encoding, compress, decompress
from core.http.errors import REQUEST_ID_KEY, BrokenCompression
from core.http.reply import BODY_KEY, CLIENT_GONE_KEY, RECEIVED_HEADERS_KEY, Headers, Reply
from core.http.v2.request_codec import decode_request
from core.http.v2.response_codec import encode_response
from core.inference.request import InferenceRequest, Parameter
from core.inference.response import InferenceResponse
from core.inference.tensors import Buffer

if TYPE_CHECKING:
    from core.http.application import V2Application

T = TypeVar("T")
Environ = dict[str, Any]

# Set for what is refused before the body is parsed: Triton answers that as text.
PLAIN_TEXT_KEY = "trident.plain_text"

ACCEPT_ENCODING = "HTTP_ACCEPT_ENCODING"
CONTENT_ENCODING = "HTTP_CONTENT_ENCODING"

_LARGE = 65536
# What small compressed bodies may become.
_INFLATES_BY = 32
_INT32 = range(-(2**31), 2**31)
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_LONGEST_INTEGER = 20


def infer(application: V2Application, environ: Environ, model: str, version: int) -> Reply:
    """Run the request in `environ` on `model`; `version` -1 is the latest. Raises ServerError.

    What fails before the body is parsed is marked with `plain_text`, because Triton answers it as text/plain.
    """
    try:
        spec = servable(application.engine.model_spec(model, version))
        body = _inflated(application, environ, _received(environ))
    except BrokenCompression:
        raise  # no text: Triton takes what came of the body for the request, and refuses that
    except ServerError:
        environ[PLAIN_TEXT_KEY] = True
        raise
    return infer_body(application, environ, spec, body, version, application.binary_header(environ))


def infer_body(
    application: V2Application, environ: Environ, spec: ModelSpec, body: Buffer, version: int, header: str | None
) -> Reply:
    """As `infer`, for a `body` that was read: it is the v2 protocol's. Raises ServerError.

    `header` is what `application.binary_header` gives.
    """
    header_length = None if header is None else _header_length(application, header, len(body), environ)
    request, plan = decode_request(body, header_length, version, spec, application.options.max_input_size)
    prepare(application, environ, request)
    response = run(application, environ, request)
    parts, json_length = encode_response(response, plan, spec)
    return finish(application, environ, parts, application.body_headers(json_length), response.parameters)


def prepare(application: V2Application, environ: Environ, request: InferenceRequest) -> None:
    """Add to a decoded request what the headers say, and note its id for errors. Raises InvalidRequest."""
    application.adopt_headers(environ, request)
    if request.id:
        environ[REQUEST_ID_KEY] = request.id
    pattern = application.options.header_pattern
    if pattern is not None:
        _forward_headers(environ, pattern, request)


def run(application: V2Application, environ: Environ, request: InferenceRequest) -> InferenceResponse:
    """The model's one response. Raises the ServerError that it is, if it is one."""
    response = application.bridge.infer(application.engine, request, environ.get(CLIENT_GONE_KEY))
    if response.error is not None:
        raise response.error
    return response


def finish(
    application: V2Application,
    environ: Environ,
    parts: list[Buffer],
    headers: Headers,
    parameters: dict[str, Parameter] | None,
) -> Reply:
    """The reply with `parts` as its body, compressed as the client accepts; `parameters` are those of the response."""
    if parameters:
        headers += application.parameter_headers(parameters)
    if ACCEPT_ENCODING in environ:
        parts = _compressed(application, environ, parts, headers)
    headers.append(("Content-Length", str(sum(map(len, parts)))))
    return Reply(200, headers, parts)


def servable(spec: ModelSpec) -> ModelSpec:
    """The model, if it gives one response to a request. Raises Unsupported."""
    if spec.decoupled:
        raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
    return spec


def read_whole(application: V2Application, environ: Environ) -> Buffer:
    """The whole body, inflated. Raises InvalidRequest."""
    return _inflated(application, environ, _received(environ))


def _received(environ: Environ) -> Buffer:
    body: Buffer | None = environ.get(BODY_KEY)
    return _drain_input(environ) if body is None else body


def _inflated(application: V2Application, environ: Environ, body: Buffer) -> Buffer:
    encoding = environ.get(CONTENT_ENCODING)
    if encoding is None or encoding == IDENTITY:
        return body
    size = _INFLATES_BY * len(body)
    return off_hub(application, size, decompress, body, encoding, application.options.max_input_size)


def _compressed(application: V2Application, environ: Environ, parts: list[Buffer], headers: Headers) -> list[Buffer]:
    """The parts as the client accepts them; says so in `headers`."""
    encoding = choose_encoding(environ[ACCEPT_ENCODING])
    if encoding == IDENTITY:
        return parts
    headers.append(("Content-Encoding", encoding))
    return [off_hub(application, sum(map(len, parts)), compress, parts, encoding)]


def off_hub(application: V2Application, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, on a thread where it would hold the hub up: 64 KB inflate and deflate in about a millisecond.

    `size` is the number of bytes that it works on.
    """
    return function(*args, **kwargs) if size < _LARGE else application.bridge.run(function, *args, **kwargs)


def _drain_input(environ: Environ) -> Buffer:
    """The body from `wsgi.input`, under servers that do not hand it over as one buffer."""
    length = environ.get("CONTENT_LENGTH") or ""
    if length.isdigit() and int(length[:20]) not in _INT32:
        raise InvalidRequest(
            f"Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: {length}"
        )
    content: bytes = get_input_stream(environ).read()
    return content


def _header_length(application: V2Application, text: str, body_length: int, environ: Environ) -> int:
    """The length of the JSON in front of binary tensors. Raises InvalidRequest with Triton's texts."""
    if text.isdecimal() and len(text) < 10 and int(text) <= body_length:
        return int(text)
    is_integer = _INTEGER.match(text) is not None
    number = int(text) if is_integer and len(text) <= _LONGEST_INTEGER else None
    if number is not None and 0 <= number <= body_length:
        return number  # it has a sign or zeros in front
    environ[PLAIN_TEXT_KEY] = True
    name = application.inference_header
    if not is_integer:
        raise InvalidRequest(f"Unable to parse {name}, got: {text}")
    if number is None or number not in _INT32:
        raise InvalidRequest(f"Unable to parse {name}, value is out of range [ -2147483648, 2147483647 ], got: {text}")
    raise InvalidRequest(f"inference header size should be in range (0, {body_length}), got: {text}")


def _forward_headers(environ: Environ, pattern: re.Pattern[str], request: InferenceRequest) -> None:
    """Headers whose name matches become string parameters, under the name received.

    The worker says how a name was spelled; under another server it is guessed.
    """
    received: list[tuple[str, str]] | None = environ.get(RECEIVED_HEADERS_KEY)
    if received is None:
        received = [
            (key[5:].replace("_", "-").lower(), value) for key, value in environ.items() if key.startswith("HTTP_")
        ]
    for name, value in received:
        if pattern.search(name):
            forward_header(request, name, value)
