"""The infer view: one HTTP body in, one HTTP body out.

Flask's route and the short way of `V2Application.__call__` both end here, and so do the adapters' own infer routes.
Source: spec/http.md section 4 "Processing order".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from werkzeug.wsgi import get_input_stream

from core.errors import InvalidRequest, ServerError, Unsupported
from core.http.compression import choose_encoding, compress, decompress
from core.http.errors import REQUEST_ID_KEY
from core.http.reply import Reply
from core.http.request_codec import decode_request, forward_header
from core.http.response_codec import encode_response
from core.tensors import Buffer

if TYPE_CHECKING:
    from core.http.application import V2Application

Environ = dict[str, Any]

# Set for what is refused before the body is parsed: Triton answers that as text.
PLAIN_TEXT_KEY = "trident.plain_text"

_INT32 = range(-(2**31), 2**31)
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")


def infer(application: V2Application, environ: Environ, model: str, version: int) -> Reply:
    """Run the request in `environ` on `model`; `version` -1 is the latest. Raises ServerError.

    What fails before the body is parsed is marked with `plain_text`, because Triton answers it as text/plain.
    """
    engine = application.engine
    options = application.options
    try:
        spec = engine.model_spec(model, version)
        if spec.decoupled:
            raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        body = _read_body(environ, options.max_input_size)
        header_length = _header_length(application.binary_header(environ), len(body))
    except ServerError as error:
        environ[PLAIN_TEXT_KEY] = True
        raise error
    request, plan = decode_request(body, header_length, version, spec, options.max_input_size)
    if request.id:
        environ[REQUEST_ID_KEY] = request.id
    if options.header_pattern is not None:
        _forward_headers(environ, options.header_pattern, request)
    response = application.bridge.infer(engine, request, environ.get("trident.client_gone"))
    if response.error is not None:
        raise response.error
    encoded = encode_response(response, plan, spec)
    headers = application.body_headers(encoded.json_length)
    parts = encoded.parts
    accepted = environ.get("HTTP_ACCEPT_ENCODING")
    if accepted is not None:
        encoding = choose_encoding(accepted)
        if encoding != "identity":
            parts = [compress(parts, encoding)]
            headers.append(("Content-Encoding", encoding))
    headers.append(("Content-Length", str(sum(map(len, parts)))))
    return Reply(200, headers, parts)


def _read_body(environ: Environ, max_input_size: int) -> Buffer:
    body: Buffer | None = environ.get("trident.body")
    if body is None:
        body = _drain_input(environ)
    encoding = environ.get("HTTP_CONTENT_ENCODING")
    if encoding is None or encoding == "identity":
        return body
    return decompress(body, encoding, max_input_size)


def _drain_input(environ: Environ) -> Buffer:
    """The body from `wsgi.input`, under servers that do not hand it over as one buffer."""
    length = environ.get("CONTENT_LENGTH") or ""
    if length.isdigit() and int(length[:20]) not in _INT32:
        raise InvalidRequest(
            f"Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: {length}"
        )
    content: bytes = get_input_stream(environ).read()
    return content


def _header_length(text: str | None, body_length: int) -> int | None:
    if text is None:
        return None
    if text.isdecimal() and len(text) < 10:
        length = int(text)
    elif not _INTEGER.match(text):
        raise InvalidRequest(f"Unable to parse Inference-Header-Content-Length, got: {text}")
    elif len(text) > 20 or int(text) not in _INT32:
        raise InvalidRequest(
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], "
            f"got: {text}"
        )
    else:
        length = int(text)
    if not 0 <= length <= body_length:
        raise InvalidRequest(f"inference header size should be in range (0, {body_length}), got: {text}")
    return length


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
