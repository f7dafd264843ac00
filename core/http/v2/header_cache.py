"""The JSON headers of binary requests, remembered by their bytes but for the id.

A client that sends binary tensors sends the same JSON before them again and again. Parsing it takes 12 µs for a small
request, finding it here 3.
"""

from __future__ import annotations

from core.http.v2.known_request import KnownRequest
from core.http.v2.known_texts import KnownTexts
from core.http.v2.request_id import is_id_of, without_id
from core.http.v2.response_plan import ResponsePlan
from core.inference.layout import layout_of
from core.inference.request import InferenceRequest

_MAX_HEADER_SIZE = 2048


class HeaderCache:
    """Of headers up to 2 KB. Any thread."""

    def __init__(self) -> None:
        self._known: KnownTexts[KnownRequest] = KnownTexts()

    def recall(
        self, model: str, version: int, header: bytes, tail: memoryview
    ) -> tuple[InferenceRequest, ResponsePlan] | None:
        """The request that `header` and the tensors in `tail` make; None if it has not been seen, or does not fit."""
        text, request_id = without_id(header)
        known = self._known.get((model, text))
        if known is None or known.layout.size != len(tail):
            return None
        return known.again(version, request_id, tail)

    def remember(self, header: bytes, request: InferenceRequest, plan: ResponsePlan) -> None:
        """Note a decoded request whose inputs are all raw bytes, in the order in which they stand in the tail."""
        if len(header) > _MAX_HEADER_SIZE or not self._known.is_learning():
            return
        text, request_id = without_id(header)
        if not is_id_of(header, request_id, request.id):
            return
        layout = layout_of([(t.name, t.datatype, t.shape, len(t.data)) for t in request.inputs])
        self._known.put((request.model_name, text), KnownRequest(request, layout, plan))
