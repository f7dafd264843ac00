"""Requests that were decoded before and arrive again with another id and other tensors.

A client that sends binary tensors sends the same JSON before them again and again. Parsing it takes 12 µs for a small
request, finding it here 3.
Source: docs/spec/http.md section 4 (`id`).
"""

from __future__ import annotations

import re
from typing import Final

from core.frontend.known_texts import KnownTexts
from core.http.v2.response_codec import ResponsePlan
from core.inference.layout import TensorLayout, layout_of
from core.inference.request import InferenceRequest, PackedInputs

_MAX_HEADER_SIZE: Final = 2048
# A quotation mark inside a string has a backslash before it, so this finds only members of that name.
_ID: Final = re.compile(rb'"id"[ \t\r\n]*:[ \t\r\n]*"([^"\\\x00-\x1f]*)"')


class KnownRequest:
    """A decoded request without its id and the bytes of its tensors, whose places are `layout`. Any thread."""

    __slots__ = ("_request", "layout", "plan")

    def __init__(self, request: InferenceRequest, layout: TensorLayout, plan: ResponsePlan) -> None:
        self.layout = layout
        self.plan = plan.keeping_texts()
        # A copy without the tensors: they are views of a body whose memory must become free.
        self._request = request.with_inputs([], model_version=request.model_version, id="")

    def again(self, version: int, request_id: str, content: memoryview) -> tuple[InferenceRequest, ResponsePlan]:
        """The same request for `version`, with its tensors in `content`, and the plan of its response."""
        inputs = PackedInputs(self.layout, content)
        return self._request.with_inputs(inputs, model_version=version, id=request_id), self.plan


class HeaderCache:
    """The JSON headers, up to 2 KB each, of binary requests, by their bytes without the id. Any thread."""

    def __init__(self) -> None:
        self._known: KnownTexts[KnownRequest] = KnownTexts()

    def recall(
        self, model: str, version: int, header: bytes, tail: memoryview
    ) -> tuple[InferenceRequest, ResponsePlan] | None:
        """The request that `header` and the tensors in `tail` make; None if it is unknown, or its size is not."""
        text, request_id = without_id(header)
        known = self._known.get((model, text))
        if known is None or known.layout.size != len(tail):
            return None
        self._known.hits += 1
        return known.again(version, request_id, tail)

    def remember(self, header: bytes, request: InferenceRequest, plan: ResponsePlan) -> None:
        """Learn a decoded request whose inputs are all raw bytes, in the order in which they stand in the tail."""
        if len(header) > _MAX_HEADER_SIZE or not self._known.is_learning():
            return
        text, request_id = without_id(header)
        if not is_id_of(header, request_id, request.id):
            return
        layout = layout_of([(t.name, t.datatype, t.shape, len(t.data)) for t in request.inputs])
        self._known[request.model_name, text] = KnownRequest(request, layout, plan)


def without_id(text: bytes) -> tuple[bytes, str]:
    """`text` with an empty id, and the id; the same text and "" if no id can be found without a parser.

    Only a parser can tell whether the id is the request's, or a member of another object.
    """
    if b'"id"' not in text:
        return text, ""
    found = _ID.search(text)
    if found is None:
        return text, ""
    start, end = found.span(1)
    try:
        return text[:start] + text[end:], text[start:end].decode()
    except UnicodeDecodeError:
        return text, ""


def is_id_of(text: bytes, found: str, request_id: str) -> bool:
    """Whether the id that `without_id` found in `text` is the id that a parser read, here and in all texts that differ
    only by it: then no other member has that name, not even one that is written with escapes."""
    if found != request_id:
        return False
    return not found or (text.count(b'"id"') == 1 and b"\\" not in text)
