"""A request on the predict route: instances to predictions, or raw.

A body with `instances` is the platform's own kind: batch prediction and explanations send nothing else. A body of the
v2 protocol, as JSON or with binary tensors, goes the way of plain HTTP, and any other format that is known becomes
tensors by the model's inputs.
Source: docs/spec/vertex.md sections A3, B4, D points 1 to 7.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from adapters.vertex.deadline import set_deadline
from adapters.vertex.target import DEFAULT_TARGET, Target, names_model, read_target, take_target
from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest, Unsupported
from core.http.payloads.body_format import decoder_of, is_plainly_v2, known_format, starts_as_v2
from core.http.payloads.formats import JSON, Decode, format_for, is_json
from core.http.payloads.inference import decode_payload, infer_payload, payload_reply
from core.http.payloads.json.decoder import document_form
from core.http.payloads.media_type import choose
from core.http.payloads.payload import DocumentForm
from core.http.reply import Environ, Reply
from core.http.v2.binary_type import BinaryType
from core.http.views.infer import infer_body, off_hub, read_whole, servable
from core.inference.request import InferenceRequest
from core.inference.tensors import Buffer

if TYPE_CHECKING:
    from adapters.vertex.application import VertexApplication

BINARY = BinaryType("application/vnd.vertex-ai-triton.binary+json")
_EVENT_STREAM = "text/event-stream"
_INPUTS = re.compile(rb'"inputs"\s*:')
_SIZE = re.compile(r"-?[0-9]{1,9}")


def predict(application: VertexApplication, environ: Environ) -> Reply:
    """Within the limits of the endpoint. Raises ServerError: a request has all its predictions, or none."""
    set_deadline(environ, application.settings.timeout_s)
    body = read_whole(application, environ)
    if not len(body):
        raise InvalidRequest("the body is empty", hint="send {'instances': [...]}, or the v2 protocol's 'inputs'")
    application.limits.check_request(len(body))
    content_type: str = environ.get("CONTENT_TYPE") or ""
    size_text = BINARY.size_text(content_type)
    is_v2 = size_text is not None or (application.settings.payload == "auto" and is_plainly_v2(content_type, body))
    target = DEFAULT_TARGET if is_v2 else _named_target(application, content_type, body)
    version = target.version
    if target.model:
        spec = application.engine.model_spec(target.model, version)
    else:
        version = application.default_version if version == DEFAULT_TARGET.version else version
        spec = application.default_model.spec(version)
    servable(spec)
    if wants_stream(environ.get("HTTP_ACCEPT")):
        raise no_stream(spec)
    if is_v2:
        if size_text is not None and not _SIZE.fullmatch(size_text):
            raise BINARY.missing_size()
        reply = infer_body(application, environ, spec, body, version, size_text)
    else:
        reply = _answer(application, environ, spec, body, version, content_type)
    application.limits.check_response(sum(map(len, reply.body)))
    return reply


def wants_stream(accept: str | None) -> bool:
    """Whether the client would rather have an event stream than one document. Raises InvalidRequest for garbage."""
    return (
        accept is not None
        and _EVENT_STREAM in accept
        and choose(accept, (*JSON.media_types, _EVENT_STREAM)) == (_EVENT_STREAM)
    )


def no_stream(spec: ModelSpec) -> Unsupported:
    """Here is where models that stream will be asked; there are none yet."""
    return Unsupported(
        "this server does not stream predictions yet",
        hint="call predict or rawPredict, without 'parameters.stream' and without 'Accept: text/event-stream'",
        model=spec.name,
    )


def _named_target(application: VertexApplication, content_type: str, body: Buffer) -> Target:
    """What a document with instances says of the model; it must be known before the instances can be read."""
    if application.settings.payload == "v2" or known_format(content_type) not in (None, JSON) or starts_as_v2(body):
        return DEFAULT_TARGET
    if not names_model(body) or document_form(body) is DocumentForm.V2:
        return DEFAULT_TARGET
    return off_hub(application, len(body), read_target, body)


def _answer(
    application: VertexApplication, environ: Environ, spec: ModelSpec, body: Buffer, version: int, content_type: str
) -> Reply:
    decode = _decoder(application, content_type, body, spec)
    if decode is not None:
        return _predictions(application, environ, spec, body, version, decode)
    return infer_body(application, environ, spec, body, version, None)


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


def _answer_type(environ: Environ, target: Target, spec: ModelSpec) -> str:
    return format_for(environ.get("HTTP_ACCEPT"), outputs=len(target.outputs or spec.outputs))


def _predictions(
    application: VertexApplication, environ: Environ, spec: ModelSpec, body: Buffer, version: int, decode: Decode
) -> Reply:
    payload = decode_payload(application, body, spec, decode, application.key_fields)
    target = take_target(payload.parameters)
    if target.stream:
        raise no_stream(spec)
    is_predict = payload.form is DocumentForm.INSTANCES
    media_type = JSON.media_types[0] if is_predict else _answer_type(environ, target, spec)
    pattern = InferenceRequest(spec.name, [], model_version=version, id=target.id, outputs=target.outputs)
    result = infer_payload(application, environ, spec, payload, pattern)
    return payload_reply(application, environ, result, media_type, payload.form)
