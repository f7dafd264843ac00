"""The view of the predict route: predictions for instances, or the answer to a raw request.

A body with `instances` is the platform's own format: batch prediction and explanations send only that. A body of the v2
protocol, as JSON or with binary tensors, is answered as on plain HTTP. A body in any other known format is decoded into
the model's inputs.
Source: docs/spec/vertex.md sections A3, B4, D points 1 to 7.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from trident.adapters.common.platform import Host
from trident.adapters.vertex.platform import PayloadKind, VertexSettings
from trident.core.config.golden import shown
from trident.core.config.spec import ModelSpec
from trident.core.engine.protocol import ServedModel
from trident.core.errors import DeadlineExceeded, ErrorCode, InvalidRequest, ServerError, Unsupported
from trident.core.frontend.bridge import ClientGone
from trident.core.frontend.dataplane import one_response
from trident.core.http.application import V2Application
from trident.core.http.body import choose, parse_json
from trident.core.http.dataplane import infer_body, off_hub, read_body
from trident.core.http.errors import REQUEST_ID_KEY
from trident.core.http.generate import answer_events, answer_object, stream_events
from trident.core.http.payloads.inference import (
    JSON,
    BinaryType,
    Format,
    body_format,
    content_of,
    decode_payload,
    format_for,
    infer_payload,
    is_json,
    is_plainly_v2,
    known_format,
    payload_reply,
    payload_request,
    result_of,
    starts_as_v2,
)
from trident.core.http.payloads.payload import DecodedPayload, DocumentForm, document_form
from trident.core.http.reply import BODY_KEY, CLIENT_GONE_KEY, Environ, Reply, body_size
from trident.core.http.text_generation import text_answer
from trident.core.inference.request import LATEST, InferenceRequest, version_number
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Buffer

T = TypeVar("T")

_LAST_VERSION = 2**63 - 1
# A body without these members cannot name a model; a body with them is parsed to find out.
_PARAMETERS = re.compile(rb'"parameters"')
_NAMES_ONE = re.compile(rb'"(?:model|version)"')
_QUOTE, _BACKSLASH = b'"\\'
_LARGE = 4096
_ESCAPED = re.compile(rb"\\u00")
# The parameters of the v2 protocol that are whole numbers.
_WHOLE = ("priority", "timeout", "sequence_id")


@dataclass(frozen=True, slots=True)
class Target:
    """`model` is "" for the default one, `version` -1 for the latest, `outputs` empty for all."""

    model: str = ""
    version: int = LATEST
    outputs: tuple[str, ...] = ()
    id: str = ""
    stream: bool = False


DEFAULT_TARGET = Target()


def names_model(body: Buffer) -> bool:
    """Search the text for the name of a model or a version: False is certain, True is not."""
    if len(body) > _LARGE:
        # A text with at most one string, as a list of numbers under `instances`: 40 µs instead of 340.
        text = np.frombuffer(body, np.uint8)
        if np.count_nonzero(text == _QUOTE) <= 2 and not (text == _BACKSLASH).any():
            return False
    if _PARAMETERS.search(body) is None or _NAMES_ONE.search(body) is None:
        return _ESCAPED.search(body) is not None
    return True


def read_target(body: Buffer) -> Target:
    """The target that the document names, or the default target. Raises InvalidRequest."""
    document = parse_json(body)
    parameters = document.get("parameters") if type(document) is dict else None
    return take_target(dict(parameters)) if type(parameters) is dict else DEFAULT_TARGET


def take_target(parameters: dict[str, Any]) -> Target:
    """Remove the target's members from `parameters` and return it. Raises InvalidRequest that names the member."""
    for name in _WHOLE:
        if name in parameters:
            parameters[name] = _whole(parameters[name])
    return Target(
        model=_member(parameters, "model", "", "the name of a model"),
        version=_version(parameters),
        outputs=_outputs(parameters),
        id=_member(parameters, "id", "", "a string"),
        stream=_member(parameters, "stream", False, "true or false"),
    )


def _member(parameters: dict[str, Any], name: str, default: T, expected: str) -> T:
    """Take a value that has the type of `default`."""
    value = parameters.pop(name, default)
    if type(value) is not type(default):
        raise _wrong(name, expected, value)
    return value


