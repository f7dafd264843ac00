"""Parses a nested JSON array of numbers directly into a numpy array.

This takes a quarter of the time of a Python list (1,000 rows of 30: 1 ms). The parser does not check that all rows have
the same length; this module does, list by list instead of element by element. For any text that is not a rectangular
array of plain numbers it returns None, and the decoder of Python values then finds and names the error.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import orjson

from core.config.golden.tensor import is_floating
from core.http.json_parser import parse, simdjson
from core.http.v2.json_document import WIDE
from core.inference.tensors import Array, Buffer, Datatype

_OPENING = ord("[")


def wide_kind(datatype: Datatype) -> str | None:
    """The kind of the 64-bit type that the datatype's numbers are parsed as: f, i or u; None if it is not numeric."""
    if is_floating(datatype):
        return "f"
    return datatype.kind if datatype.kind in WIDE else None


def parse_number_array(text: Buffer, member: str | None, kind: str) -> tuple[Array, dict[str, Any]] | None:
    """The array under `member` of the document (None: the document itself), and the other members as Python values.

    The array has the wide type of `kind`. None for anything except rectangular nested lists of numbers of that kind.
    """
    try:
        return parse(text, lambda document: _numbers(document, member, kind, np.frombuffer(text, np.uint8)))
    except (ValueError, RuntimeError, TypeError, KeyError):
        return None


def _numbers(document: Any, member: str | None, kind: str, text: Array) -> tuple[Array, dict[str, Any]] | None:
    others: dict[str, Any] = {}
    content: Any = document
    if member is not None:
        keys = list(document.keys())
        if len(set(keys)) != len(keys) or any("\0" in key for key in keys):
            # This parser takes the first of two equal keys and orjson the last, and a subscript here ends at NUL. The
            # meaning of a request must not depend on the parser.
            return None
        content = document[member]
        others = {key: _plain(document[key]) for key in keys if key != member}
    if not isinstance(content, simdjson.Array) or not len(content):
        return None
    flat = _flat(content, kind)
    shape, lists = _outline(content)
    # The buffer is flat: only the number of brackets shows a list among the numbers of a row.
    expected = lists + orjson.dumps(others).count(b"[")
    if prod(shape) != flat.size or np.count_nonzero(text == _OPENING) != expected:
        return None
    return flat.reshape(shape), others


def _flat(content: Any, kind: str) -> Array:
    letter, dtype = WIDE[kind]
    return np.frombuffer(content.as_buffer(of_type=letter), dtype)


def _outline(content: Any) -> tuple[tuple[int, ...], int]:
    """The shape of nested lists, and the number of lists. Raises ValueError if lengths differ."""
    shape: list[int] = []
    lists, total, first = 1, 0, content
    while True:
        (length,) = set(map(len, _lists(content, len(shape))))
        shape.append(length)
        total += lists
        lists *= length
        if not length or not isinstance(first[0], simdjson.Array):
            return tuple(shape), total
        first = first[0]


def _lists(content: Any, depth: int) -> Iterable[Any]:
    """The lists at a depth, one at a time: keeping all costs more than walking down to them again."""
    return chain.from_iterable(_lists(content, depth - 1)) if depth else (content,)


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value
