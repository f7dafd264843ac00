"""The parser of large JSON documents, one for each thread, where simdjson is installed, and the lenient writer.

simdjson has no wheels for some Pythons. There orjson reads large documents too, with the same results, but slower.
Source: docs/architecture.md section 3 point 6.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from trident.core.inference.tensors import Array, Buffer

log = logging.getLogger("trident.http")

simdjson: Any = None
try:
    simdjson = import_module("simdjson")
except ImportError:
    log.info("pysimdjson is not installed: orjson reads large JSON requests, which takes several times as long")

T = TypeVar("T")

# A parser keeps up to ten times the largest document it has seen, so one that has seen a larger one is not kept.
_LARGEST_KEPT = 8 << 20
_local = threading.local()


def parse(text: Buffer, read: Callable[[Any], T]) -> T:
    """The result of `read` for the parsed document, of which nothing may be left in it: the parser is used again.

    Fresh memory for a new parser's tape would cost a quarter of the time. Raises ValueError or RuntimeError for text
    that is not JSON and for all text without simdjson, and what `read` raises.
    """
    if simdjson is None:
        raise ValueError("simdjson is not installed")
    parser = getattr(_local, "parser", None) or simdjson.Parser()
    # Taken away meanwhile: a parser whose document is still referred to after an error must not be used again.
    _local.parser = None
    result = read(parser.parse(text))
    if len(text) <= _LARGEST_KEPT:
        _local.parser = parser
    return result


# The names that simdjson has for the three wide number types, by numpy's kind, and the numpy type of its buffers.
WIDE = {"i": ("i", np.dtype(np.int64)), "u": ("u", np.dtype(np.uint64)), "f": ("d", np.dtype(np.float64))}


def flat_numbers(content: Any, kind: str) -> Array:
    """All numbers of an array of simdjson as the wide type of their kind. Raises TypeError or ValueError for others."""
    letter, dtype = WIDE[kind]
    return np.frombuffer(content.as_buffer(of_type=letter), dtype)


def unique_keys(value: Any) -> list[str]:
    """The keys of an object of simdjson, for subscripts: `items` would turn every number into a Python object.

    Raises ValueError for keys with which the meaning would depend on the parser.
    """
    keys = list(value.keys())
    if len(set(keys)) != len(keys):
        raise ValueError("a key is given twice: simdjson takes the first value, orjson the last")
    if any("\0" in key for key in keys):
        raise ValueError("a subscript ends at NUL: it would find another key's value")
    return keys


def plain_value(value: Any) -> Any:
    """A value of simdjson as Python values."""
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


def write_lenient(value: Any) -> bytes:
    """Compact JSON with the bare words NaN and Infinity, and with strings that are not UTF-8 byte for byte, as in
    Triton. Source: docs/spec/http.md sections 1 and 5."""
    text = json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogateescape")


def _plain(value: np.ndarray[Any, Any] | np.generic) -> Any:
    return value.tolist()