def _whole(value: Any) -> Any:
    """An integer for a double that is a whole number; any other value as it is."""
    return int(value) if type(value) is float and value.is_integer() else value


def _version(parameters: dict[str, Any]) -> int:
    value = _whole(parameters.pop("version", LATEST))
    if type(value) is str and value.isascii() and value.isdigit() and len(value) < len(str(_LAST_VERSION)):
        value = int(value)
    if type(value) is not int or not LATEST <= value <= _LAST_VERSION:
        raise _wrong("version", "the number of a version", value)
    return value


def _outputs(parameters: dict[str, Any]) -> tuple[str, ...]:
    value = parameters.pop("outputs", [])
    names = [value] if type(value) is str else value
    if type(names) is not list or not all(type(name) is str for name in names):
        raise _wrong("outputs", "a list of names of outputs", value)
    return tuple(dict.fromkeys(names))


def _wrong(name: str, expected: str, value: object) -> InvalidRequest:
    return InvalidRequest(f"'parameters.{name}': expected {expected}, got {shown(value)}")


BINARY = BinaryType("application/vnd.vertex-ai-triton.binary+json")
_EVENT_STREAM = "text/event-stream"
_INPUTS = re.compile(rb'"inputs"\s*:')
_STREAM = re.compile(rb'"stream"|\\u')
# Members of a body for containers that generate text. In generate's form they may be inputs of the model.
_CHAT = frozenset({"messages"})
_GENERATION = _CHAT | {"prompt", "inputs"}
# A body of these has no instances, and names no model.
_ONE_FORM = (PayloadKind.V2, PayloadKind.GENERATE)
# A search is faster than the inflation of bytes: a megabyte in two milliseconds.
_SEARCHES_BY = 16
_SIZE = re.compile(r"-?[0-9]{1,9}")


def predict(endpoint: VertexEndpoint, application: V2Application, environ: Environ) -> Reply:
    """Answer within the endpoint's limits. Raises ServerError: a request gets all its predictions or an error."""
    kind = endpoint.settings.payload
    set_deadline(environ, endpoint.settings.timeout_s)
    body = read_body(application, environ)
    if not len(body):
        raise InvalidRequest("the body is empty", hint="send {'instances': [...]}, or the v2 protocol's 'inputs'")
    endpoint.limits.check_request(len(body))
    content_type: str = environ.get("CONTENT_TYPE") or ""
    size_text = BINARY.size_text(content_type)
    is_v2 = size_text is not None or (kind is PayloadKind.AUTO and is_plainly_v2(content_type, body))
    target = DEFAULT_TARGET if is_v2 else _named_target(application, kind, content_type, body)
    version = target.version
    if target.model:
        model = application.engine.model(target.model, version)
    else:
        version = endpoint.default_version if version == DEFAULT_TARGET.version else version
        model = endpoint.default_model.find(version)
    accept = environ.get("HTTP_ACCEPT")
    is_stream = (
        accept is not None
        and _EVENT_STREAM in accept
        and choose(accept, (*JSON.media_types, _EVENT_STREAM)) == _EVENT_STREAM
    )
    if size_text is not None and not _SIZE.fullmatch(size_text):
        raise BINARY.missing_size()
    others = _GENERATION if model.spec.decoupled else _CHAT
    if not is_v2 and kind is PayloadKind.AUTO and others.isdisjoint(model.spec.inputs):
        read_instances = partial(_without_reserved, endpoint, environ, model.spec)
        answer = text_answer(application, environ, model, body, version, read_instances)
        if answer is not None:
            endpoint.limits.check_response(body_size(answer))
            return answer
    found = None if is_v2 else _body_format(application, kind, content_type, body, model.spec)
    if found is PayloadKind.GENERATE:
        is_stream = is_stream or off_hub(application, len(body), asks_for_stream, body)
        view = answer_events if is_stream else answer_object
        reply = view(application, environ, model, body, version)
    elif not isinstance(found, Format):
        if is_stream:
            raise Unsupported(
                "a request of the v2 protocol has one answer, which is not a stream",
                hint="for a stream send {'instances': [...]}, or an object with a value by input name",
                model=model.spec.name,
            )
        reply = infer_body(application, environ, one_response(model), body, version, size_text)
    else:
        payload = decode_payload(application, body, model.spec, found, endpoint.key_fields)
        reply = _predictions(application, environ, model, version, payload, is_stream=is_stream)
    endpoint.limits.check_response(body_size(reply))
    return reply


