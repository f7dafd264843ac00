"""The steps of an inference request over HTTP. Every entry point calls these functions, in this order, the first two of
core/frontend/dataplane.py:

    find_model       the version that serves the request
    one_response     refuses a model that may answer any number of times
    read_body        the whole body, inflated
    decode_v2        the request in a v2 body; generate and core/http/payloads decode the other formats
    complete         what the headers add to the request
    run              the one response to it
      open_stream    the responses to it, any number of them
      open_streams   the responses to several requests, any number to each
      run_many       the responses to all requests of a body
    encode_v2        the body of the v2 response; generate and core/http/payloads encode the other formats
    finish           the reply

`infer` and `infer_body` take these steps for the v2 protocol.
Source: docs/spec/http.md section 4 "Processing order".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import orjson

from trident.core.config.spec import ModelSpec
from trident.core.engine.protocol import ServedModel
from trident.core.errors import InvalidRequest, ServerError
from trident.core.frontend.bridge import P, ResponseStream, ResponseStreams, infer_many
from trident.core.frontend.classification import classified
from trident.core.frontend.compression import deflate
from trident.core.frontend.dataplane import ResponsePlan, find_model, one_response
from trident.core.frontend.request import client_trace, forward_header
from trident.core.http.body import (
    IDENTITY,
    choose_encoding,
    decompress,
    read_input,
    write_lenient,
)
from trident.core.http.errors import INFERENCE_KEY, REQUEST_ID_KEY, BrokenCompression
from trident.core.http.front_end import HttpFrontEnd, InferenceNote, note_inference, note_traces
from trident.core.http.reply import (
    ARRIVED_KEY,
    BODY_KEY,
    CLIENT_GONE_KEY,
    EXECUTED_KEY,
    RECEIVED_HEADERS_KEY,
    Environ,
    Headers,
    Reply,
)
from trident.core.http.v2_json import json_values
from trident.core.http.v2_request import decode_request, known_text
from trident.core.inference.request import InferenceRequest, InferenceTimes, Parameter
from trident.core.inference.response import InferenceResponse, Origin
from trident.core.inference.tensors import Buffer
from trident.core.observability.switches import SWITCHES

T = TypeVar("T")

ACCEPT_ENCODING: Final = "HTTP_ACCEPT_ENCODING"
CONTENT_ENCODING: Final = "HTTP_CONTENT_ENCODING"
LOAD_FORMAT: Final = "HTTP_ENDPOINT_LOAD_METRICS_FORMAT"
TRACEPARENT: Final = "HTTP_TRACEPARENT"
TRACESTATE: Final = "HTTP_TRACESTATE"

# 64 KB inflate and deflate, and as many bytes of strings are packed, in about a millisecond.
_LARGE: Final = 65536
# A small compressed body may become this many times as large.
_INFLATES_BY: Final = 32
# JSON of this size is read in 10 to 30 milliseconds.
LONG_TEXT: Final = 1 << 20
# Four megabytes of JSON.
_LONG_ANSWER: Final = 1 << 20
_INT32: Final = range(-(2**31), 2**31)
_INTEGER: Final = re.compile(r"[+-]?[0-9]+\Z")
_LONGEST_INTEGER: Final = 20


def infer(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """Run the request in `environ` on `model`; `version` is text, empty for the latest. Raises ServerError."""
    try:
        found, number = find_model(front_end.engine.model, model, version)
        one_response(found)
        body = read_body(front_end, environ)
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
    request, plan = decode_v2(front_end, environ, body, header_length, version, spec)
    complete(front_end, environ, request)
    response = ask(front_end, environ, model, request)
    try:
        if response.error is not None:
            raise response.error
        parts, json_length = encode_v2(front_end, response, plan, spec)
    except ServerError:
        environ[EXECUTED_KEY] = response.error is None or response.origin is not Origin.REFUSED
        raise
    headers = front_end.body_headers(json_length)
    add_load(front_end, environ, headers, response.model_name)
    return finish(front_end, environ, parts, headers, response.parameters, response.times)


def read_body(front_end: HttpFrontEnd, environ: Environ) -> Buffer:
    """The whole body, inflated. Raises InvalidRequest, UnsupportedEncoding or BrokenCompression."""
    body: Buffer | None = environ.get(BODY_KEY)
    if body is None:  # a server that does not hand it over as one buffer
        length = environ.get("CONTENT_LENGTH") or ""
        if length.isdigit() and int(length[:20]) not in _INT32:
            raise InvalidRequest(
                f"Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: {length}"
            )
        body = read_input(environ)
    encoding = environ.get(CONTENT_ENCODING)
    if encoding is None or encoding == IDENTITY:
        return body
    return off_hub(front_end, _INFLATES_BY * len(body), decompress, body, encoding, front_end.options.max_input_size)


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


def decode_v2(
    front_end: HttpFrontEnd, environ: Environ, body: Buffer, header_length: int | None, version: int, spec: ModelSpec
) -> tuple[InferenceRequest, ResponsePlan]:
    """The v2 request in `body`, and the form of its response. Raises ServerError."""
    size = len(body) if header_length is None else header_length
    limit = front_end.options.max_input_size
    if size < LONG_TEXT:
        return decode_request(body, header_length, version, spec, limit)
    return front_end.bridge.run(decode_request, body, header_length, version, spec, limit)


def complete(front_end: HttpFrontEnd, environ: Environ, request: InferenceRequest, *, forwards: bool = True) -> None:
    """Add the headers to a decoded request, and note its id for errors. Raises InvalidRequest.

    Without `forwards` no header becomes a parameter by `--http-header-forward-pattern`.
    """
    front_end.adopt_headers(environ, request)
    if request.id:
        environ[REQUEST_ID_KEY] = request.id
    pattern = front_end.options.header_pattern
    if pattern is not None and forwards:
        # As string parameters, under the name received: our worker keeps its spelling; under another server it is
        # guessed.
        received: list[tuple[str, str]] | None = environ.get(RECEIVED_HEADERS_KEY)
        if received is None:
            received = [
                (key[5:].replace("_", "-").lower(), value) for key, value in environ.items() if key.startswith("HTTP_")
            ]
        for name, value in received:
            if pattern.matches(name):
                forward_header(request, name, value)


def run(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, request: InferenceRequest) -> InferenceResponse:
    """The model's one response. Raises the ServerError of a failed one."""
    response = ask(front_end, environ, model, request)
    if response.error is not None:
        raise response.error
    return response


