"""Invocations: one request body and one response body, in the formats that Content-Type and Accept name.

A body of the v2 protocol, as JSON or with binary tensors, is answered as on plain HTTP. A body in any other format is
decoded into the model's inputs, and the outputs are encoded as Accept asks.
Source: docs/spec/sagemaker.md sections A2 and A6, B5, C.
"""

from __future__ import annotations

from adapters.sagemaker.response_type import BINARY, ResponseTypes, other_than_v2
from core.config.model_spec import ModelSpec
from core.engine.served_model import ServedModel
from core.errors import InvalidRequest
from core.frontend.version_text import LATEST
from core.http.application import V2Application
from core.http.payloads.body_kind import BodyKind, body_kind, is_plainly_v2
from core.http.payloads.inference import decode_payload, infer_converted, infer_payload, payload_reply
from core.http.payloads.json.request_lines import may_be_request_lines, request_lines
from core.http.payloads.line_inference import infer_lines
from core.http.reply import Environ, Reply
from core.http.views.infer import infer_body, off_hub, read_whole, servable


def invoke(application: V2Application, environ: Environ, model: ServedModel, response_types: ResponseTypes) -> Reply:
    """Run the request in `environ` on `model`. Raises ServerError."""
    spec = servable(model).spec
    body = read_whole(application, environ)
    if not len(body):
        raise InvalidRequest("the body is empty", hint="send the model's inputs, in a format that Content-Type names")
    content_type: str = environ.get("CONTENT_TYPE") or ""
    size_text = BINARY.size_text(content_type)
    if size_text is None:
        if may_be_request_lines(content_type, body):
            lines = off_hub(application, len(body), request_lines, content_type, body, spec)
            if lines is not None:
                return _infer_lines(application, environ, spec, lines, response_types)
        plain = is_plainly_v2(content_type, body)
        kind = BodyKind.V2 if plain else body_kind(content_type, body, spec, f"{BINARY.prefix}N")
        accept = environ.get("HTTP_ACCEPT")
        if kind is not BodyKind.V2:
            media_type = response_types.of(accept, kind, len(spec.outputs))
            payload = decode_payload(application, environ, body, spec, kind)
            result = infer_payload(application, environ, model, payload)
            return payload_reply(application, environ, result, media_type, payload.form)
        wanted = other_than_v2(accept) if accept is not None else None
        if wanted is not None:
            result = infer_converted(application, environ, model, body, LATEST, wanted)
            return payload_reply(application, environ, result, wanted)
    elif not size_text:
        raise BINARY.missing_size()
    return infer_body(application, environ, model, body, LATEST, size_text)


def _infer_lines(
    application: V2Application, environ: Environ, spec: ModelSpec, lines: list[bytes], response_types: ResponseTypes
) -> Reply:
    """Answer each line as if it were alone in a JSON body."""
    accept: str | None = environ.get("HTTP_ACCEPT")

    def answer_type(is_v2: bool) -> str | None:
        if is_v2:
            return None if accept is None else other_than_v2(accept)
        return response_types.of(accept, BodyKind.JSON, len(spec.outputs))

    return infer_lines(application, environ, spec, lines, answer_type)
