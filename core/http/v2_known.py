"""Texts of JSON that are remembered, because clients repeat them: of requests and of their responses.

    KnownBodies    JSON bodies, by their text without the id and the numbers
    KnownHeaders   the JSON before binary tensors, by its text without the id
    ResponsePlan   the form of the response that its request asks for, with
      ResponseText   the JSON around the id and the numbers of its responses

For two inputs of 16 integers, parsing and checking a body takes 12 to 14 µs; finding it here and reading the numbers
takes 6 to 8. A header takes 12 µs and 3. A small request whose tensors lie in shared memory takes a fifth less of the
server's CPU time.
Source: docs/spec/http.md section 4 (`id`, `outputs[].parameters`, `binary_data_output`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from struct import Struct
from struct import error as StructError
from typing import Final

import numpy as np
import orjson

from trident.core.http.v2_json import MAX_DEPTH
from trident.core.inference.request import InferenceRequest, InputTensor, PackedInputs
from trident.core.inference.response import InferenceResponse, RegionInput, RegionReference, RegionRequest
from trident.core.inference.tensors import NUMBER_CODES, Buffer, Shape, TensorLayout, layout_of, wire_bytes
from trident.core.memo import AdaptiveMemo, Memo

# Of a body or a header. The parser for many numbers reads larger texts.
_MAX_SIZE: Final = 2048
# A quotation mark inside a string has a backslash before it, and texts with backslashes are not remembered: so these
# find only members of that name.
_DATA: Final = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\[([-+.0-9eE, \t\r\n\[\]]*)\]')
_ID: Final = re.compile(rb'"id"[ \t\r\n]*:[ \t\r\n]*"([^"\\\x00-\x1f]*)"')
_EMPTY: Final = b'"data":[]'
_FILLED: Final = b'"data":'
# numpy writes more numbers faster.
_MOST_NUMBERS: Final = 1024
_MOST_TEXTS: Final = 64
_NOT_LISTED: Final = (False, 0)

Decoded = tuple[InferenceRequest, "ResponsePlan"]


class KnownBodies:
    """Bodies whose inputs are all lists of numbers, or all in shared memory. Any thread."""

    def __init__(self) -> None:
        self._known: AdaptiveMemo[_Body] = AdaptiveMemo()

    def recall(self, model: str, version: int, text: bytes, max_input_size: int) -> Decoded | None:
        """The request in `text`; None if it is unknown, its numbers are wrong, or its inputs have more than
        `max_input_size` bytes."""
        if len(text) > _MAX_SIZE:
            return None
        text, request_id = without_id(text)
        parts = _DATA.split(text)
        known = self._known.get((model, *parts[::2]))
        if known is None or known.size > max_input_size:
            return None
        self._known.hits += 1
        return known.again(version, request_id, parts[1::2])

    def remember(self, text: bytes, request: InferenceRequest, plan: ResponsePlan) -> None:
        """Learn a decoded request."""
        inputs = request.inputs
        if len(text) > _MAX_SIZE or b"\\" in text or not inputs or not self._known.is_learning():
            return
        whole = text
        text, request_id = without_id(whole)
        if not is_id_of(whole, request_id, request.id):
            return
        parts = _DATA.split(text)
        if isinstance(request, RegionRequest):
            regions = [tensor for tensor in inputs if isinstance(tensor, RegionInput)]
            if len(parts) == 1 and len(regions) == len(inputs):
                self._known[request.model_name, text] = _RegionBody(request, regions, plan)
            return
        # One list for each input, and no other member of that name.
        if not len(parts) // 2 == len(inputs) == text.count(b'"data"'):
            return
        described: list[tuple[str, str, Shape, int]] = []
        contents: list[Buffer] = []
        for tensor in inputs:
            if tensor.datatype not in NUMBER_CODES or type(tensor.data) is not np.ndarray:
                return
            contents.append(wire_bytes(tensor.data))
            described.append((tensor.name, tensor.datatype, tensor.shape, len(contents[-1])))
        body = _NumberBody(KnownRequest(request, layout_of(described), plan))
        if body.read(parts[1::2]) == b"".join(contents):
            self._known[request.model_name, *parts[::2]] = body


class _Body:
    """A known body without its id and its numbers; its inputs have `size` bytes. Any thread."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size

    def again(self, version: int, request_id: str, lists: list[bytes]) -> Decoded | None:
        """The same request for `version`, with these lists of numbers; None if they are wrong."""
        raise NotImplementedError


