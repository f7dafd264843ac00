"""Bodies: received and inflated; and their JSON: the parser of large documents, the lenient writer.

Source: docs/spec/http.md sections 1 (texts), 6 "Compression", 7 (limit) and 8; docs/architecture.md section 3 points 6
and 11.
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import re
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, TypeVar

import numpy as np
import orjson

from trident.core.errors import InvalidRequest
from trident.core.frontend.compression import EITHER_CONTAINER, inflate
from trident.core.http.errors import BodyTooLarge, BrokenCompression, UnsupportedEncoding
from trident.core.http.reply import Environ
from trident.core.inference.tensors import Array, Buffer

MAX_LENGTH: Final = 2**31 - 1
"""The bytes that a body may have where nothing else limits it."""
IDENTITY: Final = "identity"
_ENCODINGS: Final = (IDENTITY, "deflate", "gzip")


def decompress(body: Buffer, encoding: str, limit: int) -> Buffer:
    """The decompressed body, at most `limit` bytes; no more than that is ever inflated.

    The body itself tells which of the two containers it has, as in Triton. Raises UnsupportedEncoding,
    BrokenCompression, BodyTooLarge, and InvalidRequest for an empty body.
    """
    name = encoding.strip().lower()
    if name in (IDENTITY, ""):
        return body
    if name not in _ENCODINGS:
        raise UnsupportedEncoding
    if not body:
        raise InvalidRequest("nothing to be decompressed")
    try:
        content = inflate(body, EITHER_CONTAINER, limit)
    except ValueError as error:
        raise BrokenCompression(error) from error
    if content is None:
        raise BodyTooLarge(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    return content


@lru_cache(maxsize=512)
def choose(accepted: str | None, supported: tuple[str, ...]) -> str | None:
    """The member of `supported` that a header such as Accept prefers; None if it accepts none of them.

    The highest quality wins, then the first in the header, then the first in `supported`. The quality of a type is that
    of the closest range that matches it. A missing header accepts anything; items that are malformed are ignored.
    """
    given: dict[str, tuple[float, int]] = {}
    for position, item in enumerate((accepted or "*/*").split(",")):
        name, _, parameters = item.partition(";")
        given.setdefault(name.strip().lower(), (_quality(parameters), -position))
    best, chosen = (0.0, -len(accepted or "*/*")), None
    for each in supported:
        # Java's HttpURLConnection sends a mere `*` unless it is told otherwise.
        ranges = (each, each.partition("/")[0] + "/*", "*/*", "*")
        rank = next((given[name] for name in ranges if name in given), best)
        if rank[0] > 0 and rank > best:
            best, chosen = rank, each
    return chosen


def _quality(parameters: str) -> float:
    """The value of `q`: 1 without it, 0 if it is not a number from 0 to 1."""
    for each in parameters.split(";"):
        name, _, text = each.partition("=")
        if name.strip().lower() == "q":
            try:
                return quality if (quality := float(text)) <= 1 else 0.0
            except ValueError:
                return 0.0
    return 1.0


def choose_encoding(accepted: str) -> str:
    """The encoding that an Accept-Encoding header prefers, of identity, deflate and gzip."""
    return choose(accepted, _ENCODINGS) or IDENTITY


_RAISE_LIMIT = "Use --http-max-input-size to increase the limit."


def read_body(environ: Environ, limit: int, cure: str = _RAISE_LIMIT) -> bytes:
    """The whole body. Raises BodyTooLarge, whose text ends with `cure`, for more than `limit` bytes."""
    announced = environ.get("CONTENT_LENGTH") or ""
    if announced.isdigit() and len(announced) < 20 and int(announced) > limit:
        raise too_large(announced, limit, cure)
    content = read_input(environ, limit + 1)
    if len(content) > limit:
        raise too_large(f"more than {limit}", limit, cure)
    return content


def read_input(environ: Environ, most: int = -1) -> bytes:
    """At most `most` bytes of the body in `wsgi.input`; -1: all of it. A server that does not end the input at the end
    of the body announces its length."""
    if "wsgi.input_terminated" not in environ:
        announced = environ.get("CONTENT_LENGTH") or ""
        length = int(announced[:19]) if announced.isdecimal() else 0
        most = length if most < 0 else min(most, length)
    content: bytes = environ["wsgi.input"].read(most)
    return content


def read_object(environ: Environ, limit: int, cure: str = _RAISE_LIMIT, *, may_be_empty: bool = True) -> dict[str, Any]:
    """The JSON object in the body, {} for an empty body if that may be. Raises InvalidRequest with Triton's texts."""
    content = read_body(environ, limit, cure)
    if not content and may_be_empty:
        return {}
    document = parse_json(content)
    if not isinstance(document, dict):
        raise InvalidRequest("attempt to access JSON non-object as object")
    return document