def asks_for_stream(body: Buffer) -> bool:
    """True if a generate object has `stream: true`, there or under `parameters`."""
    # The search takes a hundredth of the parser's time, which nothing else runs in. An escape may be one of the name.
    if _STREAM.search(body) is None:
        return False
    document = parse_json(body)
    if type(document) is not dict:
        return False
    parameters = document.get("parameters")
    return document.get("stream") is True or (type(parameters) is dict and parameters.get("stream") is True)


def _named_target(application: V2Application, kind: PayloadKind, content_type: str, body: Buffer) -> Target:
    """The model that a document with instances names. Its instances cannot be decoded before the model is known."""
    if kind in _ONE_FORM or known_format(content_type) not in (None, JSON) or starts_as_v2(body):
        return DEFAULT_TARGET
    if not off_hub(application, len(body) // _SEARCHES_BY, names_model, body) or document_form(body) is DocumentForm.V2:
        return DEFAULT_TARGET
    return off_hub(application, len(body), read_target, body)


def _without_reserved(
    endpoint: VertexEndpoint, environ: Environ, spec: ModelSpec, document: dict[str, Any]
) -> dict[str, Any]:
    """A document with texts as instances, without the keys of these and without the target, whose model is found.

    Raises InvalidRequest.
    """
    found = dict(document)
    parameters = document.get("parameters")
    if type(parameters) is dict:
        found["parameters"] = rest = dict(parameters)
        target = take_target(rest)
        if target.outputs or target.stream:
            name = "outputs" if target.outputs else "stream"
            raise InvalidRequest(
                f"'parameters.{name}' is not supported by instances that are texts", hint="leave it out"
            )
        environ[REQUEST_ID_KEY] = target.id
    keys = endpoint.key_fields - spec.inputs.keys()
    found["instances"] = [
        {name: value for name, value in each.items() if name not in keys} if type(each) is dict else each
        for each in document["instances"]
    ]
    return found


def _body_format(
    application: V2Application, kind: PayloadKind, content_type: str, body: Buffer, spec: ModelSpec
) -> Format | Literal[PayloadKind.GENERATE] | None:
    """The format of the body, None for the v2 protocol. Raises InvalidRequest for a form that the endpoint lacks."""
    if kind is PayloadKind.GENERATE and known_format(content_type) in (None, JSON):
        return kind
    if kind is not PayloadKind.AUTO and is_json(content_type):
        return JSON if kind is PayloadKind.INSTANCES else None
    found = body_format(content_type, body, spec, f"{BINARY.prefix}N")
    if found is None and not _INPUTS.search(body):
        document = off_hub(application, len(body), parse_json, body)
        if type(document) is dict:  # with a value for an input, as generate takes it
            parameters = document.get("parameters")
            nested = parameters if type(parameters) is dict else {}
            if any(name in document or name in nested for name in spec.inputs):
                return PayloadKind.GENERATE
        raise InvalidRequest(
            "the body is neither {'instances': [...]} nor a request of the v2 protocol, which has 'inputs'",
            hint="an instance is the value of the model's input, or an object with a value by input name",
        )
    return found


def _predictions(
    application: V2Application,
    environ: Environ,
    model: ServedModel,
    version: int,
    payload: DecodedPayload,
    *,
    is_stream: bool,
) -> Reply:
    spec = model.spec
    target = take_target(payload.parameters)
    pattern = InferenceRequest(spec.name, [], model_version=version, id=target.id, outputs=target.outputs)
    if is_stream or target.stream:
        return _prediction_events(application, environ, model, payload, pattern)
    if payload.form is DocumentForm.INSTANCES:  # the platform itself reads the answer
        media_type = JSON.media_types[0]
    else:
        media_type = format_for(environ.get("HTTP_ACCEPT"), outputs=len(target.outputs or spec.outputs))
    result = infer_payload(application, environ, one_response(model), payload, pattern)
    return payload_reply(application, environ, result, media_type, payload.form)


def _prediction_events(
    application: V2Application,
    environ: Environ,
    model: ServedModel,
    payload: DecodedPayload,
    pattern: InferenceRequest,
) -> Reply:
    """An event for each response, with the predictions of all instances. Raises InvalidRequest for too many of them."""
    if not payload_request(application, environ, model.spec, payload, pattern):
        raise InvalidRequest(
            f"a stream is the answer to one request of the model, and {payload.count} instances are several",
            hint=f"send one instance, or as many as the max_batch_size of '{model.spec.name}' lets into one request",
        )

    def encode(response: InferenceResponse) -> bytes:
        return content_of(result_of([response], payload).columns, JSON.media_types[0], payload.form)

    return stream_events(application, environ, model, pattern, encode)


# --- shared by the routes of one container: the default model, and the limits (docs/spec/vertex.md sections A4, B2)


class RedirectUnknown(InvalidRequest):
    pass


class RedirectForbidden(ServerError):
    code = ErrorCode.INVALID_ARG


Now = Callable[[], float]


def set_deadline(environ: Environ, seconds: float, now: Now = time.monotonic) -> None:
    """Set the deadline of the request in `environ` to `seconds` from now; 0 sets none.

    Then the check whether the client is gone, which the bridge calls on any thread, raises DeadlineExceeded. An
    execution that runs by then continues, and its responses are dropped.
    """
    if not seconds:
        return
    client_gone: ClientGone | None = environ.get(CLIENT_GONE_KEY)
    end = now() + seconds

    def is_over() -> bool:
        if now() >= end:
            raise DeadlineExceeded(
                f"there was no answer within {seconds:g} seconds", hint="--vertex-ai-timeout-secs is the limit"
            )
        return client_gone is not None and client_gone()

    environ[CLIENT_GONE_KEY] = is_over


# 1.5 MB each way on a shared public endpoint, 10 MB on all others.
SHARED_ENDPOINT_BYTES = 1_500_000
_SECONDS_BETWEEN_WARNINGS = 60.0
_log = logging.getLogger("trident.vertex")


def received_size(environ: Environ) -> int:
    """The bytes of a request's body as sent; 0 if the server cannot know them before it reads the body."""
    body: Buffer | None = environ.get(BODY_KEY)
    length: str = environ.get("CONTENT_LENGTH") or ""
    return len(body) if body is not None else int(length) if length.isdecimal() else 0


class SizeLimits:
    """`request` and `response` are the most bytes of a body, 0 for no limit. Hub thread, or any one thread."""

    def __init__(self, request: int, response: int, now: Now = time.monotonic) -> None:
        self.request = request
        self._response = response
        self._now = now
        self._next_warnings = {"request": float("-inf"), "response": float("-inf")}

    def check_request(self, size: int) -> None:
        self._check("request", size, self.request, "send fewer instances at once")

    def check_response(self, size: int) -> None:
        cure = "send fewer instances at once, or name the outputs that are needed in 'parameters.outputs'"
        self._check("response", size, self._response, cure)

    def _check(self, kind: str, size: int, most: int, cure: str) -> None:
        """Raise InvalidRequest above the limit. Warn once a minute: under load every request would write a line."""
        if most and size > most:
            raise InvalidRequest(
                f"the {kind} has {size} bytes, at most {most} are allowed",
                hint=f"{cure}; --vertex-ai-max-{kind}-size is the limit",
            )
        now = self._now()
        if size > SHARED_ENDPOINT_BYTES and now >= self._next_warnings[kind]:
            self._next_warnings[kind] = now + _SECONDS_BETWEEN_WARNINGS
            _log.warning(
                "a %s of %d bytes is more than the %d that a shared public endpoint lets through",
                kind,
                size,
                SHARED_ENDPOINT_BYTES,
            )


_CURE = "name one in --vertex-ai-default-model, or in 'parameters.model' of a request with instances"


class VertexEndpoint:
    """The state that the routes of one container share. Hub thread, or any one thread.

    `key_fields` are the members of an object instance that are no inputs.
    """

    def __init__(self, host: Host, settings: VertexSettings, model: str = "", version: str = "") -> None:
        """`model` and `version` are named in the predict route, as images for v2 alone needed it; or "".

        Raises InvalidRequest for version 0.
        """
        self.settings = settings
        self.limits = SizeLimits(settings.max_request_size, settings.max_response_size)
        self.key_fields = frozenset((settings.key_field,)) if settings.key_field else frozenset()
        name = settings.default_model or model
        self.default_model = host.default_model(name, _CURE)
        self.default_version = version_number(version if name == model else "")
