"""JSON requests, remembered by their text without the numbers and the id.

A client that sends JSON repeats the same text with other numbers. For two inputs of 16 integers, parsing and checking
the text takes 12 to 14 µs; finding it here and reading the numbers takes 6 to 8.
"""

from __future__ import annotations

import re
from itertools import chain
from math import prod
from struct import Struct
from struct import error as StructError
from typing import Final

import numpy as np
import orjson

from trident.core.http.v2_json import MAX_DEPTH
from trident.core.http.v2_response import ResponsePlan
from trident.core.inference.request import InferenceRequest, PackedInputs
from trident.core.inference.response import RegionInput, RegionReference, RegionRequest
from trident.core.inference.tensors import NUMBER_CODES, Buffer, Shape, TensorLayout, layout_of, wire_bytes
from trident.core.memo import AdaptiveMemo

# The parser for many numbers reads larger texts.
_MAX_SIZE: Final = 2048
# A quotation mark inside a string has a backslash before it, and texts with backslashes are not remembered: so this
# finds only members of that name.
_DATA: Final = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\[([-+.0-9eE, \t\r\n\[\]]*)\]')


class _Template:
    """A text, and the packing of its numbers into the bytes of its tensors."""

    __slots__ = ("_counts", "_pack", "known")

    def __init__(self, known: KnownRequest) -> None:
        self.known = known
        self._counts = [prod(shape) for _, _, shape, _, _ in known.layout.entries]
        codes = [NUMBER_CODES[datatype] for _, datatype, _, _, _ in known.layout.entries]
        self._pack = Struct("<" + "".join(f"{n}{c}" for n, c in zip(self._counts, codes, strict=True))).pack

    def read(self, lists: list[bytes]) -> bytes | None:
        """The bytes; None unless the lists hold the right count of fitting numbers. The full parser finds the error."""
        try:
            values = orjson.loads(b"[[%b]]" % b"],[".join(map(_flat, lists)))
            if [len(numbers) for numbers in values] != self._counts:
                return None
            return self._pack(*chain.from_iterable(values))
        except (ValueError, OverflowError, StructError):
            return None


def _flat(numbers: bytes) -> bytes:
    """The elements of a list, without inner brackets: nesting need not agree with the shape. Raises ValueError."""
    if b"[" not in numbers:
        return numbers
    if numbers.count(b"[") >= MAX_DEPTH - 1:
        raise ValueError("it may be nested too deep")
    orjson.loads(b"[%b]" % numbers)  # checks the brackets
    return numbers.translate(None, b"[]")


class JsonTemplates:
    """Templates of texts up to 2 KB. Any thread."""

    def __init__(self) -> None:
        self._known: AdaptiveMemo[_Template] = AdaptiveMemo()

    def recall(
        self, model: str, version: int, text: bytes, max_input_size: int
    ) -> tuple[InferenceRequest, ResponsePlan] | None:
        """The request in `text`; None if no template fits, its numbers are wrong, or its inputs have more than
        `max_input_size` bytes."""
        if len(text) > _MAX_SIZE:
            return None
        text, request_id = without_id(text)
        parts = _DATA.split(text)
        template = self._known.get((model, *parts[::2]))
        if template is None or template.known.layout.size > max_input_size:
            return None
        self._known.hits += 1
        content = template.read(parts[1::2])
        return None if content is None else template.known.again(version, request_id, memoryview(content))

    def remember(self, text: bytes, request: InferenceRequest, plan: ResponsePlan) -> None:
        """Learn a decoded request, if all its inputs are lists of numbers."""
        if len(text) > _MAX_SIZE or b"\\" in text or not self._known.is_learning():
            return
        inputs = request.inputs
        whole = text
        text, request_id = without_id(whole)
        if not is_id_of(whole, request_id, request.id):
            return
        parts = _DATA.split(text)
        # One list for each input, and no other member of that name.
        if not inputs or not len(parts) // 2 == len(inputs) == text.count(b'"data"'):
            return
        described: list[tuple[str, str, Shape, int]] = []
        contents: list[Buffer] = []
        for tensor in inputs:
            if tensor.datatype not in NUMBER_CODES or type(tensor.data) is not np.ndarray:
                return
            contents.append(wire_bytes(tensor.data))
            described.append((tensor.name, tensor.datatype, tensor.shape, len(contents[-1])))
        template = _Template(KnownRequest(request, layout_of(described), plan))
        if template.read(parts[1::2]) != b"".join(contents):
            return
        self._known[request.model_name, *parts[::2]] = template


# A client that sends binary tensors sends the same JSON before them again and again. Parsing it takes 12 µs for a
# small request, finding it here 3. Source: docs/spec/http.md section 4 (`id`).


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
        self._known: AdaptiveMemo[KnownRequest] = AdaptiveMemo()

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


# Clients use the same places again and again, so the whole text is the same. Parsing it takes 15 µs, finding it here
# 5. Source: docs/spec/shared-memory.md section 6.


class _KnownText:
    """A decoded request without its id. Any thread."""

    __slots__ = ("_inputs", "_request", "plan")

    def __init__(self, request: RegionRequest, inputs: list[RegionInput], plan: ResponsePlan) -> None:
        self.plan = plan
        self._inputs: list[tuple[str, str, Shape, RegionReference]] = [
            (tensor.name, tensor.datatype, tensor.shape, tensor.reference) for tensor in inputs
        ]
        # A copy, because parameters are added to a request on its way.
        plain = request.with_inputs([], model_version=request.model_version, id="")
        self._request = RegionRequest.of(plain, request.output_regions)

    def again(self, version: int, request_id: str) -> RegionRequest:
        made = self._request.with_inputs(
            [RegionInput(*each) for each in self._inputs], model_version=version, id=request_id
        )
        return RegionRequest.of(made, self._request.output_regions)


class RegionTexts:
    """Texts up to 2 KB. Any thread."""

    def __init__(self) -> None:
        self._known: AdaptiveMemo[_KnownText] = AdaptiveMemo()

    def recall(self, model: str, version: int, text: bytes) -> tuple[InferenceRequest, ResponsePlan] | None:
        """The request in `text`; None if it is unknown."""
        if not self._known or len(text) > _MAX_SIZE:
            return None
        text, request_id = without_id(text)
        known = self._known.get((model, text))
        if known is None:
            return None
        self._known.hits += 1
        return known.again(version, request_id), known.plan

    def remember(self, text: bytes, request: RegionRequest, plan: ResponsePlan) -> None:
        """Learn a decoded request, if all its inputs lie in shared memory."""
        inputs = [tensor for tensor in request.inputs if isinstance(tensor, RegionInput)]
        if len(text) > _MAX_SIZE or not len(inputs) == len(request.inputs) > 0 or not self._known.is_learning():
            return
        whole = text
        text, request_id = without_id(whole)
        if is_id_of(whole, request_id, request.id):
            self._known[request.model_name, text] = _KnownText(request, inputs, plan)
