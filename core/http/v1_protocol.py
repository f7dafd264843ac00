"""KServe's v1 protocol, which is TensorFlow Serving's, for its clients.

    POST /v1/models/NAME:predict    {"instances": [...]} is answered with {"predictions": [...]}

An object with `inputs`, a tensor by name, is answered with `outputs`. `GET /v1/models/NAME` is OpenAI's route, whose
answer has the members of both (core/http/text_routes.py).
Source: KServe's and TensorFlow Serving's descriptions of their REST interfaces.
"""

from __future__ import annotations

from trident.core.errors import InvalidRequest
from trident.core.frontend.request import LATEST
from trident.core.http.dataplane import one_response, read_body
from trident.core.http.front_end import HttpFrontEnd
from trident.core.http.payloads.formats import JSON
from trident.core.http.payloads.inference import decode_payload, infer_payload, payload_reply
from trident.core.http.reply import Environ, Reply
from trident.core.inference.request import InferenceRequest


def predict(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """`POST /v1/models/NAME[/versions/N]:predict`. Raises ServerError."""
    number = int(version) if version else LATEST
    served = one_response(front_end.engine.model(model, number))
    body = read_body(front_end, environ)
    if not len(body):
        raise InvalidRequest("the body is empty", hint="send {'instances': [...]}")
    payload = decode_payload(front_end, environ, body, served.spec, JSON)
    pattern = InferenceRequest(served.spec.name, [], model_version=number)
    result = infer_payload(front_end, environ, served, payload, pattern)
    return payload_reply(front_end, environ, result, JSON.media_types[0], payload.form)
