"""Bodies of several JSON documents, one on each line: batch transform packs as many lines of a file as fit.

A line is what it would be alone, whatever stands beside it. Source: docs/spec/sagemaker.md section A6.
"""

from __future__ import annotations

import re
from collections.abc import Container

from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest
from core.http.payloads.body_format import known_format, starts_as_v2
from core.http.payloads.error_location import line_name
from core.http.payloads.formats import JSON, JSONLINES
from core.http.payloads.json.text import parse_json
from core.inference.tensors import Buffer

_OBJECT = re.compile(rb"\s*\{")
_ENDS = (b"}", b"]")
_BEGINS = (b"{", b"[")
_MEMBERS = ("instances", "inputs")
# Of a large body, whose only line is as long as itself, so much is copied at a time.
_CHUNK = 1 << 16


def may_be_request_lines(content_type: str, body: Buffer) -> bool:
    """Whether `request_lines` is to look closer at the body; quick, whatever its size."""
    known = known_format(content_type)
    if known is JSONLINES:
        return _OBJECT.match(body) is not None
    # In one document no bracket that closes is followed by a line that begins with one that opens.
    return known in (None, JSON) and _is_between(body, _end_of_line(body))


def request_lines(content_type: str, body: Buffer, spec: ModelSpec) -> list[bytes] | None:
    """The documents of a body that may be some, each a request of the v2 protocol or one with instances; else None.

    Of JSON lines a document is told from an instance by its members, unless an input is called so. A request of the v2
    protocol that is alone in its body is none either: it is read as such under all types. Raises InvalidRequest.
    """
    known = known_format(content_type)
    end = _end_of_line(body)
    first = bytes(body[:end]) if end >= 0 else bytes(body)
    if not _is_document(first, spec.inputs if known is JSONLINES else (), bare=known is JSON):
        return None
    lines = _lines(body)
    return None if len(lines) == 1 and starts_as_v2(first) else lines


def _end_of_line(body: Buffer) -> int:
    """Where the first line ends, -1 if there is one only."""
    view = memoryview(body)
    for start in range(0, len(view), _CHUNK):
        found = bytes(view[start : start + _CHUNK]).find(b"\n")
        if found >= 0:
            return start + found
    return -1


def _is_between(body: Buffer, end: int) -> bool:
    if end < 0:
        return False
    before = bytes(body[max(0, end - 2) : end]).rstrip(b"\r")
    return before.endswith(_ENDS) and bytes(body[end + 1 : end + 2]) in _BEGINS


def _is_document(line: bytes, taken: Container[str], *, bare: bool) -> bool:
    """Whether it is a request by itself. Members whose names are in `taken` are inputs; `bare`: arrays are requests."""
    if not bare and not any(f'"{name}"'.encode() in line for name in _MEMBERS):
        return False
    try:
        document = parse_json(line)
    except InvalidRequest:
        return False
    if type(document) is list:
        return bare
    return type(document) is dict and any(name in document and name not in taken for name in _MEMBERS)


def _lines(body: Buffer) -> list[bytes]:
    lines = bytes(body).split(b"\n")
    if not lines[-1].strip():
        lines.pop()
    for index, line in enumerate(lines):
        if not line or line.isspace():
            raise InvalidRequest(f"{line_name(index)} is empty: expected a JSON document on each line")
    return lines
