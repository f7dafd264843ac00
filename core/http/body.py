"""Bodies: received, inflated and compressed, and their JSON: the parser of large documents, the lenient writer, and
long arrays, read and written in parts.

Source: docs/spec/http.md sections 1 (texts), 6 "Compression", 7 (limit) and 8; docs/architecture.md section 3 points 6
and 11.
"""

from __future__ import annotations

import io
import json
import logging
import re
import secrets
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import orjson

from trident.core.errors import InvalidRequest
from trident.core.http.errors import BrokenCompression, UnsupportedEncoding
from trident.core.http.reply import Environ
from trident.core.inference.tensors import Array, Buffer

IDENTITY: Final = "identity"
# zlib takes the container of a stream from the window bits.
_CONTAINERS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_EITHER_CONTAINER: Final = 32 + zlib.MAX_WBITS
_ENCODINGS: Final = (IDENTITY, "deflate", "gzip")


def decompress(body: Buffer, encoding: str, limit: int) -> Buffer:
    """The decompressed body, at most `limit` bytes; no more than that is ever inflated.

    The body itself tells which of the two containers it has, as in Triton. Raises UnsupportedEncoding,
    BrokenCompression, and InvalidRequest for a body that is empty or too large.
    """
    name = encoding.strip().lower()
    if name in (IDENTITY, ""):
        return body
    if name not in _CONTAINERS:
        raise UnsupportedEncoding
    if not body:
        raise InvalidRequest("nothing to be decompressed")
    stream = zlib.decompressobj(_EITHER_CONTAINER)
    try:
        content = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise BrokenCompression(error) from error
    if len(content) > limit:
        raise InvalidRequest(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    if not stream.eof:
        raise BrokenCompression("it ends before the compressed data does")
    if stream.unused_data:
        raise BrokenCompression("there is more after the compressed data")
    return content


def compress(parts: Iterable[Buffer], encoding: str) -> bytes:
    """The parts of a body, compressed as one stream. `encoding` is gzip or deflate."""
    stream = zlib.compressobj(wbits=_CONTAINERS[encoding])
    pieces = [stream.compress(part) for part in parts]
    pieces.append(stream.flush())
    return b"".join(pieces)


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
    """The whole body. Raises InvalidRequest, whose text ends with `cure`, for more than `limit` bytes."""
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


def read_object(environ: Environ, limit: int, cure: str = _RAISE_LIMIT) -> dict[str, Any]:
    """The JSON object in the body, {} for an empty body. Raises InvalidRequest with Triton's texts."""
    content = read_body(environ, limit, cure)
    if not content:
        return {}
    document = parse_json(content)
    if not isinstance(document, dict):
        raise InvalidRequest("attempt to access JSON non-object as object")
    return document


def read_parameters(environ: Environ, limit: int) -> dict[str, Any]:
    """The object under `parameters` in the body, {} without it."""
    parameters = read_object(environ, limit).get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest("Unable to parse 'parameters': attempt to access JSON non-object as object")
    return parameters


def too_large(size: str, limit: int, cure: str = _RAISE_LIMIT) -> InvalidRequest:
    return InvalidRequest(
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. {cure}"
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
# slower. Each thread has a parser.

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


MAX_DEPTH: Final = 100
NESTED_TOO_DEEP: Final = f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"
_PREFIX: Final = "failed to parse the request JSON buffer: "
_LONGEST_INTEGER: Final = 20
# A whole string, or an unfinished one to the end, so that no match starts inside a string; or the word itself.
_WORD: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|NaN|Inf(?:inity)?', re.DOTALL)


def parse_json(text: Buffer, location: str = "", pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of `text`, as orjson reads it. As in Triton, the words NaN, Inf and Infinity are numbers, too.

    A number beyond a double, bytes that are not UTF-8, and half of a surrogate pair are refused. `pairs` makes the
    value of an object from its members, with those that are given twice. Raises InvalidRequest with the reason and the
    offset; its text begins with `location` if that is given.
    """
    prefix = f"{location}: " if location else ""
    try:
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError:
            raw = bytes(text)
            if b"NaN" not in raw and b"Inf" not in raw:
                raise
            # orjson judges all but the words, so that none of them changes how the rest is read.
            orjson.loads(_WORD.sub(_as_number, raw))
            return json.loads(_WORD.sub(_spelled_out, raw), parse_int=_integer, object_pairs_hook=pairs)
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
    raise InvalidRequest(f"{prefix}{_PREFIX}{reason} at {offset}")


def _as_number(found: re.Match[bytes]) -> bytes:
    """A number as long as the word."""
    return found[0] if found[0][:1] == b'"' else b"0".ljust(len(found[0]))


def _spelled_out(found: re.Match[bytes]) -> bytes:
    """`Inf` as `json` spells it."""
    return b"Infinity" if found[0] == b"Inf" else found[0]


def _integer(digits: str) -> int | float:
    """An integer as orjson reads it: a double beyond 64 bits."""
    number = int(digits) if len(digits) <= _LONGEST_INTEGER else 2**64
    return number if -(2**63) <= number < 2**64 else float(digits)


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


# --- a long array in slices, each of which is a JSON array itself. It is cut at commas outside strings. The brackets
# that are open there are closed at the end of the one slice and opened again at the start of the next. If each slice is
# valid JSON, so is the whole array, with the same elements.

# Of strings, the slowest of all to read, this takes 2 to 5 milliseconds. Less would not be noticed: a thread may hold
# the interpreter for 5.
SLICE = 1 << 18


def _go_on() -> None:
    """The pause of a reader that nothing stops."""


@dataclass(frozen=True, slots=True)
class Slicing:
    """`pause` is called before each slice, and raises the error with which the reader is to stop.

    `size` is the number of bytes of a slice. Slices end between elements or lines, so that some are longer.
    """

    pause: Callable[[], None] = _go_on
    size: int = SLICE


def joined_array(parts: Sequence[Array]) -> Array:
    """As `np.concatenate`, which holds the interpreter's lock until it has copied everything: 35 ms for 46 MB."""
    first = parts[0]
    if len(parts) == 1 or any(part.dtype != first.dtype for part in parts):
        return np.concatenate(parts)
    whole = np.empty((sum(len(part) for part in parts), *first.shape[1:]), first.dtype)
    start = 0
    for part in parts:
        whole[start : start + len(part)] = part
        start += len(part)
    return whole


_BREAK = b"\n"
_BLANK = re.compile(rb"\n[ \t\r]*\n").search


def line_slices(text: memoryview, slicing: Slicing) -> Iterator[bytes]:
    """The slices, of which all but the last end with a line break (LF)."""
    at, size = 0, slicing.size
    while at < len(text):
        slicing.pause()
        part = bytes(text[at : at + size])
        end = part.rfind(_BREAK) + 1
        while not end and at + len(part) < len(text):
            more = bytes(text[at + len(part) : at + len(part) + size])
            end = len(part) + more.find(_BREAK) + 1 if _BREAK in more else 0
            part += more
        yield part[: end or len(part)]
        at += end or len(part)


def without_blank_lines(text: bytes) -> bytes:
    """`text` without lines that have nothing but blanks, which people leave between and after rows."""
    if _BLANK(text) is None and not text[:1].isspace() and not text[-2:].isspace():
        return text
    return _BREAK.join([line for line in text.split(_BREAK) if line and not line.isspace()])


# An element that is longer than so many slices makes an array that cannot be sliced between its elements.
_LONGEST = 16
# The part of a slice in which the last comma is looked for first.
_TAIL = 1 << 12
# The parsers stop at 1024, and a request may have 100.
_DEEPEST = 64

_OPENING, _CLOSING = b"[{", b"]}"
_STRUCTURE = b'"' + _OPENING + _CLOSING
_NO_STRUCTURE = bytes(code for code in range(256) if code not in _STRUCTURE)
_STEPS = np.zeros(256, np.int32)
_STEPS[list(_OPENING)] = 1
_STEPS[list(_CLOSING)] = -1
_QUOTE, _COMMA = ord('"'), ord(",")


class _Slice(NamedTuple):
    """The first byte and the end of a part of the text, and the number of arrays that are open there."""

    begin: int
    end: int
    opened: int
    closed: int


class SlicedArray:
    """The array from the bracket at `begin` to the one before `end`. `is_read`: nothing was wrong with any slice."""

    __slots__ = ("_pause", "_slices", "_text", "begin", "end", "is_read")

    def __init__(self, text: memoryview, begin: int, end: int, slices: list[_Slice], slicing: Slicing) -> None:
        self.begin = begin
        self.end = end
        self.is_read = False
        self._text = text
        self._slices = slices
        self._pause = slicing.pause

    @property
    def is_long(self) -> bool:
        """Whether there is more than one slice."""
        return len(self._slices) > 1

    def texts(self) -> Iterator[bytes]:
        """The slices, each the text of an array, as long as the caller finds nothing wrong with them."""
        for one in self._slices:
            self._pause()
            yield b"[" * one.opened + bytes(self._text[one.begin : one.end]) + b"]" * one.closed
        self.is_read = True


def slice_array(text: memoryview, begin: int, slicing: Slicing, *, whole_elements: bool) -> SlicedArray | None:
    """The array whose bracket is at `begin`, in slices; None if it cannot be sliced.

    `whole_elements`: only between the array's own elements; otherwise elements that are arrays may be cut, too. Any
    text is taken, JSON or not: what is wrong is found in the slices, or makes the array one that cannot be sliced.
    """
    slices: list[_Slice] = []
    at, depth, window = begin + 1, 1, slicing.size
    while True:
        slicing.pause()
        part = bytes(text[at : at + window])
        end = _end_of_array(part, depth)
        if end is not None:
            if part[end : end + 1] != b"]":
                return None
            slices.append(_Slice(at, at + end, depth, 1))
            break
        found = _last_comma(part, depth, 1 if whole_elements else _DEEPEST)
        if found is not None:
            cut, closed = found
            slices.append(_Slice(at, at + cut, depth, closed))
            at, depth, window = at + cut + 1, closed, slicing.size
        elif at + window < len(text) and window < _LONGEST * slicing.size:
            window *= 2
        else:
            return None
    if len(slices) > 1 and not _is_joined(text, slices):
        return None
    return SlicedArray(text, begin, at + end + 1, slices, slicing)


def _is_joined(text: memoryview, slices: list[_Slice]) -> bool:
    """Whether each comma between two slices follows an element and precedes one."""
    for before, after in pairwise(slices):
        last = _edge(text, before.end - 1, before.begin - 1, -1)
        first = _edge(text, after.begin, after.end, 1)
        if last in b"[," or first in b"],":
            return False
    return True


def _edge(text: memoryview, at: int, limit: int, step: int) -> bytes:
    """The first byte that is no white space, "," if there is none."""
    while at != limit:
        byte = bytes(text[at : at + 1])
        if not byte.isspace():
            return byte
        at += step
    return b","


def _end_of_array(part: bytes, depth: int) -> int | None:
    """The position of the bracket that closes the outermost of `depth` open ones; None if it is not in the part."""
    brackets = _brackets(_without_escapes(part))
    if depth + _lowest(brackets) > 0:
        return None
    at, kinds = _marks(part)
    (ends,) = np.nonzero(depth + np.cumsum(_STEPS[kinds]) == 0)
    return int(at[ends[0]])


def _last_comma(part: bytes, depth: int, deepest: int) -> tuple[int, int] | None:
    """The position of the last comma outside strings and the number of brackets open there, at most `deepest`."""
    tail = min(_TAIL, len(part))
    while True:
        start = len(part) - tail
        # A tail must not begin within an escape.
        while start and part[start - 1 : start] == b"\\":
            start -= 1
        inside, open_here = _state(part[:start], depth)
        at, kinds = _marks(part[start:], inside=inside)
        open_at = open_here + np.cumsum(_STEPS[kinds])
        (commas,) = np.nonzero((kinds == _COMMA) & (open_at <= deepest))
        if commas.size:
            last = commas[-1]
            return start + int(at[last]), int(open_at[last])
        if not start:
            return None
        tail = min(8 * tail, len(part))


def _state(text: bytes, depth: int) -> tuple[bool, int]:
    """Whether `text` ends inside a string, and the number of brackets that are then open."""
    plain = _without_escapes(text)
    brackets = _brackets(plain)
    opened = sum(map(brackets.count, (b"[", b"{")))
    return plain.count(b'"') % 2 == 1, depth + 2 * opened - len(brackets)


def _without_escapes(text: bytes) -> bytes:
    """`text` without the escapes in its strings that could be taken for the end of a string."""
    if b"\\" in text:
        return text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return text


def _brackets(plain: bytes) -> bytes:
    """All brackets outside strings."""
    structure = plain.translate(None, _NO_STRUCTURE)
    if b'"' not in structure:
        return structure
    if structure.count(b'"') == len(structure):
        return b""
    return b"".join(structure.split(b'"')[::2])


def _lowest(brackets: bytes) -> int:
    """How far the number of open brackets falls at most; 0 if it does not."""
    if b"]" not in brackets and b"}" not in brackets:
        return 0
    return int(np.cumsum(_STEPS[np.frombuffer(brackets, np.uint8)]).min())


def _marks(text: bytes, *, inside: bool = False) -> tuple[Array, Array]:
    """The positions and the codes of all brackets and commas outside strings; `inside`: it begins inside one."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    codes = np.frombuffer(text, np.uint8)
    (at,) = np.nonzero(_MARKS[codes])
    kinds = codes[at]
    quotes = kinds == _QUOTE
    outside = (np.cumsum(quotes) + inside) % 2 == 0
    keep = outside & ~quotes
    return at[keep], kinds[keep]


_MARKS = np.zeros(256, np.bool_)
_MARKS[list(_STRUCTURE + b",")] = True


# In the text that is parsed as a whole each long array is replaced by a mark. The marks are then found in the parsed
# document, where the arrays belong.


# Nobody can send a mark without knowing this.
_SECRET = secrets.token_hex(16)
# How far the member of a long array may be from the start of the document, and from the array before it.
_NEAR = 1 << 16
# A document with more than this beside its long arrays, or with more arrays, is read as a whole.
_LARGEST = 1 << 20
_MOST_ARRAYS = 64


class Outline:
    """`document` is the parsed JSON with a mark in the place of each of the long `arrays`, which `take` exchanges.

    `text` is the text of the document.
    """

    def __init__(self, text: bytes, document: Any, arrays: list[SlicedArray]) -> None:
        self.text = text
        self.document = document
        self.arrays = arrays
        self._untaken = dict(enumerate(arrays))

    def take(self, value: Any) -> SlicedArray | None:
        """The array whose mark `value` is; None for any other value, and for a mark that was taken before."""
        if type(value) is list and len(value) == 2 and value[0] == _SECRET:
            return self._untaken.pop(value[1], None)
        return None

    def is_taken(self) -> bool:
        """Whether all arrays were taken. If not, one is in a place where the reader expects no long array."""
        return not self._untaken

    def is_read(self) -> bool:
        """Whether all arrays were read, and so the whole text is valid JSON."""
        return all(array.is_read for array in self.arrays)


def outline_of(
    text: memoryview, member: re.Pattern[bytes], slicing: Slicing, *, whole_elements: bool
) -> Outline | None:
    """The outline of the document `text`, whose long arrays are values of `member`, a pattern that ends with a bracket.

    None if it has no long array, if one cannot be sliced, or if the text is not JSON. `whole_elements` is
    that of `slice_array`. An array that fits into one slice is not long.
    """
    parts: list[bytes | memoryview] = []
    arrays: list[SlicedArray] = []
    copied = at = 0
    for _ in range(_MOST_ARRAYS):
        found = member.search(text, at, at + _NEAR)
        if found is None:
            break
        array = slice_array(text, found.end() - 1, slicing, whole_elements=whole_elements)
        if array is None:
            return None
        at = array.end
        if array.is_long:
            parts += (text[copied : array.begin], b'["%b",%d]' % (_SECRET.encode(), len(arrays)))
            arrays.append(array)
            copied = at
    parts.append(text[copied:])
    if not arrays or sum(map(len, parts)) > _LARGEST:
        return None
    outlined = b"".join(parts)
    try:
        return Outline(outlined, orjson.loads(outlined), arrays)
    except orjson.JSONDecodeError:
        return None


# Elements of a slice: numbers of this count are written in one to two milliseconds.
ELEMENTS = 1 << 14

_MARK = secrets.token_hex(16)
_MARK_TEXT = b'"%b"' % _MARK.encode()


class LongAnswer:
    """Arrays that are written slice by slice into one document, in which `add` puts marks for them, in order."""

    def __init__(self) -> None:
        self._arrays: list[tuple[Array, Callable[[Array], Any]]] = []

    def add(self, array: Array, values: Callable[[Array], Any]) -> str:
        """The mark for a flat array. `values` makes what a JSON writer takes, an array or a list, of a part of it."""
        self._arrays.append((array, values))
        return _MARK

    def texts(self, document: Any, write: Callable[[Any], bytes]) -> Iterator[bytes | memoryview]:
        """The text of `document` in parts, as `write` would write it with the arrays in the place of their marks.

        Raises what `write` raises. The document has the marks in the order of `add`. The parts of an array are views
        of what was written, which is not copied again.
        """
        around = write(document).split(_MARK_TEXT)
        yield around[0]
        for (array, values), after in zip(self._arrays, around[1:], strict=True):
            yield b"["
            for start in range(0, len(array), ELEMENTS):
                if start:
                    yield b","
                yield memoryview(write(values(array[start : start + ELEMENTS])))[1:-1]
            yield b"]" + after
