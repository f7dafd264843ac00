"""An InferenceResponse to the parts of an HTTP body: JSON, then the binary tensors, never joined.

Responses to requests that differ only by their id and their tensors have the same JSON around the id and the numbers.
It is written once and kept in the plan that these requests share.
Source: docs/spec/http.md section 4 (`outputs[].parameters`, `binary_data_output`) and section 6 "Response".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from struct import Struct
from typing import Any, Final

import numpy as np
import orjson

from trident.core.config.spec import ModelSpec
from trident.core.frontend.classification import classified
from trident.core.http.json import write_lenient
from trident.core.http.long_json import ELEMENTS, LongAnswer
from trident.core.http.v2_json import json_values
from trident.core.inference.response import NO_SEQUENCE, InferenceResponse, PackedOutputs
from trident.core.inference.tensors import NUMBER_CODES, Array, Buffer, TensorLayout
from trident.core.memo import Memo

_EMPTY: Final = b'"data":[]'
_FILLED: Final = b'"data":'
# numpy writes more numbers faster.
_MOST_NUMBERS: Final = 1024
_MOST_TEXTS: Final = 64
_WORDS: Final = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}
# In a longer text the search for a word takes longer than to look at all numbers (16,384 of them: 170 and 10 µs).
_SEARCHED: Final = 4096
_NOT_LISTED: Final = (False, 0)

# The version that answered, the layout of its outputs, and whether it is an ensemble outside of sequences.
TextKey = tuple[int, TensorLayout, bool]
# The parts of a body, and the length of its JSON if binary tensors follow it, else None.
Encoded = tuple[list[Buffer], int | None]


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


def encode_response(response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec) -> Encoded:
    """The body of the response. Raises InvalidRequest for an output that cannot have the form asked for."""
    packed = response.outputs
    texts = plan.texts
    parameters = response.parameters
    if texts is not None and type(packed) is PackedOutputs and (not parameters or parameters is NO_SEQUENCE):
        key = (response.model_version, packed.layout, parameters is NO_SEQUENCE)
        try:
            text = texts[key]
        except KeyError:
            text = texts[key] = ResponseText.of(response, packed.layout, plan)
        if text is not None:
            parts = text.write(response.id, packed.content)
            if parts is not None:
                return parts, len(parts[0]) if len(parts) > 1 else None
    return _encode(response, plan, spec)


def _encode(response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec) -> Encoded:
    document: dict[str, Any] = {}
    if response.id:
        document["id"] = response.id
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    if response.parameters:
        document["parameters"] = response.parameters
    entries: list[dict[str, Any]] = []
    document["outputs"] = entries
    binary: list[Buffer] = []
    long: LongAnswer | None = None
    for output in response.outputs:
        if output.name in plan.placed:
            entries.append({"name": output.name, "datatype": output.datatype, "shape": output.shape})
            continue
        is_binary, classes = plan.form_of(output.name)
        output = classified(output, classes, spec)
        entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": output.shape}
        if is_binary:
            content = output.content()
            size = len(content)
            entry["parameters"] = {"binary_data_size": size}
            if size:
                binary.append(content)
        else:
            array = output.array
            if array.size <= ELEMENTS:
                entry["data"] = json_values(array, output.datatype)
            else:
                long = long or LongAnswer()
                entry["data"] = long.add(array.reshape(-1), partial(json_values, datatype=output.datatype))
        entries.append(entry)
    text = _write(document, long)
    return [*text, *binary], sum(map(len, text)) if binary else None


def _write(document: dict[str, Any], long: LongAnswer | None) -> list[Buffer]:
    """The text in parts, which are one if no array is long."""
    try:
        return _texts(document, long, _write_finite)
    except (TypeError, _NonFinite):
        # Strings that are not UTF-8 are written byte for byte, as Triton does.
        return _texts(document, long, write_lenient)


def _texts(document: dict[str, Any], long: LongAnswer | None, write: Callable[[Any], bytes]) -> list[Buffer]:
    return [write(document)] if long is None else list(long.texts(document, write))


class _NonFinite(Exception):
    """A tensor holds NaN or an infinity, which orjson writes as null where Triton writes the word."""


def _write_finite(value: Any) -> bytes:
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    if (len(text) > _SEARCHED or b"null" in text) and _has_non_finite(value):
        if type(value) is not np.ndarray:
            raise _NonFinite
        return _with_words(text, value)
    return text


def _with_words(text: bytes, numbers: Array) -> bytes:
    """The text of a slice, with the words of `write_lenient`, which takes ten times as long, where orjson has null."""
    words = [_WORDS[repr(number)] for number in numbers[~np.isfinite(numbers)].tolist()]
    first, *rest = text.split(b"null")
    return b"".join([first, *[word + part for word, part in zip(words, rest, strict=True)]])


def _has_non_finite(value: Any) -> bool:
    """Whether `value`, a document or a part of a tensor, has NaN or an infinity in a tensor."""
    arrays = [entry.get("data") for entry in value["outputs"]] if type(value) is dict else [value]
    return any(isinstance(a, np.ndarray) and a.dtype.kind == "f" and not np.isfinite(a).all() for a in arrays)


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in as few runs as possible, without empty runs."""
    joined: list[tuple[int, int]] = []
    for start, end in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        elif start < end:
            joined.append((start, end))
    return joined
