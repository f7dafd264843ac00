"""The bodies that every platform's OpenAPI document has.

Source: docs/sagemaker.md and docs/vertex.md.
"""

from __future__ import annotations

from typing import Final

from trident.core.http.openapi import BYTES_BODY, OCTETS, TEXT_VALUE, Content, ref
from trident.core.http.reply import JSON, TEXT

_ARRAYS: Content = {
    "text/csv": TEXT_VALUE,
    "application/jsonlines": TEXT_VALUE,
    "application/x-npy": BYTES_BODY,
    "application/x-npz": BYTES_BODY,
}
_V2_OR_OTHER = {"description": "v2 JSON, or another form", "anyOf": [ref("InferRequest"), {}]}
FORMAT_BODY: Final[Content] = {JSON: _V2_OR_OTHER, OCTETS: BYTES_BODY, **_ARRAYS}
FORMAT_ANSWER: Final[Content] = {
    JSON: {"description": "the form of the request", "anyOf": [ref("InferResponse"), {}]},
    OCTETS: BYTES_BODY,
    "text/event-stream": BYTES_BODY,
    **_ARRAYS,
}
PROGRESS: Final[Content] = {TEXT: TEXT_VALUE, JSON: ref("Readiness")}
