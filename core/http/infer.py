"""The infer view: one HTTP body in, one HTTP body out.

Flask's route and the short way of `V2Application.__call__` both end here, and so do the adapters' own infer routes.
Source: spec/http.md section 4 "Processing order".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from werkzeug.wsgi import get_input_stream

from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest, ServerError, Unsupported
from core.http.compression import IDENTITY, choose_encoding, compress, decompress
from core.http.errors import REQUEST_ID_KEY
from core.http.reply import Headers, Reply
from core.http.request_codec import decode_request, forward_header
from core.http.response_codec import encode_response
from core.tensors import Buffer

if TYPE_CHECKING:
    from core.http.application import V2Application

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


def infer(application: V2Application, environ: Environ, model: str, version: int) -> Reply:
    """Run the request in `environ` on `model`; `version` -1 is the latest. Raises ServerError."""
    spec, body = _open(application, environ, model, version)
    header = application.binary_header(environ)
    header_length = _header_length(header, len(body), environ) if header is not None else None
    options = application.options
    request, plan = decode_request(body, header_length, version, spec, options.max_input_size)
    if request.id:
        environ[REQUEST_ID_KEY] = request.id
    if options.header_pattern is not None:
        _forward_headers(environ, options.header_pattern, request)
    response = application.bridge.infer(application.engine, request, environ.get("trident.client_gone"))
    if response.error is not None:
        raise response.error
    encoded = encode_response(response, plan, spec)
    headers = application.body_headers(encoded.json_length)
    parts = encoded.parts
    if ACCEPT_ENCODING in environ:
        parts = _compressed(application, environ, parts, headers)
    headers.append(("Content-Length", str(sum(map(len, parts)))))
    return Reply(200, headers, parts)


def _open(application: V2Application, environ: Environ, model: str, version: int) -> tuple[ModelSpec, Buffer]:
    """The model asked for, and the whole body, inflated.

    What fails before the body is read is marked with `plain_text`, because Triton answers it as text/plain.
    """
    try:
        spec = application.engine.model_spec(model, version)
        if spec.decoupled:
            raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        body: Buffer | None = environ.get("trident.body")
        if body is None:
            body = _drain_input(environ)
    except ServerError:
        environ[PLAIN_TEXT_KEY] = True
        raise
    encoding = environ.get(CONTENT_ENCODING)
    if encoding is None or encoding == IDENTITY:
        return spec, body
    size = _INFLATES_BY * len(body)
    return spec, _off_hub(application, size, decompress, body, encoding, application.options.max_input_size)


def _compressed(application: V2Application, environ: Environ, parts: list[Buffer], headers: Headers) -> list[Buffer]:
    """The parts as the client accepts them; says so in `headers`."""
    encoding = choose_encoding(environ[ACCEPT_ENCODING])
    if encoding == IDENTITY:
        return parts
    headers.append(("Content-Encoding", encoding))
    return [_off_hub(application, sum(map(len, parts)), compress, parts, encoding)]


def _off_hub(application: V2Application, size: int, function: Callable[..., Buffer], *arguments: Any) -> Buffer:
    """Call `function`, on a thread where it would hold the hub up: 64 KB inflate and deflate in about a millisecond."""
    return function(*arguments) if size < _LARGE else application.bridge.run(function, *arguments)


def _drain_input(environ: Environ) -> Buffer:
    """The body from `wsgi.input`, under servers that do not hand it over as one buffer."""
    length = environ.get("CONTENT_LENGTH") or ""
    if length.isdigit() and int(length[:20]) not in _INT32:
        raise InvalidRequest(
            f"Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: {length}"
        )
    content: bytes = get_input_stream(environ).read()
    return content


def _header_length(text: str, body_length: int, environ: Environ) -> int:
    """The length of the JSON in front of binary tensors. Raises InvalidRequest with Triton's texts."""
    if text.isdecimal() and len(text) < 10 and int(text) <= body_length:
        return int(text)
    environ[PLAIN_TEXT_KEY] = True
    if not _INTEGER.match(text):
        raise InvalidRequest(f"Unable to parse Inference-Header-Content-Length, got: {text}")
    if len(text) > 20 or int(text) not in _INT32:
        raise InvalidRequest(
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], "
            f"got: {text}"
        )
    raise InvalidRequest(f"inference header size should be in range (0, {body_length}), got: {text}")


def _forward_headers(environ: Environ, pattern: re.Pattern[str], request: Any) -> None:
    """Headers whose name matches become string parameters, under the name received.

    WSGI keeps names in upper case with underscores: the received spelling comes from the worker where it knows it.
    """
    received: list[tuple[str, str]] | None = environ.get("trident.headers")
    if received is None:
        received = [
            (key[5:].replace("_", "-").lower(), value) for key, value in environ.items() if key.startswith("HTTP_")
        ]
    for name, value in received:
        if pattern.search(name):
            forward_header(request, name, value)
