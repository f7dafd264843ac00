"""The infer view: one HTTP body in, one HTTP body out.

The steps that views of other formats share with it are functions here: `servable`, `read_whole`, `prepare`, `run`,
`begin`, `finish` and `off_hub`.
Source: docs/spec/http.md section 4 "Processing order".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from trident.core.config.spec import ModelSpec
from trident.core.engine.protocol import ServedModel
from trident.core.errors import InvalidRequest, RequestCancelled, ServerError, Unsupported
from trident.core.frontend.bridge import ClientGone, P
from trident.core.frontend.request import LATEST, HeaderPattern, forward_header, version_number
from trident.core.frontend.trace_events import client_trace
from trident.core.http.body import IDENTITY, choose_encoding, compress, decompress, read_input
from trident.core.http.errors import REQUEST_ID_KEY, BrokenCompression
from trident.core.http.front_end import INFERENCE_KEY, HttpFrontEnd, InferenceNote, note_inference, note_traces
from trident.core.http.long_json import Slicing
from trident.core.http.reply import (
    ARRIVED_KEY,
    BODY_KEY,
    CALLER_KEY,
    CLIENT_GONE_KEY,
    RECEIVED_HEADERS_KEY,
    Environ,
    Headers,
    Reply,
)
from trident.core.http.v2_json import NotStrict
from trident.core.http.v2_request import decode_request
from trident.core.http.v2_response import Encoded, ResponsePlan, encode_response
from trident.core.inference.request import InferenceRequest, InferenceTimes, Parameter
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import BYTES, Buffer
from trident.core.observability.switches import SWITCHES

# Text of these sizes is read in 10 to 30 milliseconds. Numbers are read as a whole up to there, because that takes half
# of the CPU time: another thread and the search for the ends of slices cost as much as the parser.
LONG_NUMBERS: Final = 4 << 20
LONG_STRINGS: Final = 1 << 20
# With NaN, a text of this size takes 5 to 10 milliseconds: it is read again in slices.
_LONG_LENIENT: Final = 1 << 19
# As that of requests.
_MANY_STRINGS: Final = 1 << 16
# Four megabytes of JSON.
_LONG_ANSWER: Final = 1 << 20


def is_long(size: int, spec: ModelSpec) -> bool:
    """Whether a text of `size` bytes for the model has to be read in slices."""
    return size >= LONG_STRINGS and (
        size >= LONG_NUMBERS or any(expected.datatype is BYTES for expected in spec.inputs.values())
    )


def slicing_of(environ: Environ) -> Slicing:
    """The slicing of a long text, whose reading ends with RequestCancelled when the client has gone. Any thread."""
    client_gone: ClientGone | None = environ.get(CLIENT_GONE_KEY)

    def pause() -> None:
        if client_gone is not None and client_gone():
            raise RequestCancelled("the client went away")

    return Slicing(pause)


def decode(
    front_end: HttpFrontEnd, environ: Environ, body: Buffer, header_length: int | None, version: int, spec: ModelSpec
) -> tuple[InferenceRequest, ResponsePlan]:
    """The v2 request in `body`. Raises ServerError."""
    limit = front_end.options.max_input_size
    size = len(body) if header_length is None else header_length
    if size < _LONG_LENIENT:
        return decode_request(body, header_length, version, spec, limit)
    if not is_long(size, spec):
        with suppress(NotStrict):
            return decode_request(body, header_length, version, spec, limit, is_strict=True)
    return front_end.bridge.run(decode_request, body, header_length, version, spec, limit, slicing_of(environ))


def encode(front_end: HttpFrontEnd, response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec) -> Encoded:
    """The body of the v2 response."""
    size = response.nbytes
    if size >= _MANY_STRINGS and any(_is_long(output, size, plan) for output in response.outputs):
        return front_end.bridge.run(encode_response, response, plan, spec)
    return encode_response(response, plan, spec)


def _is_long(output: OutputTensor, size: int, plan: ResponsePlan) -> bool:
    """Whether an output of a response of `size` bytes takes long to become JSON."""
    return (size >= _LONG_ANSWER or output.datatype == "BYTES") and not plan.form_of(output.name)[0]


T = TypeVar("T")

ACCEPT_ENCODING: Final = "HTTP_ACCEPT_ENCODING"
CONTENT_ENCODING: Final = "HTTP_CONTENT_ENCODING"

_LARGE: Final = 65536
# A small compressed body may become this many times as large.
_INFLATES_BY: Final = 32
_INT32: Final = range(-(2**31), 2**31)
_INTEGER: Final = re.compile(r"[+-]?[0-9]+\Z")
_LONGEST_INTEGER: Final = 20


def infer(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """Run the request in `environ` on `model`; `version` is text, empty for the latest. Raises ServerError."""
    try:
        number = version_number(version) if version else LATEST
        found = servable(front_end.engine.model(model, number))
        body = read_whole(front_end, environ)
    except ServerError as error:
        # Triton takes the output of a broken compression for the body, and refuses that.
        error.before_parsing = type(error) is not BrokenCompression
        raise
    return infer_body(front_end, environ, found, body, number, front_end.binary_header(environ))


def infer_body(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Buffer, version: int, header: str | None
) -> Reply:
    """Run the v2 request in `body` on `model`. Raises ServerError.

    `version` is the one that the client asked for, -1 for the latest. `header` is the result of
    `front_end.binary_header`.
    """
    header_length = None if header is None else _header_length(front_end, header, len(body))
    spec = model.spec
    request, plan = decode(front_end, environ, body, header_length, version, spec)
    prepare(front_end, environ, request)
    is_slow = len(body) >= LONG_STRINGS and request.has_many_strings
    response = run(front_end, environ, model, request, is_slow=is_slow)
    parts, json_length = encode(front_end, response, plan, spec)
    headers = front_end.body_headers(json_length)
    return finish(front_end, environ, parts, headers, response.parameters, response.times)


def servable(model: ServedModel) -> ServedModel:
    """The model, if it gives one response to a request. Raises Unsupported."""
    if model.spec.decoupled:
        raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
    return model


def read_whole(front_end: HttpFrontEnd, environ: Environ) -> Buffer:
    """The whole body, inflated. Raises InvalidRequest, UnsupportedEncoding or BrokenCompression."""
    body: Buffer | None = environ.get(BODY_KEY)
    if body is None:
        body = _drain_input(environ)
    encoding = environ.get(CONTENT_ENCODING)
    if encoding is None or encoding == IDENTITY:
        return body
    return off_hub(front_end, _INFLATES_BY * len(body), decompress, body, encoding, front_end.options.max_input_size)


def prepare(front_end: HttpFrontEnd, environ: Environ, request: InferenceRequest) -> None:
    """Add the headers to a decoded request, and note its id for errors. Raises InvalidRequest."""
    front_end.adopt_headers(environ, request)
    if request.id:
        environ[REQUEST_ID_KEY] = request.id
    pattern = front_end.options.header_pattern
    if pattern is not None:
        _forward_headers(environ, pattern, request)


def run(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, request: InferenceRequest, *, is_slow: bool = False
) -> InferenceResponse:
    """The model's one response; `is_slow` is that of `Bridge.infer`. Raises the ServerError of a failed one."""
    begin(front_end, environ, model, request)
    response = front_end.bridge.infer(model, request, environ.get(CLIENT_GONE_KEY), is_slow=is_slow)
    if response.trace:
        note_traces(environ, (response,))
    if response.error is not None:
        environ[INFERENCE_KEY] = InferenceNote(response.model_name, response.model_version)
        raise response.error
    if response.times is not None:
        note_inference(environ, (response,))
    return response


