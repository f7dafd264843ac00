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

from core.frontend.known_texts import KnownTexts
from core.http.v2.json_tensors import MAX_DEPTH
from core.http.v2.known_requests import KnownRequest, is_id_of, without_id
from core.http.v2.response_codec import ResponsePlan
from core.inference.layout import layout_of
from core.inference.request import InferenceRequest
from core.inference.tensors import NUMBER_CODES, Buffer, Shape, wire_bytes

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
        self._known: KnownTexts[_Template] = KnownTexts()

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