class _NumberBody(_Body):
    """Packs the numbers into the bytes of the tensors."""

    __slots__ = ("_counts", "_known", "_pack")

    def __init__(self, known: KnownRequest) -> None:
        super().__init__(known.layout.size)
        self._known = known
        self._counts = [prod(shape) for _, _, shape, _, _ in known.layout.entries]
        codes = [NUMBER_CODES[datatype] for _, datatype, _, _, _ in known.layout.entries]
        self._pack = Struct("<" + "".join(f"{n}{c}" for n, c in zip(self._counts, codes, strict=True))).pack

    def again(self, version: int, request_id: str, lists: list[bytes]) -> Decoded | None:
        content = self.read(lists)
        return None if content is None else self._known.again(version, request_id, memoryview(content))

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


class _RegionBody(_Body):
    """All inputs lie in shared memory, and so the whole text but the id is the same."""

    __slots__ = ("_inputs", "_plan", "_request")

    def __init__(self, request: RegionRequest, inputs: list[RegionInput], plan: ResponsePlan) -> None:
        super().__init__(0)
        self._plan = plan
        self._inputs: list[tuple[str, str, Shape, RegionReference]] = [
            (tensor.name, tensor.datatype, tensor.shape, tensor.reference) for tensor in inputs
        ]
        # A copy, because parameters are added to a request on its way.
        plain = request.with_inputs([], model_version=request.model_version, id="")
        self._request = RegionRequest.of(plain, request.output_regions)

    def again(self, version: int, request_id: str, lists: list[bytes]) -> Decoded | None:
        inputs: list[InputTensor] = [RegionInput(*each) for each in self._inputs]
        made = self._request.with_inputs(inputs, model_version=version, id=request_id)
        return RegionRequest.of(made, self._request.output_regions), self._plan


class KnownHeaders:
    """Headers of binary requests. Any thread."""

    def __init__(self) -> None:
        self._known: AdaptiveMemo[KnownRequest] = AdaptiveMemo()

    def recall(self, model: str, version: int, header: bytes, tail: memoryview) -> Decoded | None:
        """The request that `header` and the tensors in `tail` make; None if it is unknown, or its size is not."""
        text, request_id = without_id(header)
        known = self._known.get((model, text))
        if known is None or known.layout.size != len(tail):
            return None
        self._known.hits += 1
        return known.again(version, request_id, tail)

    def remember(self, header: bytes, request: InferenceRequest, plan: ResponsePlan) -> None:
        """Learn a decoded request whose inputs are all raw bytes, in the order in which they stand in the tail."""
        if len(header) > _MAX_SIZE or not self._known.is_learning():
            return
        text, request_id = without_id(header)
        if not is_id_of(header, request_id, request.id):
            return
        layout = layout_of([(t.name, t.datatype, t.shape, len(t.data)) for t in request.inputs])
        self._known[request.model_name, text] = KnownRequest(request, layout, plan)


class KnownRequest:
    """A decoded request without its id and the bytes of its tensors, whose places are `layout`. Any thread."""

    __slots__ = ("_plan", "_request", "layout")

    def __init__(self, request: InferenceRequest, layout: TensorLayout, plan: ResponsePlan) -> None:
        self.layout = layout
        self._plan = plan.keeping_texts()
        # A copy without the tensors: they are views of a body whose memory must become free.
        self._request = request.with_inputs([], model_version=request.model_version, id="")

    def again(self, version: int, request_id: str, content: memoryview) -> Decoded:
        """The same request for `version`, with its tensors in `content`, and the plan of its response."""
        inputs = PackedInputs(self.layout, content)
        return self._request.with_inputs(inputs, model_version=version, id=request_id), self._plan


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


