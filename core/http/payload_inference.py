"""Inference on a payload that was decoded from another format than the v2 protocol's: as many requests as it takes."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.config.model_spec import ModelSpec
from core.http.fan_out import infer_all
from core.http.infer import CLIENT_GONE_KEY, prepare, run
from core.http.payloads.output_columns import OutputColumn, output_columns
from core.http.payloads.payload import DecodedPayload, split_instances
from core.http.reply import Environ
from core.http.request_codec import read_parameters
from core.inference import InferenceRequest, InferenceResponse, Parameter

if TYPE_CHECKING:
    from core.http.application import V2Application


@dataclass(frozen=True, slots=True, eq=False)
class PayloadResult:
    """`columns` are all outputs, with a row for each instance; `parameters` are those of the first response."""

    columns: list[OutputColumn]
    parameters: dict[str, Parameter] | None


def infer_payload(
    application: V2Application, environ: Environ, spec: ModelSpec, payload: DecodedPayload
) -> PayloadResult:
    """Run `payload` on the version of `spec`'s model that serves. Raises ServerError.

    What the model takes at once is one request. Otherwise it is several, and a native thread waits for them.
    """
    pattern = InferenceRequest(spec.name, [])
    if payload.parameters:
        read_parameters(payload.parameters, pattern)
    prepare(application, environ, pattern)
    if _is_one_request(payload, spec):
        (pattern.inputs,) = split_instances(payload, spec)
        return _result([run(application, environ, pattern)], payload)
    return application.bridge.run_long(_infer_parts, application, environ, spec, payload, pattern)


def _is_one_request(payload: DecodedPayload, spec: ModelSpec) -> bool:
    count = payload.count
    return (
        count is None or count == 1 or (payload.stacked and (spec.max_batch_size == 0 or count <= spec.max_batch_size))
    )


def _infer_parts(
    application: V2Application, environ: Environ, spec: ModelSpec, payload: DecodedPayload, pattern: InferenceRequest
) -> PayloadResult:
    requests = _requests(payload, spec, pattern)
    return _result(infer_all(application.engine, requests, environ.get(CLIENT_GONE_KEY)), payload)


def _requests(payload: DecodedPayload, spec: ModelSpec, pattern: InferenceRequest) -> Iterator[InferenceRequest]:
    """The requests that the payload makes, each of them like `pattern`."""
    for inputs in split_instances(payload, spec):
        request = copy(pattern)
        request.inputs = inputs
        if pattern.parameters is not None:
            request.parameters = pattern.parameters.copy()
        yield request


def _result(responses: list[InferenceResponse], payload: DecodedPayload) -> PayloadResult:
    columns = output_columns([response.outputs for response in responses], payload)
    return PayloadResult(columns, responses[0].parameters)
