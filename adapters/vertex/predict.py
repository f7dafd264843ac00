"""A request on the predict route: instances to predictions, or raw.

A body with `instances` is the platform's own kind: batch prediction and explanations send nothing else. A body of the
v2 protocol, as JSON or with binary tensors, goes the way of plain HTTP, and any other format that is known becomes
tensors by the model's inputs.
Source: spec/vertex.md sections (a) A3, (b) B4, native translation, points 1 to 7.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from adapters.vertex.deadline import Deadline
from adapters.vertex.target import DEFAULT_TARGET, Target, names_model, read_target, take_target
from core.config.model_spec import ModelSpec
from core.errors import DeadlineExceeded, InvalidRequest, RequestCancelled, Unsupported
from core.http.binary_type import BinaryType
from core.http.infer import CLIENT_GONE_KEY, infer_body, read_whole, servable
from core.http.payload_inference import decode_payload, infer_payload, payload_reply
from core.http.payloads.body_format import decoder_of
from core.http.payloads.formats import JSON, Decode, format_for, is_json
from core.http.payloads.json_decoder import document_form
from core.http.payloads.payload import DocumentForm
from core.http.reply import Environ, Reply
from core.inference import InferenceRequest
from core.tensors import Buffer

if TYPE_CHECKING:
    from adapters.vertex.application import VertexApplication

BINARY = BinaryType("application/vnd.vertex-ai-triton.binary+json")
_EVENT_STREAM = "text/event-stream"
_STREAM = "stream"
_INPUTS = re.compile(rb'"inputs"\s*:')


def predict(application: VertexApplication, environ: Environ) -> Reply:
    """Within the limits of the endpoint. Raises ServerError: a request has all its predictions, or none."""
    seconds = application.settings.timeout_s
    if not seconds:
        return _predict(application, environ)
    deadline = Deadline(seconds, environ.get(CLIENT_GONE_KEY))
    environ[CLIENT_GONE_KEY] = deadline
    try:
        return _predict(application, environ)
    except RequestCancelled:
        if not deadline.has_passed:
            raise
        raise DeadlineExceeded(
            f"there was no answer within {seconds:g} seconds", hint="--vertex-ai-timeout-secs is the limit"
        ) from None


def _predict(application: VertexApplication, environ: Environ) -> Reply:
    body = read_whole(application, environ)
    if not len(body):
        raise InvalidRequest("the body is empty", hint="send {'instances': [...]}, or the v2 protocol's 'inputs'")
    application.limits.check_request(len(body))
    content_type: str = environ.get("CONTENT_TYPE") or ""
    size_text = BINARY.size_text(content_type)
    target = _named_target(application, body) if size_text is None else DEFAULT_TARGET
    spec = servable(application, target.model or application.default_model.name(), target.version)
    if _EVENT_STREAM in (environ.get("HTTP_ACCEPT") or ""):
        raise no_stream(spec)
    reply = _answer(application, environ, spec, body, target, content_type, size_text)
    application.limits.check_response(sum(map(len, reply.body)))
    return reply


def no_stream(spec: ModelSpec) -> Unsupported:
    """Here is where models that stream will be asked; there are none yet."""
    return Unsupported(
        "this server does not stream predictions yet",
        hint="call predict or rawPredict, without 'parameters.stream' and without 'Accept: text/event-stream'",
        model=spec.name,
    )


def _named_target(application: VertexApplication, body: Buffer) -> Target:
    """What a document with instances says of the model; it must be known before the instances can be read."""
    if application.settings.payload == "v2" or not names_model(body) or document_form(body) is DocumentForm.V2:
        return DEFAULT_TARGET
    return read_target(body)


def _answer(
    application: VertexApplication,
    environ: Environ,
    spec: ModelSpec,
    body: Buffer,
    target: Target,
    content_type: str,
    size_text: str | None,
) -> Reply:
    if size_text is None:
        decode = _decoder(application, content_type, body, spec)
        if decode is not None:
            return _predictions(application, environ, spec, body, decode)
    elif not size_text:
        raise BINARY.missing_size()
    return infer_body(application, environ, spec, body, target.version, size_text)


def _decoder(application: VertexApplication, content_type: str, body: Buffer, spec: ModelSpec) -> Decode | None:
    """What reads the body; None for the v2 protocol. Raises InvalidRequest for what can be neither."""
    if application.settings.payload != "auto" and is_json(content_type):
        return JSON.decode if application.settings.payload == "instances" else None
    decode = decoder_of(content_type, body, spec, f"{BINARY.prefix}N")
    if decode is None and not _INPUTS.search(body):
        raise InvalidRequest(
            "the body is neither {'instances': [...]} nor a request of the v2 protocol, which has 'inputs'",
            hint="an instance is the value of the model's input, or an object with a value by input name",
        )
    return decode


def _predictions(
    application: VertexApplication, environ: Environ, spec: ModelSpec, body: Buffer, decode: Decode
) -> Reply:
    payload = decode_payload(application, body, spec, decode, application.key_fields)
    target = take_target(payload.parameters)
    if payload.parameters.pop(_STREAM, False):
        raise no_stream(spec)
    is_predict = payload.form is DocumentForm.INSTANCES
    media_type = JSON.media_types[0] if is_predict else format_for(environ.get("HTTP_ACCEPT"))
    pattern = InferenceRequest(spec.name, [], model_version=target.version, id=target.id, outputs=target.outputs)
    result = infer_payload(application, environ, spec, payload, pattern)
    return payload_reply(application, environ, result, media_type, payload.form)
