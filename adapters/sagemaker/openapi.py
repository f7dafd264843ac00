"""What the OpenAPI document says of SageMaker's routes.

Source: docs/sagemaker.md.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Final

from trident.adapters.common.openapi import FORMAT_ANSWER, FORMAT_BODY, PROGRESS
from trident.core.http.openapi import ANY_OBJECT, BYTES_BODY, NUMBER, TEXT_VALUE, Operation, listing, record
from trident.core.http.reply import JSON, TEXT

_BINARY = "application/vnd.sagemaker-triton.binary+json"
_MODEL = record({"modelName": TEXT_VALUE, "modelUrl": TEXT_VALUE})
_INVOKE = Operation(
    "Run the model", {**FORMAT_ANSWER, _BINARY: BYTES_BODY}, {**FORMAT_BODY, _BINARY: BYTES_BODY}, needs_body=False
)

OPERATIONS: Final = {
    "ping": Operation("Whether the container serves", PROGRESS),
    "invocations": _INVOKE,
    "bidirectional_stream": Operation("Requests and answers on a WebSocket", status=HTTPStatus.SWITCHING_PROTOCOLS),
    "execution_parameters": Operation(
        "How batch transform sends bodies",
        {
            JSON: record(
                {"MaxConcurrentTransforms": NUMBER, "BatchStrategy": TEXT_VALUE, "MaxPayloadInMB": NUMBER},
            )
        },
    ),
    "metrics": Operation("Metrics as Prometheus reads them", {TEXT: TEXT_VALUE}),
    "models": Operation(
        "The loaded models; a POST loads one",
        {JSON: record({"models": listing(_MODEL)}, {"nextPageToken": TEXT_VALUE}), TEXT: TEXT_VALUE},
        {JSON: record({"model_name": TEXT_VALUE, "url": TEXT_VALUE})},
    ),
    "model": Operation("Where the model was loaded from; a DELETE unloads it", {JSON: ANY_OBJECT, TEXT: TEXT_VALUE}),
    "invoke_model": _INVOKE,
}
_SINGLE = {"invocations", "bidirectional_stream", "execution_parameters"}
_MULTI = {"models", "model", "invoke_model"}


def shown_routes(*, multi_model: bool) -> Collection[str]:
    """The names of the routes that an endpoint has."""
    return OPERATIONS.keys() - (_SINGLE if multi_model else _MULTI)