def ask(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, request: InferenceRequest) -> InferenceResponse:
    """The model's one response, which may be an error."""
    _note_caller(front_end, environ, model, request)
    is_slow = request.nbytes >= _LARGE and request.has_many_strings
    response = front_end.bridge.infer(model, request, environ.get(CLIENT_GONE_KEY), is_slow=is_slow)
    if response.trace:
        note_traces(environ, (response,))
    if response.error is not None:
        environ[INFERENCE_KEY] = InferenceNote(response.model_name, response.model_version)
    elif response.times is not None:
        note_inference(environ, (response,))
    return response


def open_stream(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, request: InferenceRequest
) -> ResponseStream:
    """The model's responses, which may be errors, as they arrive. The caller takes all of them or cancels the stream,
    and notes what it takes."""
    _note_caller(front_end, environ, model, request)
    return front_end.bridge.stream(model, request, environ.get(CLIENT_GONE_KEY))


def open_streams(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, requests: Iterable[InferenceRequest]
) -> ResponseStreams:
    """As `open_stream`, for several requests at once."""
    client_gone = environ.get(CLIENT_GONE_KEY)
    streams = ResponseStreams(front_end.bridge.mailbox())
    for request in requests:
        _note_caller(front_end, environ, model, request)
        streams.add(partial(front_end.bridge.stream, model, request, client_gone))
    return streams


def run_many(
    front_end: HttpFrontEnd, environ: Environ, requests: Iterable[InferenceRequest]
) -> list[InferenceResponse]:
    """The responses to `requests`, all for one model, in their order. Blocks: call it on a native thread.

    Raises the first error.
    """
    # They reach the engine one after the other, and the queue delay of each begins there: no arrival is set.
    responses = infer_many(front_end.engine, requests, environ.get(CLIENT_GONE_KEY))
    note_inference(environ, responses)
    note_traces(environ, responses)
    return responses


def _note_caller(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, request: InferenceRequest) -> None:
    """Note the arrival and the caller of `request`, if they matter to `model`, and its client's trace."""
    if model.spec.counts_arrival:
        request.arrived_ns = environ.get(ARRIVED_KEY, 0)
    if front_end.trace_gate.reads_context:
        request.trace = client_trace(environ.get(TRACEPARENT), environ.get(TRACESTATE))


