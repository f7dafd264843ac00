"""An invocation: one body in, one body out, in the formats that Content-Type and Accept name.

The v2 protocol, as JSON or with binary tensors, goes the way of plain HTTP. Everything else becomes tensors by the
model's inputs, and its outputs become what Accept asks for.
Source: spec/sagemaker.md sections (a) A2 and A6, (b) B5, (c).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.sagemaker.binary_type import BINARY_PREFIX, json_size_text
from adapters.sagemaker.body_format import decoder_of
from adapters.sagemaker.response_type import other_than_v2
from adapters.sagemaker.settings import INFERENCE_TYPE
from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest, Unsupported
from core.http.infer import finish, infer_body, off_hub, open_request, prepare, run
from core.http.payload_inference import PayloadResult, infer_payload
from core.http.payloads.formats import JSON, NPZ, Decode, encoder_of
from core.http.payloads.json_encoder import encode_json
from core.http.payloads.output_columns import OutputColumn, output_columns
from core.http.payloads.payload import DecodedPayload, DecodeRules, DocumentForm
from core.http.reply import Environ, Reply
from core.http.request_codec import decode_request
from core.tensors import Buffer

if TYPE_CHECKING:
    from adapters.sagemaker.application import SageMakerApplication

_LATEST = -1
# What a small npz may become.
_INFLATES_BY = 32


def invoke(application: SageMakerApplication, environ: Environ, model: str) -> Reply:
    """Run the request in `environ` on the engine's `model`. Raises ServerError."""
    spec, body = open_request(application, environ, model, _LATEST)
    if not len(body):
        raise InvalidRequest("the body is empty", hint="send the model's inputs, in a format that Content-Type names")
    content_type: str = environ.get("CONTENT_TYPE") or ""
    size_text = json_size_text(content_type)
    if size_text is None:
        decode = decoder_of(content_type, body, spec)
        accept = environ.get("HTTP_ACCEPT")
        if decode is not None:
            return _invoke_payload(application, environ, spec, body, decode)
        if accept is not None:
            wanted = other_than_v2(accept)
            if wanted is not None:
                return _invoke_converted(application, environ, spec, body, wanted)
    elif not size_text:
        raise InvalidRequest(f"Content-Type must be '{BINARY_PREFIX}N', N being the length of the JSON in bytes")
    return infer_body(application, environ, spec, body, _LATEST, size_text)


def generate(application: SageMakerApplication, environ: Environ, model: str) -> Reply:
    """The answers of a model that gives many, as `settings.inference_type` says: all at once, or as they come.

    Here is where models that stream will be asked; there are none yet, so it raises Unsupported.
    """
    kind = application.settings.inference_type
    raise Unsupported(
        f"{INFERENCE_TYPE} is '{kind}', which this server does not support yet",
        hint=f"set {INFERENCE_TYPE} to 'infer', or leave it out",
        model=model,
    )


def _invoke_payload(
    application: SageMakerApplication, environ: Environ, spec: ModelSpec, body: Buffer, decode: Decode
) -> Reply:
    limit = application.options.max_input_size
    if len(body) > limit:
        raise InvalidRequest(
            f"the body of {len(body)} bytes exceeds the maximum allowed input size of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    media_type = application.response_types.of(environ.get("HTTP_ACCEPT"), decode)
    size = len(body) * (_INFLATES_BY if decode is NPZ.decode else 1)
    payload = off_hub(application, size, decode, body, spec, DecodeRules(max_input_size=limit))
    result = infer_payload(application, environ, spec, payload)
    return _encoded(application, environ, result, media_type, payload.form)


def _invoke_converted(
    application: SageMakerApplication, environ: Environ, spec: ModelSpec, body: Buffer, media_type: str
) -> Reply:
    """A v2 JSON request whose outputs are wanted in another format: rows are those of its first input."""
    request, _ = decode_request(body, None, _LATEST, spec, application.options.max_input_size)
    prepare(application, environ, request)
    rows = request.inputs[0].shape[0] if spec.max_batch_size > 0 and request.inputs else None
    response = run(application, environ, request)
    payload = DecodedPayload(arrays={}, count=rows, stacked=True)
    result = PayloadResult(output_columns([response.outputs], payload), response.parameters)
    return _encoded(application, environ, result, media_type, None)


def _encoded(
    application: SageMakerApplication,
    environ: Environ,
    result: PayloadResult,
    media_type: str,
    form: DocumentForm | None,
) -> Reply:
    size = sum(part.nbytes for column in result.columns for part in column.parts)
    content = off_hub(application, size, _content, result.columns, media_type, form)
    headers = [("Content-Type", media_type)]
    return finish(application, environ, [content], headers, result.parameters)


def _content(columns: list[OutputColumn], media_type: str, form: DocumentForm | None) -> bytes:
    if media_type in JSON.media_types:
        return encode_json(columns, form)
    return encoder_of(media_type)(columns)
