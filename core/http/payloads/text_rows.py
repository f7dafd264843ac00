"""The rows of text formats in the slices of a long body."""

from __future__ import annotations

import json
import re

from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest
from core.http.payloads.error_location import csv_row_name, instance_name, line_name
from core.http.payloads.json.text import parse_json

_FRACTION = re.compile(rb"[0-9][.eE]")
_BLANK = re.compile(r"[\s]*")
_BREAK = b"\n"


class _NumberRows:
    """Rows of a model. Of integers, those that are written as fractions decide how all others are read."""

    def __init__(self, spec: ModelSpec) -> None:
        self._has_integers = any(expected.datatype.kind in "iu" for expected in spec.inputs.values())

    def is_plain(self, text: bytes) -> bool:
        return not self._has_integers or _FRACTION.search(text) is None


class JsonRows(_NumberRows):
    """Instances: a slice is an array of them."""

    def name(self, index: int) -> str:
        return instance_name(index)

    def count(self, text: bytes) -> int:
        try:
            return len(parse_json(text))
        except InvalidRequest:
            return 0

    def first(self, text: bytes) -> bytes:
        try:
            decoded = text.decode("utf-8", "surrogatepass")
            start = _BLANK.match(decoded, 1)
            _, end = json.JSONDecoder().raw_decode(decoded, start.end() if start else 1)
        except (ValueError, RecursionError):
            return b""
        return decoded[:end].encode("utf-8", "surrogatepass") + b"]"

    def join(self, texts: list[bytes]) -> bytes:
        return b"[" + b",".join([text[1:-1] for text in texts]) + b"]"


class LineRows(_NumberRows):
    """JSON Lines: a slice is some of them."""

    def name(self, index: int) -> str:
        return line_name(index)

    def count(self, text: bytes) -> int:
        return text.count(_BREAK) + bool(text[text.rfind(_BREAK) + 1 :].strip())

    def first(self, text: bytes) -> bytes:
        return text[: text.find(_BREAK) + 1] or text

    def join(self, texts: list[bytes]) -> bytes:
        return b"".join([text if text.endswith(_BREAK) else text + _BREAK for text in texts[:-1]]) + texts[-1]


class CsvRows(LineRows):
    """CSV: a slice is some of its lines, which are rows unless there are quotes, or other line breaks."""

    def name(self, index: int) -> str:
        return csv_row_name(index)

    def count(self, text: bytes) -> int:
        return text.count(_BREAK) + (not text.endswith(_BREAK))

    def is_plain(self, text: bytes) -> bool:
        return b'"' not in text and b"\r" not in text.replace(b"\r\n", b"") and super().is_plain(text)