# The version that answered, the layout of its outputs, and whether it is an ensemble outside of sequences.
TextKey = tuple[int, TensorLayout, bool]


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """The form in which the caller of an infer request wants its response.

    `binary` is for outputs that are not listed; `outputs` maps a listed one to (binary, number of classes), where 0
    means no classification. `outputs` is None if the request listed none. `placed` are those that the engine writes
    into shared memory. `texts` are the texts of the last responses, None for one that has to be written each time; the
    plan of a single request keeps no texts.
    """

    binary: bool = False
    outputs: dict[str, tuple[bool, int]] | None = None
    placed: frozenset[str] = frozenset()
    texts: Memo[TextKey, ResponseText | None] | None = field(default=None, compare=False)

    def keeping_texts(self) -> ResponsePlan:
        """The same plan for many requests."""
        return ResponsePlan(self.binary, self.outputs, texts=Memo(_MOST_TEXTS))

    def form_of(self, name: str) -> tuple[bool, int]:
        """Whether an output is to be binary, and how many classes of it are wanted."""
        return (self.binary, 0) if self.outputs is None else self.outputs.get(name, _NOT_LISTED)


class ResponseText:
    """The JSON around the numbers of the outputs, and the places of those in the content. Any thread."""

    __slots__ = ("_binary", "_numbers", "_segments")

    def __init__(self, text: bytes, numbers: list[tuple[Struct, int]], binary: list[tuple[int, int]]) -> None:
        """`text` has an empty list for each of `numbers`, given with the offset of its first byte; `binary` are the
        first byte and the end of each run that follows the JSON."""
        segments = text.split(_EMPTY)
        self._segments = [segment + _FILLED for segment in segments[:-1]] + segments[-1:]
        self._numbers = [(struct.unpack_from, start) for struct, start in numbers]
        self._binary = binary

    @staticmethod
    def of(response: InferenceResponse, layout: TensorLayout, plan: ResponsePlan) -> ResponseText | None:
        """The text of responses like this one, whose outputs have `layout`; None if they need more than a text."""
        numbers: list[tuple[Struct, int]] = []
        binary: list[tuple[int, int]] = []
        entries: list[dict[str, object]] = []
        for name, datatype, shape, start, end in layout.entries:
            is_binary, classes = plan.form_of(name)
            entry: dict[str, object] = {"name": name, "datatype": datatype, "shape": shape}
            count = prod(shape)
            if classes or (not is_binary and (datatype not in NUMBER_CODES or count > _MOST_NUMBERS)):
                return None
            if is_binary:
                entry["parameters"] = {"binary_data_size": end - start}
                binary.append((start, end))
            else:
                entry["data"] = []
                numbers.append((Struct(f"<{count}{NUMBER_CODES[datatype]}"), start))
            entries.append(entry)
        document: dict[str, object] = {
            "model_name": response.model_name,
            "model_version": str(response.model_version),
        }
        if response.parameters:
            document["parameters"] = response.parameters
        document["outputs"] = entries
        return ResponseText(orjson.dumps(document), numbers, _joined(binary))

    def write(self, request_id: str, content: memoryview) -> list[Buffer] | None:
        """The parts of a body; None for a number or an id that JSON cannot express."""
        segments = self._segments
        if not self._numbers:
            text = segments[0]
        else:
            pieces = [segments[0]]
            for (unpack, start), segment in zip(self._numbers, segments[1:], strict=True):
                numbers = orjson.dumps(unpack(content, start))
                if b"n" in numbers:  # null: NaN, or an infinity
                    return None
                pieces += (numbers, segment)
            text = b"".join(pieces)
        if request_id:
            try:
                text = b'{"id":%b,%b' % (orjson.dumps(request_id), text[1:])
            except TypeError:  # surrogates, which stand for bytes that are not UTF-8
                return None
        return [text, *[content[start:end] for start, end in self._binary]]


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in as few runs as possible, without empty runs."""
    joined: list[tuple[int, int]] = []
    for start, end in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        elif start < end:
            joined.append((start, end))
    return joined
