"""Inference on bodies in formats other than the v2 protocol's, for the platforms' adapters.

A body is decoded to a payload by the model's inputs, the payload is split into requests, and their outputs are encoded
as the client asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trident.core.config.spec import ModelSpec
from trident.core.engine.protocol import ServedModel
from trident.core.errors import InvalidRequest
from trident.core.frontend.classification import classified
from trident.core.frontend.request import read_parameters
from trident.core.http.dataplane import complete, decode_v2, finish, off_hub, run, run_many, slicing_of
from trident.core.http.front_end import HttpFrontEnd
from trident.core.http.payloads.formats import JSON, NPZ, Format, encoder_of, format_for
from trident.core.http.payloads.json import encode_json
from trident.core.http.payloads.payload import (
    DecodedPayload,
    DecodeRules,
    DocumentForm,
    OutputColumn,
    most_rows,
    output_columns,
    split_instances,
)
from trident.core.http.reply import Environ, Reply
from trident.core.http.v2_known import ResponsePlan
from trident.core.inference.request import InferenceRequest, InferenceTimes, Parameter
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Buffer

# How much larger the content of a small npz may be.
_INFLATES_BY = 32
# Decoding numbers is four times as fast as inflating bytes: 240 KB of JSON in a millisecond.
_READS_BY = 4


@dataclass(frozen=True, slots=True, eq=False)
class PayloadResult:
    """`columns` are the outputs, with a row for each instance; `parameters` are the first response's. `times` are the
    longest of all responses."""

    columns: list[OutputColumn]
    parameters: dict[str, Parameter] | None
    times: InferenceTimes | None = None


def decode_payload(
    front_end: HttpFrontEnd,
    environ: Environ,
    body: Buffer,
    spec: ModelSpec,
    format: Format,
    ignored_fields: frozenset[str] = frozenset(),
) -> DecodedPayload:
    """Decode `body`, off the hub if that takes long. Raises InvalidRequest.

    `ignored_fields` are members of instances that are not inputs.
    """
    check_size(front_end, len(body))
    size = len(body) * _INFLATES_BY if format is NPZ else len(body) // _READS_BY
    rules = DecodeRules(
        max_input_size=front_end.options.max_input_size,
        ignored_fields=ignored_fields,
        slicing=slicing_of(environ, len(body), spec),
    )
    return off_hub(front_end, size, format.decode, body, spec, rules)


def check_size(front_end: HttpFrontEnd, size: int) -> None:
    """Raises InvalidRequest for a body over the limit on input size."""
    limit = front_end.options.max_input_size
    if size > limit:
        raise InvalidRequest(
            f"the body of {size} bytes exceeds the maximum allowed input size of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )


def infer_payload(
    front_end: HttpFrontEnd,
    environ: Environ,
    model: ServedModel,
    payload: DecodedPayload,
    pattern: InferenceRequest | None = None,
) -> PayloadResult:
    """Run `payload` on `model`. Raises ServerError.

    A payload that fits into one batch is one request. Otherwise it is several, a native thread waits for them, and the
    version that then serves is held for all of them.
    Every request is a copy of `pattern`, which has no inputs.
    """
    pattern = pattern or InferenceRequest(model.spec.name, [])
    if payload_request(front_end, environ, model.spec, payload, pattern):
        response = run(front_end, environ, model, pattern)
        return off_hub(front_end, _unpacked_size(response), result_of, [response], payload)
    return front_end.bridge.run_long(_infer_parts, front_end, environ, model.spec, payload, pattern)


def payload_request(
    front_end: HttpFrontEnd, environ: Environ, spec: ModelSpec, payload: DecodedPayload, pattern: InferenceRequest
) -> bool:
    """Complete `pattern` with the parameters and headers, and with the inputs of `payload` if they fit into one batch.

    Returns whether they do. Raises InvalidRequest.
    """
    if payload.parameters:
        read_parameters(payload.parameters, pattern)
    complete(front_end, environ, pattern)
    if not _is_one_request(payload, spec):
        return False
    (pattern.inputs,) = split_instances(payload, spec)
    return True


def infer_converted(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Buffer, version: int, media_type: str
) -> PayloadResult:
    """Run a v2 JSON request whose response is to be in another `media_type`. Raises ServerError."""
    spec = model.spec
    request, plan = decode_v2(front_end, environ, body, None, version, spec)
    check_convertible(request, spec, media_type)
    complete(front_end, environ, request)
    response = run(front_end, environ, model, request)
    return off_hub(front_end, _unpacked_size(response), converted, request, response, plan, spec)


def _unpacked_size(response: InferenceResponse) -> int:
    """The size of the outputs, if there are strings among them that have to be unpacked one by one."""
    return response.nbytes if any(output.datatype == "BYTES" for output in response.outputs) else 0


def check_convertible(request: InferenceRequest, spec: ModelSpec, media_type: str) -> None:
    """Raises NotAcceptable for a type that cannot hold the outputs of a v2 request."""
    format_for(media_type, outputs=len(request.outputs or spec.outputs))


def converted(
    request: InferenceRequest, response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec
) -> PayloadResult:
    """The response to a v2 request, for another format. The first input gives the number of rows.

    The request's settings of binary tensors are ignored. Classifications are strings in every format.
    """
    rows = request.inputs[0].shape[0] if spec.max_batch_size > 0 and request.inputs else None
    outputs = [classified(output, plan.form_of(output.name)[1], spec) for output in response.outputs]
    payload = DecodedPayload(arrays={}, count=rows, stacked=True)
    return PayloadResult(output_columns([outputs], payload), response.parameters, response.times)


def payload_reply(
    front_end: HttpFrontEnd,
    environ: Environ,
    result: PayloadResult,
    media_type: str,
    form: DocumentForm | None = None,
) -> Reply:
    """The reply with the outputs as `media_type`; `form` is the form of the request if that was JSON."""
    size = sum(part.nbytes for column in result.columns for part in column.parts)
    content: list[Buffer] = [*off_hub(front_end, size, content_of, result.columns, media_type, form)]
    headers = [("Content-Type", media_type)]
    return finish(front_end, environ, content, headers, result.parameters, result.times)


def content_of(columns: list[OutputColumn], media_type: str, form: DocumentForm | None) -> list[bytes]:
    """The parts of the body of the reply that `payload_reply` makes."""
    if media_type in JSON.media_types:
        return encode_json(columns, form)
    return encoder_of(media_type)(columns)


def _is_one_request(payload: DecodedPayload, spec: ModelSpec) -> bool:
    count = payload.count
    return count is None or count == 1 or (payload.stacked and (spec.max_batch_size == 0 or count <= most_rows(spec)))


def _infer_parts(
    front_end: HttpFrontEnd, environ: Environ, spec: ModelSpec, payload: DecodedPayload, pattern: InferenceRequest
) -> PayloadResult:
    requests = requests_of(payload, spec, pattern)
    return result_of(run_many(front_end, environ, requests), payload)


def requests_of(payload: DecodedPayload, spec: ModelSpec, pattern: InferenceRequest) -> Iterator[InferenceRequest]:
    """The requests of the payload, each a copy of `pattern` with inputs: the first has its START, the last its END."""
    parts = split_instances(payload, spec)
    for index, inputs in enumerate(parts, 1):
        request = pattern.with_inputs(inputs, model_version=pattern.model_version, id=pattern.id)
        request.sequence_start = pattern.sequence_start and index == 1
        request.sequence_end = pattern.sequence_end and index == len(parts)
        yield request


def result_of(responses: list[InferenceResponse], payload: DecodedPayload) -> PayloadResult:
    """Join the responses to the requests of `requests_of`. Raises ServerError."""
    columns = output_columns([response.outputs for response in responses], payload)
    times = InferenceTimes.longest(response.times for response in responses)
    return PayloadResult(columns, responses[0].parameters, times)