def begin(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, request: InferenceRequest) -> None:
    """Note when and from whom `request` came, if that matters to `model`, and to which trace of its client it belongs.

    Not for one of many requests in a body: those come to the engine one after the other, and the delay of each begins
    there.
    """
    if model.spec.counts_arrival:
        request.arrived_ns = environ.get(ARRIVED_KEY, 0)
        request.caller = environ.get(CALLER_KEY)
    if front_end.trace_gate.reads_context:
        request.trace = client_trace(environ.get("HTTP_TRACEPARENT"), environ.get("HTTP_TRACESTATE"))


def finish(
    front_end: HttpFrontEnd,
    environ: Environ,
    parts: list[Buffer],
    headers: Headers,
    parameters: dict[str, Parameter] | None,
    times: InferenceTimes | None,
) -> Reply:
    """The reply with `parts` as its body, compressed as the client accepts; `parameters` and `times` are those of the
    response."""
    if parameters:
        headers += front_end.parameter_headers(parameters)
    if times is not None and SWITCHES.timing:
        front_end.add_timing(times, headers)
    if ACCEPT_ENCODING in environ:
        parts = _compressed(front_end, environ, parts, headers)
    size = 0
    for part in parts:
        size += len(part)
    headers.append(("Content-Length", str(size)))
    return Reply(200, headers, parts)