def too_large(size: str, limit: int, cure: str = _RAISE_LIMIT) -> BodyTooLarge:
    return BodyTooLarge(
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. {cure}"
    )


def body_too_large(size: str, limit: int) -> BodyTooLarge:
    """As `too_large`, for a body that need not be JSON."""
    return BodyTooLarge(
        f"the body of {size} bytes exceeds the maximum allowed input size of {limit} bytes. {_RAISE_LIMIT}"
    )


def raw_too_large(size: int, limit: int) -> BodyTooLarge:
    """As `too_large`, for a body that is one tensor."""
    return BodyTooLarge(
        f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of {limit} bytes. "
        f"{_RAISE_LIMIT}"
    )


class BodyInput(io.RawIOBase):
    """`wsgi.input` over a buffer, which is copied only as it is read."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        part = self._body[self._at : self._at + len(view)]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)

    def readall(self) -> bytes:
        rest = bytes(self._body[self._at :])
        self._at = len(self._body)
        return rest


# --- JSON. simdjson has no wheels for some Pythons: there orjson reads large documents too, with the same results, but
# slower. Threads share the parsers that are free.

log = logging.getLogger("trident.http")

simdjson: Any = None
try:
    simdjson = import_module("simdjson")
except ImportError:
    log.info("pysimdjson is not installed: orjson reads large JSON requests, which takes several times as long")

T = TypeVar("T")

# A parser keeps up to ten times the largest document it has seen, so one that has seen a larger one is not reused.
_LARGEST_KEPT = 8 << 20
_MOST_KEPT = 4
_parsers: list[Any] = []


def parse(text: Buffer, read: Callable[[Any], T]) -> T:
    """The result of `read` for the parsed document. It must not refer to the document, because the parser is reused.

    Fresh memory for a new parser's tape would cost a quarter of the time. Raises ValueError or RuntimeError for text
    that is not JSON and for all text without simdjson, and what `read` raises.
    """
    if simdjson is None:
        raise ValueError("simdjson is not installed")
    # A parser whose document is still referred to after an error must not be used again: it is not given back.
    try:
        parser = _parsers.pop()
    except IndexError:
        parser = simdjson.Parser()
    result = read(parser.parse(text))
    if len(text) <= _LARGEST_KEPT and len(_parsers) < _MOST_KEPT:
        _parsers.append(parser)
    return result


MAX_DEPTH: Final = 100
NESTED_TOO_DEEP: Final = f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"
_PREFIX: Final = "failed to parse the request JSON buffer: "
_WRITTEN: Final = "json.dumps writes JSON, array.tolist() makes a list of an array, and curl sends a file with -d @FILE"
_LONGEST_INTEGER: Final = 20
# A whole string, or an unfinished one to the end, so that no match starts inside a string; or the word itself.
_WORD: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|-?NaN|Inf(?:inity)?', re.DOTALL)
# As `json` spells them.
_SPELLED: Final = {b"Inf": b"Infinity", b"-NaN": b"NaN"}


def parse_json(text: Buffer, location: str = "", pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of `text`, as orjson reads it. As in Triton, the words NaN, Inf and Infinity are numbers, too, and
    a byte order mark is ignored.

    A number beyond a double, bytes that are not UTF-8, and half of a surrogate pair are refused. `pairs` makes the
    value of an object from its members, with those that are given twice. Raises InvalidRequest with the reason and the
    offset; its text begins with `location` if that is given.
    """
    prefix = f"{location}: " if location else ""
    if bytes(text[:3]) == codecs.BOM_UTF8:
        text = text[3:]
    try:
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError:
            raw = bytes(text)
            if b"NaN" not in raw and b"Inf" not in raw:
                raise
            # orjson judges everything but the special values, so that none of them changes how the rest is parsed: it
            # reads a number of the same length.
            orjson.loads(_WORD.sub(lambda found: found[0] if found[0][:1] == b'"' else b"0".ljust(len(found[0])), raw))
            spelled = _WORD.sub(lambda found: _SPELLED.get(found[0], found[0]), raw)
            return json.loads(spelled, parse_int=_integer, object_pairs_hook=pairs)
        return document if pairs is None else json.loads(bytes(text), parse_int=_integer, object_pairs_hook=pairs)
    except RecursionError:
        raise InvalidRequest(prefix + NESTED_TOO_DEEP) from None
    except json.JSONDecodeError as error:  # orjson's is one, too
        reason, offset = error.msg.partition(":")[0], error.pos
    # orjson allocates enough for any valid document of that length; only unclosed brackets need more.
    if "depth limit" in reason or "allocate memory" in reason:
        raise InvalidRequest(prefix + NESTED_TOO_DEEP)
    if "UTF-8" in reason:
        try:
            bytes(text).decode()
        except UnicodeDecodeError as error:
            reason, offset = "The text is not UTF-8", error.start
    raise InvalidRequest(f"{prefix}{_PREFIX}{reason} at {offset}", hint=_WRITTEN)


