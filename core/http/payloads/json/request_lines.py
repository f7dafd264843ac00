"""Request lines: a body with one JSON document on each line, each a request. Batch transform packs lines so.

A line means the same as it would alone in a body. Source: docs/spec/sagemaker.md section A6.
"""

from __future__ import annotations

import re
from collections.abc import Container

from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest
from core.http.payloads.body_kind import known_format, starts_as_v2
from core.http.payloads.formats import JSON, JSONLINES
from core.http.payloads.json.text import parse_json
from core.inference.tensors import Buffer

_OBJECT = re.compile(rb"\s*\{")
_ENDS = (b"}", b"]")
_BEGINS = (b"{", b"[")
_MEMBERS = ("instances", "inputs")
# Bytes that are copied at a time to search a large body for a line break.
_CHUNK = 1 << 16


def may_be_request_lines(content_type: str, body: Buffer) -> bool:
    """Whether the body may have request lines, which `request_lines` then finds out; quick for any size."""
    known = known_format(content_type)
    if known is JSONLINES:
        return _OBJECT.match(body) is not None
    # Within one document no line that ends with a closing bracket precedes one that begins with an opening bracket.
    return known in (None, JSON) and _is_between(body, _end_of_line(body))


def request_lines(content_type: str, body: Buffer, spec: ModelSpec) -> list[bytes] | None:
    """The documents of the body, each a request of the v2 protocol or with instances; None if the body has none.

    In JSON Lines the members `instances` and `inputs` tell a request from an instance, unless an input has that name. A
    single v2 request gives None, because it is read as one under all types. Raises InvalidRequest.
    """
    known = known_format(content_type)
    end = _end_of_line(body)
    first = bytes(body[:end]) if end >= 0 else bytes(body)
    if not _is_document(first, spec.inputs if known is JSONLINES else (), bare=known is JSON):
        return None
    lines = _lines(body)
    return None if len(lines) == 1 and starts_as_v2(first) else lines


def _end_of_line(body: Buffer) -> int:
    """The position of the first line break, -1 if there is none."""
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
    """Whether the line is a request. Members in `taken` are inputs; `bare`: an array is a request, too."""
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
    return [line for line in bytes(body).split(b"\n") if line and not line.isspace()]