def encode_v2(front_end: HttpFrontEnd, response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec) -> Encoded:
    size = response.nbytes
    if size >= _LARGE:
        for output in response.outputs:
            takes_long = size >= _LONG_ANSWER or output.datatype == "BYTES"
            if takes_long and not plan.form_of(output.name)[0]:
                return front_end.bridge.run(encode_response, response, plan, spec)
    return encode_response(response, plan, spec)


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
    add_response_headers(front_end, headers, parameters, times)
    if ACCEPT_ENCODING in environ:
        encoding = choose_encoding(environ[ACCEPT_ENCODING])
        if encoding != IDENTITY:
            headers.append(("Content-Encoding", encoding))
            parts = [off_hub(front_end, sum(map(len, parts)), deflate, parts, encoding)]
    size = 0
    for part in parts:
        size += len(part)
    headers.append(("Content-Length", str(size)))
    return Reply(200, headers, parts)


def add_response_headers(
    front_end: HttpFrontEnd, headers: Headers, parameters: dict[str, Parameter] | None, times: InferenceTimes | None
) -> None:
    """Add what the platform shows of a response's parameters and times. Raises ServerError."""
    if parameters:
        headers += front_end.parameter_headers(parameters)
    if times is not None and SWITCHES.timing:
        front_end.add_timing(times, headers)


def add_load(front_end: HttpFrontEnd, environ: Environ, headers: Headers, model: str) -> None:
    form = environ.get(LOAD_FORMAT)
    if form is not None:
        load = front_end.load_reports.field(form, model)
        if load is not None:
            headers.append(load)


def off_hub(front_end: HttpFrontEnd, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, which works on `size` bytes: on another thread if it would delay the hub."""
    return function(*args, **kwargs) if size < _LARGE else front_end.bridge.run(function, *args, **kwargs)


# --- the body of a v2 response: JSON, then the binary tensors, never joined. Source: docs/spec/http.md section 4
# (`outputs[].parameters`, `binary_data_output`) and section 6 "Response".

_WORDS: Final = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}
# In a longer text the search for a word takes longer than to look at all numbers (16,384 of them: 170 and 10 µs).
_SEARCHED: Final = 4096

# The parts of a body, and the length of its JSON if binary tensors follow it, else None.
Encoded = tuple[list[Buffer], int | None]


def encode_response(response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec) -> Encoded:
    """The body of the response. Raises InvalidRequest for an output that cannot have the form asked for."""
    parts = known_text(response, plan)
    if parts is not None:
        return parts, len(parts[0]) if len(parts) > 1 else None
    return _encode(response, plan, spec)


def _encode(response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec) -> Encoded:
    document: dict[str, Any] = {}
    if response.id:
        document["id"] = response.id
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    if response.parameters:
        document["parameters"] = response.parameters
    entries: list[dict[str, Any]] = []
    document["outputs"] = entries
    binary: list[Buffer] = []
    for output in response.outputs:
        if output.name in plan.placed:
            entries.append({"name": output.name, "datatype": output.datatype, "shape": output.shape})
            continue
        is_binary, classes = plan.form_of(output.name)
        output = classified(output, classes, spec)
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        if is_binary:
            content = output.content()
            size = len(content)
            entry["parameters"] = {"binary_data_size": size}
            if size:
                binary.append(content)
        else:
            entry["data"] = json_values(output.array, output.datatype)
        entries.append(entry)
    text = _write(document)
    return [text, *binary], len(text) if binary else None


def _write(document: dict[str, Any]) -> bytes:
    """The text as Triton writes it: with NaN and infinities as words, and strings that are not UTF-8 byte for byte."""
    try:
        text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return write_lenient(document)
    if len(text) <= _SEARCHED and b"null" not in text:
        return text
    has_words = False
    for entry in document["outputs"]:
        numbers = entry.get("data")
        if isinstance(numbers, np.ndarray) and numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            # With words where orjson writes null; `write_lenient` takes ten times as long.
            words = [_WORDS[repr(number)] for number in numbers[~np.isfinite(numbers)].tolist()]
            first, *rest = orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY).split(b"null")
            entry["data"] = orjson.Fragment(
                b"".join([first, *[word + part for word, part in zip(words, rest, strict=True)]])
            )
            has_words = True
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY) if has_words else text
