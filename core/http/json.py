"""The parser of large JSON documents, one for each thread, where simdjson is installed.

It has no wheels for some Pythons. There orjson reads large documents too: the answers are the same and take longer.
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

from trident.core.inference.tensors import Buffer

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


# Source: docs/spec/http.md sections 1 and 5.


def write_lenient(value: Any) -> bytes:
    """Compact JSON with the bare words NaN and Infinity, and with strings that are not UTF-8 byte for byte, as in
    Triton."""
    text = json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogateescape")


def _plain(value: np.ndarray[Any, Any] | np.generic) -> Any:
    return value.tolist()