def _integer(digits: str) -> int | float:
    """An integer as orjson reads it: a double beyond 64 bits."""
    number = int(digits) if len(digits) <= _LONGEST_INTEGER else 2**64
    return number if -(2**63) <= number < 2**64 else float(digits)


# The names that simdjson has for the three wide number types, by numpy's kind, and the numpy type of its buffers.
WIDE = {"i": ("i", np.dtype(np.int64)), "u": ("u", np.dtype(np.uint64)), "f": ("d", np.dtype(np.float64))}


def flat_numbers(content: Any, kind: str) -> Array:
    """All numbers of a simdjson array as the wide type of their kind. Raises TypeError or ValueError for others."""
    letter, dtype = WIDE[kind]
    return np.frombuffer(content.as_buffer(of_type=letter), dtype)


def unique_keys(value: Any) -> list[str]:
    """The keys of a simdjson object, for subscripts: `items` would turn every number into a Python object.

    Raises ValueError for keys with which the meaning would depend on the parser.
    """
    keys = list(value.keys())
    if len(set(keys)) != len(keys):
        raise ValueError("a key is given twice: simdjson takes the first value, orjson the last")
    if any("\0" in key for key in keys):
        raise ValueError("a subscript ends at NUL: it would find another key's value")
    return keys


def plain_value(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


def write_lenient(value: Any) -> bytes:
    """Compact JSON with the bare words NaN and Infinity, and with strings that are not UTF-8 byte for byte, as in
    Triton. Source: docs/spec/http.md sections 1 and 5."""
    text = json.dumps(value, default=lambda array: array.tolist(), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogateescape")


_BLANK = re.compile(rb"\n[ \t\r]*\n").search


def without_blank_lines(text: bytes) -> bytes:
    """`text` without blank lines, which people write between and after rows."""
    if _BLANK(text) is None and not text[:1].isspace() and not text[-2:].isspace():
        return text
    return b"\n".join([line for line in text.split(b"\n") if line and not line.isspace()])
