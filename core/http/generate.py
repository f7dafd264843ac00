"""Generate: a flat JSON object in, and one out, or an event for each response.

The platforms share `read_identity`, `answer_object`, `answer_events` and `stream_events` with the routes.
Source: docs/spec/http.md section 9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import orjson

from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.engine.protocol import ServedModel
from trident.core.errors import BackendFailed, InvalidRequest, ServerError
from trident.core.frontend.bridge import ResponseStream
from trident.core.frontend.dataplane import find_model
from trident.core.frontend.request import json_parameter, set_parameter, string
from trident.core.http.body import (
    IDENTITY,
    parse_json,
    too_large,
    write_lenient,
)
from trident.core.http.dataplane import (
    CONTENT_ENCODING,
    add_load,
    add_response_headers,
    ask,
    complete,
    off_hub,
    open_stream,
    read_body,
    run,
)
from trident.core.http.errors import (
    AS_EVENT_KEY,
    EVENT_STREAM,
    INFERENCE_KEY,
    UNBUFFERED,
    error_event,
    event,
    log_error,
)
from trident.core.http.front_end import (
    TRACES_KEY,
    HttpFrontEnd,
    InferenceNote,
    note_inference,
    note_traces,
)
from trident.core.http.reply import JSON, Environ, Headers, Reply, text_reply
from trident.core.http.v2_json import array_from_json, json_datatype, json_values
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse, Origin, OutputTensor
from trident.core.inference.tensors import BYTES, Buffer, Shape

# Errors of these origins are told as those of any other request. All others are responses, and so events.
_NO_RESPONSES = (Origin.REFUSED, Origin.CANCELLED)


def generate(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """Answer with one object. `version` is text, empty for the latest. Raises ServerError."""
    found, number = find_model(front_end.engine.model, model, version)
    return answer_object(front_end, environ, found, read_identity(front_end, environ), number)


def generate_stream(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """Answer with an event for each response. Raises ServerError for what goes wrong before the first one."""
    found, number = find_model(front_end.engine.model, model, version)
    return answer_events(front_end, environ, found, read_identity(front_end, environ), number)


def read_identity(front_end: HttpFrontEnd, environ: Environ) -> Buffer:
    """The whole body, which has no encoding and is within the limit. Raises InvalidRequest."""
    if environ.get(CONTENT_ENCODING, IDENTITY) != IDENTITY:
        raise InvalidRequest("Unsupported content-encoding, only 'identity' is supported.")
    body = read_body(front_end, environ)
    limit = front_end.options.max_input_size
    if len(body) > limit:
        raise too_large(str(len(body)), limit)
    return body


def answer_object(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Buffer, version: int) -> Reply:
    """Run the object in `body` on `model`; the reply has the object of its one response. Raises ServerError."""
    request = _decode_body(front_end, environ, model, body, version)
    single = _only_response if model.spec.decoupled else run
    response = single(front_end, environ, model, request)
    text = off_hub(front_end, response.nbytes, encode_object, response)
    return text_reply(200, text, JSON, _response_headers(front_end, environ, response))


def answer_events(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Buffer, version: int) -> Reply:
    """Run the object in `body` on `model`; the reply has an event for each response.

    Raises ServerError for what goes wrong before the first response, and for a first response that is an error, as an
    event, which those of the later responses follow.
    """
    request = _decode_body(front_end, environ, model, body, version)
    if model.spec.decoupled:
        return stream_events(front_end, environ, model, request, encode_object)
    response = ask(front_end, environ, model, request)
    try:
        if response.error is not None:
            raise response.error
        text = event(off_hub(front_end, response.nbytes, encode_object, response))
    except ServerError:
        if response.origin not in _NO_RESPONSES:
            environ[AS_EVENT_KEY] = None
        raise
    return text_reply(200, text, EVENT_STREAM, _event_headers(front_end, environ, response))


def _decode_body(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Buffer, version: int
) -> InferenceRequest:
    limit, spec = front_end.options.max_input_size, model.spec
    request = off_hub(front_end, len(body), decode_object, body, version, spec, limit)
    complete(front_end, environ, request, forwards=False)
    return request


def _only_response(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, request: InferenceRequest
) -> InferenceResponse:
    """The response of a model that may send any number of them. Raises BackendFailed unless it sends one."""
    stream = open_stream(front_end, environ, model, request)
    only: InferenceResponse | None = None
    try:
        for response in stream:
            if response.trace and TRACES_KEY not in environ:
                note_traces(environ, (response,))
            environ[INFERENCE_KEY] = InferenceNote(response.model_name, response.model_version, response.times)
            if response.error is not None:
                raise response.error
            if not response.is_end:
                if only is not None:
                    raise _not_one(model)
                only = response
    finally:
        stream.cancel()
    if only is None:
        raise _not_one(model)
    return only


def _not_one(model: ServedModel) -> BackendFailed:
    return BackendFailed(
        "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
        "number of responses",
        model=model.spec.name,
    )


def stream_events(
    front_end: HttpFrontEnd,
    environ: Environ,
    model: ServedModel,
    request: InferenceRequest,
    encode: Callable[[InferenceResponse], bytes],
) -> Reply:
    """Run `request` on `model`; the reply has an event for each response, with the JSON that `encode` makes of it.

    Raises as `answer_events`.
    """
    stream = open_stream(front_end, environ, model, request)
    body = EventBody(front_end, environ, stream, encode)
    try:
        headers = _event_headers(front_end, environ, body.begin())
    except BaseException:
        if environ.get(AS_EVENT_KEY) is not body:
            stream.cancel()
        raise
    return Reply(200, [("Content-Type", EVENT_STREAM), *headers], body)


def _event_headers(front_end: HttpFrontEnd, environ: Environ, response: InferenceResponse) -> Headers:
    return [UNBUFFERED, *_response_headers(front_end, environ, response)]


def _response_headers(front_end: HttpFrontEnd, environ: Environ, response: InferenceResponse) -> Headers:
    headers: Headers = []
    add_response_headers(front_end, headers, response.parameters, response.times)
    add_load(front_end, environ, headers, response.model_name)
    return headers


# --- events


class EventBody:
    """An event for each response of `stream`; those that have arrived together are one part of the body.

    `encode` makes the JSON of a response. An error of a response is an event, too, and a line in the log. Used by the
    thread or greenlet of the stream.
    """

    def __init__(
        self,
        front_end: HttpFrontEnd,
        environ: Environ,
        stream: ResponseStream,
        encode: Callable[[InferenceResponse], bytes],
    ) -> None:
        self._front_end = front_end
        self._environ = environ
        self._stream = stream
        self._encode = encode
        self._begun = b""

    def begin(self) -> InferenceResponse:
        """Wait for the first response and return it; afterwards the body can be sent.

        Raises the error of the first response. Unless the request was refused, that is an event, too.
        """
        responses = self._stream.take()
        first = responses[0]
        note_traces(self._environ, (first,))
        self._environ[INFERENCE_KEY] = InferenceNote(first.model_name, first.model_version)
        error, text = first.error, b""
        if error is None and not first.is_end:
            try:
                text = event(self._encode(first))
            except ServerError as refusal:
                error = refusal
        self._begun = text + self._events(responses[1:])
        self._note(responses[-1])
        if error is not None:
            if first.origin not in _NO_RESPONSES:
                self._environ[AS_EVENT_KEY] = None if first.final else self
                self._begun = error_event(error, self._front_end.options.error_hints) + self._begun
            raise error
        return first

    def __iter__(self) -> EventBody:
        return self

    def __next__(self) -> bytes:
        if self._begun:
            text, self._begun = self._begun, b""
            return text
        while responses := self._stream.take():
            text = self._events(responses)
            self._note(responses[-1])
            if text:
                return text
        raise StopIteration

    def close(self) -> None:
        self._stream.cancel()

    def _events(self, responses: list[InferenceResponse]) -> bytes:
        return b"".join([self._event(response) for response in responses if not response.is_end])

    def _event(self, response: InferenceResponse) -> bytes:
        try:
            if response.error is not None:
                raise response.error
            return event(self._encode(response))
        except ServerError as error:
            log_error(error, self._front_end.status_of(error), self._environ)
            # No cycle: the traceback refers to this frame, which refers to the response.
            error.__traceback__ = None
            return error_event(error, self._front_end.options.error_hints)

    def _note(self, last: InferenceResponse) -> None:
        if last.final and last.times is not None:
            note_inference(self._environ, (last,))


# --- the request: members with the name of an input are tensors, all others parameters. The shape of a tensor follows
# from the number of its values and the shape in the model's metadata.

_PARAMETERS = "parameters"
_NON_OBJECT = "attempt to access JSON non-object as object"
_LENGTH_SIZE = 4


class _Members(list[tuple[str, Any]]):
    """The members of an object as its text has them, with those that are given twice."""


Members = dict[str, Any] | _Members


def decode_object(body: Buffer, version: int, spec: ModelSpec, max_input_size: int) -> InferenceRequest:
    """The request in `body` for `version` of the model, -1 for the latest.

    No memory is taken for tensors of more than `max_input_size` bytes. Raises InvalidRequest with Triton's texts.
    """
    request = InferenceRequest(spec.name, [], model_version=version)
    members, reading = _parse(body, spec), _Reading(request, spec, max_input_size)
    request_id = next((value for key, value in _pairs(members) if key == "id"), None)
    if request_id is not None and "id" not in spec.inputs:
        string("id", request_id)
    if type(request_id) is str:
        request.id = request_id
    for key, value in _pairs(members):
        if key == _PARAMETERS:
            reading.read_parameters(value)
        elif key != "id" or value is not None:
            reading.read(key, value)
    return request


class _Reading:
    def __init__(self, request: InferenceRequest, spec: ModelSpec, max_input_size: int) -> None:
        self.request = request
        self.spec = spec
        self._inputs: list[InputTensor] = []
        request.inputs = self._inputs
        self._max_input_size = max_input_size
        self._size = 0

    def read(self, key: str, value: Any) -> None:
        expected = self.spec.inputs.get(key)
        if expected is None:
            set_parameter(self.request, key, json_parameter(key, value))
        else:
            name, datatype = expected.name, expected.datatype
            json_datatype(datatype.name, name)
            content = value if type(value) is list else [value]
            if datatype is BYTES:
                array = array_from_json(content, datatype, None, name)
                self._count(name, sum(map(len, array.tolist())) + _LENGTH_SIZE * array.size)
                shape = self._shape(expected, len(content))
            else:
                self._count(name, len(content) * datatype.size)
                shape = self._shape(expected, len(content))
                array = array_from_json(content, datatype, len(content), name)
            if any(tensor.name == name for tensor in self._inputs):
                raise InvalidRequest(f"{self.request.log_prefix}input '{name}' already exists in request")
            self._inputs.append(InputTensor(name, datatype.name, shape, array))

    def read_parameters(self, value: Any) -> None:
        """The members of the object `parameters` count as members of the request; null means that it is absent."""
        if _PARAMETERS in self.spec.inputs:
            raise InvalidRequest(f"Keyword '{_PARAMETERS}' for nested schema also given as input tensor name")
        if value is None:
            return
        if not isinstance(value, dict | _Members):
            raise InvalidRequest(f"Expected JSON object for keyword: '{_PARAMETERS}': {_NON_OBJECT}")
        try:
            for key, each in _pairs(value):
                self.read(key, each)
        except InvalidRequest as error:
            text = f"Converting keyword: '{_PARAMETERS}': {error.message}"
            raise InvalidRequest(text, hint=error.hint) from None

    def _shape(self, expected: InputSpec, count: int) -> Shape:
        """The shape of `count` values: the innermost variable dimension takes what the fixed ones leave."""
        dims = (-1, *expected.dims) if self.spec.max_batch_size > 0 else expected.dims
        shape: list[int] = []
        rest = count
        for dim in dims:
            if dim > 0 and not rest % dim:
                rest //= dim
            elif dim != -1:
                raise _no_shape(expected.name)
        for dim in reversed(dims):
            if dim == -1:
                dim, rest = rest, 1
            shape.append(dim)
        if rest != 1:
            raise _no_shape(expected.name)
        return tuple(reversed(shape))

    def _count(self, name: str, size: int) -> None:
        self._size += size
        if self._size > self._max_input_size:
            raise InvalidRequest(
                f"request size of {self._size} bytes with input '{name}' of size {size} bytes exceeds the maximum "
                f"allowed input size of {self._max_input_size}. Use --http-max-input-size to increase the limit."
            )


def _no_shape(name: str) -> InvalidRequest:
    return InvalidRequest(f"The schema can not convert input '{name}' to tensor with proper shape")


def _pairs(members: Members) -> Iterable[tuple[str, Any]]:
    return members.items() if isinstance(members, dict) else members


def _parse(body: Buffer, spec: ModelSpec) -> Members:
    """The members of the object in `body`, as pairs if an input may be given twice in it. Raises InvalidRequest."""
    document = parse_json(body)
    if type(document) is not dict:
        raise InvalidRequest("attempt to get members for non-object", hint="send a JSON object with a value per input")
    text = bytes(body)
    names = spec.inputs
    # A name may be written with escapes: those of other characters than quotes, slashes and the like begin with \\u.
    is_escaped = b"\\u" in text or (b"\\" in text and not all(map(str.isidentifier, names)))
    if is_escaped or any(text.count(b'"%b"' % name.encode()) > 1 for name in names):
        # Only the second look tells a key from a string. A dict would keep the last value of a key.
        pairs: Members = parse_json(text, pairs=_Members)
        return pairs
    return document


# --- the response


def encode_object(response: InferenceResponse) -> bytes:
    """The object, with its members in alphabetical order. Raises InvalidRequest for an output that JSON cannot carry.

    Of members with the same name, the first of these counts: id, model and version, a parameter, an output.
    """
    members: dict[str, Any] = {output.name: _value(output) for output in response.outputs}
    members.update(response.parameters or {})
    members |= {"model_name": response.model_name, "model_version": str(response.model_version)}
    if response.id:
        members["id"] = response.id
    ordered = dict(sorted(members.items()))
    try:
        text = orjson.dumps(ordered, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # strings that are not UTF-8
        return write_lenient(ordered)
    # NaN and infinities become null.
    return write_lenient(ordered) if b"null" in text and not all(map(_is_finite, members.values())) else text


def _value(output: OutputTensor) -> Any:
    """The values of an output as its member: one value stands alone."""
    values = json_values(output.array, output.datatype)
    return values[0] if len(values) == 1 else values


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float | np.ndarray | np.floating) or bool(np.isfinite(value).all())
