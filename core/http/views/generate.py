"""The generate views: a flat JSON object in; one object out, or an event for each response.

The steps that the platforms share with the routes are functions here: `read_identity`, `answer_object`,
`answer_events` and `stream_events`.
Source: docs/spec/http.md section 9.
"""

from __future__ import annotations

from collections.abc import Callable

from core.engine.served_model import ServedModel
from core.errors import BackendFailed, InvalidRequest, OutOfMemory
from core.frontend.version_text import LATEST, version_number
from core.http.access_note import INFERENCE_KEY, InferenceNote
from core.http.compression import IDENTITY
from core.http.errors import AS_EVENT_KEY, REQUEST_ID_KEY
from core.http.front_end import HttpFrontEnd
from core.http.generate.event_body import EventBody, is_empty
from core.http.generate.events import EVENT_STREAM, event
from core.http.generate.load_metrics import REQUEST_KEY, RESPONSE_HEADER, load_metrics
from core.http.generate.request_object import decode_object
from core.http.generate.response_object import ObjectEncoder, encode_object
from core.http.reply import CLIENT_GONE_KEY, JSON, Environ, Headers, Reply, text_reply
from core.http.request_body import too_large
from core.http.trace_note import TRACES_KEY, note_traces
from core.http.views.infer import CONTENT_ENCODING, begin, off_hub, read_whole, run
from core.http.views.long_text import is_long, slicing_of
from core.inference.request import InferenceRequest
from core.inference.response import InferenceResponse
from core.inference.tensors import Buffer
from core.observability.switches import SWITCHES

# A proxy that collects what it passes on would delay the events.
_UNBUFFERED = ("X-Accel-Buffering", "no")


def generate(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """Answer with one object. `version` is text, empty for the latest. Raises ServerError."""
    number = version_number(version) if version else LATEST
    found = front_end.engine.model(model, number)
    return answer_object(front_end, environ, found, read_identity(front_end, environ), number)


def generate_stream(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """Answer with an event for each response. Raises ServerError for what goes wrong before the first one."""
    number = version_number(version) if version else LATEST
    found = front_end.engine.model(model, number)
    return answer_events(front_end, environ, found, read_identity(front_end, environ), number)


def read_identity(front_end: HttpFrontEnd, environ: Environ) -> Buffer:
    """The whole body, which has no encoding and is within the limit. Raises InvalidRequest."""
    if environ.get(CONTENT_ENCODING, IDENTITY) != IDENTITY:
        raise InvalidRequest("Unsupported content-encoding, only 'identity' is supported.")
    body = read_whole(front_end, environ)
    limit = front_end.options.max_input_size
    if len(body) > limit:
        raise too_large(str(len(body)), limit)
    return body


def answer_object(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Buffer, version: int) -> Reply:
    """Run the object in `body` on `model`; the reply has the object of its one response. Raises ServerError."""
    request = _decode(front_end, environ, model, body, version)
    single = _only_response if model.spec.decoupled else _response
    response = single(front_end, environ, model, request)
    text = off_hub(front_end, response.nbytes, encode_object, response)
    return text_reply(200, text, JSON, _response_headers(front_end, environ, response))


def answer_events(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Buffer, version: int) -> Reply:
    """Run the object in `body` on `model`; the reply has an event for each response.

    Raises ServerError for what goes wrong before the first response, and for a first response that is an error.
    """
    request = _decode(front_end, environ, model, body, version)
    if model.spec.decoupled:
        return stream_events(front_end, environ, model, request, ObjectEncoder())
    try:
        response = _response(front_end, environ, model, request)
    except (BackendFailed, OutOfMemory):
        environ[AS_EVENT_KEY] = True  # it is the model's response
        raise
    text = event(off_hub(front_end, response.nbytes, encode_object, response))
    return text_reply(200, text, EVENT_STREAM, _event_headers(front_end, environ, response))


def _decode(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Buffer, version: int
) -> InferenceRequest:
    limit, spec = front_end.options.max_input_size, model.spec
    slicing = slicing_of(environ) if is_long(len(body), spec) else None
    request = off_hub(front_end, len(body), decode_object, body, version, spec, limit, slicing)
    front_end.adopt_headers(environ, request)
    if request.id:
        environ[REQUEST_ID_KEY] = request.id
    return request


def _response(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, request: InferenceRequest
) -> InferenceResponse:
    return run(front_end, environ, model, request, is_slow=request.has_many_strings)


def _only_response(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, request: InferenceRequest
) -> InferenceResponse:
    """The response of a model that may send any number of them. Raises BackendFailed unless it sends one."""
    begin(front_end, environ, model, request)
    stream = front_end.bridge.stream(model, request, environ.get(CLIENT_GONE_KEY))
    only: InferenceResponse | None = None
    try:
        for response in stream:
            if response.trace and TRACES_KEY not in environ:
                note_traces(environ, (response,))
            environ[INFERENCE_KEY] = InferenceNote(response.model_name, response.model_version, response.times)
            if response.error is not None:
                raise response.error
            if not is_empty(response):
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
    begin(front_end, environ, model, request)
    stream = front_end.bridge.stream(model, request, environ.get(CLIENT_GONE_KEY))
    body = EventBody(stream, environ, front_end.status_of, encode, front_end.options.error_hints)
    try:
        headers = _event_headers(front_end, environ, body.begin())
    except BaseException:
        stream.cancel()
        raise
    return Reply(200, [("Content-Type", EVENT_STREAM), *headers], body)


def _event_headers(front_end: HttpFrontEnd, environ: Environ, response: InferenceResponse) -> Headers:
    return [_UNBUFFERED, *_response_headers(front_end, environ, response)]


def _response_headers(front_end: HttpFrontEnd, environ: Environ, response: InferenceResponse) -> Headers:
    headers = front_end.parameter_headers(response.parameters) if response.parameters else []
    if response.times is not None and SWITCHES.timing:
        front_end.add_timing(response.times, headers)
    form = environ.get(REQUEST_KEY)
    load = None if form is None else load_metrics(form, response.model_name, front_end.engine.metrics().custom)
    return headers if load is None else [*headers, (RESPONSE_HEADER, load)]
