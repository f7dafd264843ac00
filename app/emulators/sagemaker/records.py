"""The records of a batch transform job: how an object is split, what is selected of a record, and what is joined to it.

Source: docs/spec/sagemaker.md section A6.
"""

from __future__ import annotations

import csv
import io
import re
import struct
from collections.abc import Callable
from typing import Any

import orjson

from trident.core.errors import ConfigInvalid

OUTPUT, INPUT = "SageMakerOutput", "SageMakerInput"
_CSV, _JSON, _LINES = "text/csv", "application/json", "application/jsonlines"


def split(content: bytes, split_type: str) -> list[bytes]:
    """The records of an object, without their frames and line breaks. Raises ConfigInvalid for broken frames."""
    if split_type == "Line":
        return [line for line in (each.rstrip(b"\r") for each in content.split(b"\n")) if line]
    if split_type in _FRAMES:
        try:
            return _FRAMES[split_type](content)
        except struct.error:
            raise ConfigInvalid(f"the object is not in the format {split_type}") from None
    return [content]


def _recordio(content: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(content):
        magic, length = struct.unpack_from("<II", content, at)
        length &= (1 << 29) - 1
        if magic != 0xCED7230A or at + 8 + length > len(content):
            raise struct.error
        found.append(content[at + 8 : at + 8 + length])
        at += 8 + length + -length % 4
    return found


def _tfrecord(content: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        if at + 16 + length > len(content):
            raise struct.error
        found.append(content[at + 12 : at + 12 + length])
        at += 16 + length
    return found


_FRAMES: dict[str, Callable[[bytes], list[bytes]]] = {"RecordIO": _recordio, "TFRecord": _tfrecord}

_STEP = re.compile(r"""\.(?P<name>[A-Za-z_]\w*)|\[(?P<inside>'[^']*'(?:\s*,\s*'[^']*')*|[-0-9:,\s]+)\]""")


class JsonPath:
    """A path in the platform's part of JSONPath: `.name`, `['a','b']`, `[0,2]` and `[1:3]` behind `$`."""

    def __init__(self, text: str) -> None:
        """Raises ConfigInvalid for another expression."""
        self.text = text or "$"
        self._steps: list[list[Any]] = []
        at = 1
        while self.text[0] == "$" and (found := _STEP.match(self.text, at)):
            self._steps.append([found["name"]] if found["name"] else [_part(each) for each in _inner(found["inside"])])
            at = found.end()
        if self.text[0] != "$" or at != len(self.text):
            raise ConfigInvalid(
                f"'{text}' is not a path that the platform takes",
                hint="it knows $, .name, ['name', …], [number, …] and [from:to], but no *, .., or conditions",
            )

    def __bool__(self) -> bool:
        return bool(self._steps)

    def select(self, value: Any) -> Any:
        """The selected part; several names give an object, several places a list. Raises ConfigInvalid for none."""
        for parts in self._steps:
            value = self._step(value, parts)
        return value

    def _step(self, value: Any, parts: list[Any]) -> Any:
        try:
            if isinstance(parts[0], str):
                return value[parts[0]] if len(parts) == 1 else {name: value[name] for name in parts}
            if not isinstance(value, list):
                raise TypeError
            if len(parts) == 1:
                return value[parts[0]]
            return [each for part in parts for each in (value[part] if isinstance(part, slice) else [value[part]])]
        except (KeyError, IndexError, TypeError):
            raise ConfigInvalid(f"a record has nothing at {self.text}") from None


def _inner(text: str) -> list[str]:
    return [each.strip() for each in (re.findall(r"'[^']*'", text) if text.startswith("'") else text.split(","))]


def _part(text: str) -> str | int | slice:
    if text.startswith("'"):
        return text[1:-1]
    try:
        if ":" in text:
            low, high = text.split(":")
            return slice(int(low) if low else None, int(high) if high else None)
        return int(text)
    except ValueError:
        raise ConfigInvalid(f"'[{text}]' is not an index of a path", hint="such as [0], [0,2] or [1:]") from None


class Processing:
    """What happens to a record before it is sent, and to its answer."""

    def __init__(self, given: dict[str, Any], content_type: str, accept: str) -> None:
        """`given` is the API's DataProcessing. Raises ConfigInvalid for types that it cannot have."""
        self._before, self._after = JsonPath(given.get("InputFilter", "")), JsonPath(given.get("OutputFilter", ""))
        self._joins = given.get("JoinSource", "None") == "Input"
        self._type, self._accept = (each.partition(";")[0].strip() for each in (content_type, accept or content_type))
        known = {_CSV: _CSV, _JSON: _JSON, _LINES: _JSON}
        if self.is_used and known.get(self._type, "a") != known.get(self._accept, "b"):
            raise ConfigInvalid(
                f"records of {self._type} and answers of {self._accept} cannot be filtered or joined",
                hint=f"both are {_CSV}, or both JSON",
            )

    @property
    def is_used(self) -> bool:
        return bool(self._before) or bool(self._after) or self._joins

    def sent(self, record: bytes) -> bytes:
        """What the container gets of `record`."""
        return self._written(self._before.select(self._read(record))) if self._before else record

    def kept(self, record: bytes, answer: bytes) -> bytes:
        """What the output has for `record`. Raises ConfigInvalid."""
        if not (self._joins or self._after):
            return answer
        found = self._read(answer)
        if self._joins:
            whole = self._read(record)
            if self._type == _CSV:
                found = [*whole, *found]
            elif isinstance(whole, dict):
                found = {**whole, OUTPUT: found}
            else:
                found = {INPUT: whole, OUTPUT: found}
        return self._written(self._after.select(found))

    def _read(self, text: bytes) -> Any:
        try:
            if self._type == _CSV:
                return next(csv.reader([text.decode()]), [])
            return orjson.loads(text)
        except (ValueError, csv.Error) as error:
            raise ConfigInvalid(f"a record is not {self._type}: {error}") from None

    def _written(self, value: Any) -> bytes:
        if self._type != _CSV:
            return orjson.dumps(value)
        row = io.StringIO()
        csv.writer(row, lineterminator="").writerow(value if isinstance(value, list) else [value])
        return row.getvalue().encode()
