"""The JSON of responses that are alike but for the id and the numbers, written once."""

from __future__ import annotations

from math import prod
from struct import Struct

import orjson

from core.http.v2.response_plan import ResponsePlan
from core.inference.layout import TensorLayout
from core.inference.response import InferenceResponse
from core.inference.tensors import NUMBER_CODES, Buffer

_EMPTY = b'"data":[]'
_FILLED = b'"data":'
# More are written faster by numpy.
_MOST_NUMBERS = 1024


class ResponseText:
    """The text around the numbers of the outputs that go as JSON, and where in the content those lie. Any thread.

    `write` gives the parts of a body: the text, and the bytes of the outputs that go so.
    """

    __slots__ = ("_binary", "_numbers", "_segments")

    def __init__(self, text: bytes, numbers: list[tuple[Struct, int]], binary: list[tuple[int, int]]) -> None:
        """`text` has an empty list for each of `numbers`, which begin at so many bytes."""
        segments = text.split(_EMPTY)
        self._segments = [segment + _FILLED for segment in segments[:-1]] + segments[-1:]
        self._numbers = [(struct.unpack_from, start) for struct, start in numbers]
        self._binary = binary

    @staticmethod
    def of(response: InferenceResponse, layout: TensorLayout, plan: ResponsePlan) -> ResponseText | None:
        """The text of responses like this one, whose outputs lie in `layout`; None if there is more to write."""
        numbers: list[tuple[Struct, int]] = []
        binary: list[tuple[int, int]] = []
        entries: list[dict[str, object]] = []
        for name, datatype, shape, start, end in layout.entries:
            as_bytes, classes = plan.form_of(name)
            entry: dict[str, object] = {"name": name, "datatype": datatype, "shape": shape}
            count = prod(shape)
            if classes or (not as_bytes and (datatype not in NUMBER_CODES or count > _MOST_NUMBERS)):
                return None
            if as_bytes:
                entry["parameters"] = {"binary_data_size": end - start}
                binary.append((start, end))
            else:
                entry["data"] = []
                numbers.append((Struct(f"<{count}{NUMBER_CODES[datatype]}"), start))
            entries.append(entry)
        document = {
            "model_name": response.model_name,
            "model_version": str(response.model_version),
            "outputs": entries,
        }
        return ResponseText(orjson.dumps(document), numbers, _together(binary))

    def write(self, request_id: str, content: memoryview) -> list[Buffer] | None:
        """None where a number is none that JSON has, or the id is no text that it has."""
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


def _together(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in as few runs as there are; those without any are none."""
    joined: list[tuple[int, int]] = []
    for start, end in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        elif start < end:
            joined.append((start, end))
    return joined
