"""What the OpenAPI document says of Vertex AI's routes.

Source: docs/vertex.md.
"""

from __future__ import annotations

from typing import Final

from trident.adapters.common.openapi import FORMAT_ANSWER, FORMAT_BODY, PROGRESS
from trident.core.http.openapi import ANY_OBJECT, BYTES_BODY, TEXT_VALUE, Operation, listing, record
from trident.core.http.reply import JSON, TEXT

_BINARY = "application/vnd.vertex-ai-triton.binary+json"
_INSTANCES = record({"instances": listing({})}, {"parameters": ANY_OBJECT})
_PREDICTIONS = record({"predictions": listing({})})
_REDIRECT = {
    "name": "X-Vertex-Ai-Triton-Redirect",
    "in": "header",
    "required": False,
    "description": "Another path of the server, without its first slash",
    "schema": TEXT_VALUE,
}
_PREDICT = Operation(
    "Run the model on instances, or on the body of another form",
    {**FORMAT_ANSWER, JSON: {"anyOf": [_PREDICTIONS, {}]}},
    {**FORMAT_BODY, JSON: {"anyOf": [_INSTANCES, {}]}, _BINARY: BYTES_BODY},
    needs_body=False,
    parameters=(_REDIRECT,),
)

PLATFORM_OPERATIONS: Final = {
    "health": Operation("Whether the container serves", PROGRESS),
    "predict": _PREDICT,
    "by_method": _PREDICT,
}
METRICS: Final = Operation("Metrics as Prometheus reads them", {TEXT: TEXT_VALUE})