def off_hub(front_end: HttpFrontEnd, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, which works on `size` bytes: on another thread if it would hold the hub up.

    64 KB inflate and deflate in about a millisecond.
    """
    return function(*args, **kwargs) if size < _LARGE else front_end.bridge.run(function, *args, **kwargs)


def _compressed(front_end: HttpFrontEnd, environ: Environ, parts: list[Buffer], headers: Headers) -> list[Buffer]:
    """The parts in the encoding that the client accepts, which is added to `headers`."""
    encoding = choose_encoding(environ[ACCEPT_ENCODING])
    if encoding == IDENTITY:
        return parts
    headers.append(("Content-Encoding", encoding))
    return [off_hub(front_end, sum(map(len, parts)), compress, parts, encoding)]


def _drain_input(environ: Environ) -> Buffer:
    """The body from `wsgi.input`, under servers that do not hand it over as one buffer."""
    length = environ.get("CONTENT_LENGTH") or ""
    if length.isdigit() and int(length[:20]) not in _INT32:
        raise InvalidRequest(
            f"Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: {length}"
        )
    return read_input(environ)


def _header_length(front_end: HttpFrontEnd, text: str, body_length: int) -> int:
    """The length of the JSON before binary tensors. Raises InvalidRequest with Triton's texts."""
    if text.isdecimal() and len(text) < 10 and int(text) <= body_length:
        return int(text)
    is_integer = _INTEGER.match(text) is not None
    number = int(text) if is_integer and len(text) <= _LONGEST_INTEGER else None
    if number is not None and 0 <= number <= body_length:
        return number  # it has a sign or leading zeros
    name = front_end.inference_header
    if not is_integer:
        message = f"Unable to parse {name}, got: {text}"
    elif number is None or number not in _INT32:
        message = f"Unable to parse {name}, value is out of range [ -2147483648, 2147483647 ], got: {text}"
    else:
        message = f"inference header size should be in range (0, {body_length}), got: {text}"
    error = InvalidRequest(message)
    error.before_parsing = True
    raise error


def _forward_headers(environ: Environ, pattern: HeaderPattern, request: InferenceRequest) -> None:
    """Make headers whose name matches string parameters, under the name received.

    Our worker keeps the spelling of a name; under another server it is guessed.
    """
    received: list[tuple[str, str]] | None = environ.get(RECEIVED_HEADERS_KEY)
    if received is None:
        received = [
            (key[5:].replace("_", "-").lower(), value) for key, value in environ.items() if key.startswith("HTTP_")
        ]
    for name, value in received:
        if pattern.matches(name):
            forward_header(request, name, value)
