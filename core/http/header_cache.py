"""The JSON headers of binary requests, remembered by their bytes.

A client that sends binary tensors sends the same JSON before them again and again. Parsing it takes 12 µs for a small
request, finding it here 2.
"""

from __future__ import annotations

from core.http.known_request import KnownRequest
from core.http.response_plan import ResponsePlan
from core.inference import InferenceRequest
from core.tensor_layout import layout_of

_MAX_HEADERS = 512
_MAX_HEADER_SIZE = 2048


class HeaderCache:
    """At most 512 headers of 2 KB; when it is full it starts anew. Any thread: a lost entry is only parsed again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], KnownRequest] = {}

    def recall(
        self, model: str, version: int, header: bytes, tail: memoryview
    ) -> tuple[InferenceRequest, ResponsePlan] | None:
        """The request that `header` and the tensors in `tail` make; None if it has not been seen, or does not fit."""
        known = self._known.get((model, header))
        if known is None or known.layout.size != len(tail):
            return None
        return known.again(version, tail)

    def remember(self, header: bytes, request: InferenceRequest, plan: ResponsePlan) -> None:
        """Note a decoded request whose inputs are all raw bytes, in the order in which they stand in the tail."""
        if len(header) > _MAX_HEADER_SIZE:
            return
        if len(self._known) >= _MAX_HEADERS:
            self._known.clear()
        layout = layout_of([(t.name, t.datatype, t.shape, len(t.data)) for t in request.inputs])
        self._known[request.model_name, header] = KnownRequest(request, layout, plan)
