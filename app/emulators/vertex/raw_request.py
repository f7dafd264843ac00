"""A raw request: the headers and body that reach the container, and those of its answer that reach the caller.

The SDK's generated clients wrap both bodies in an envelope: a JSON document that has the real body as base64.
Source: docs/spec/vertex.md section A3.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from app.emulators.vertex.deployment import Deployment
from app.emulators.vertex.google_error import invalid

_CONTENT_TYPE = "content-type"
# Headers of the connection, of the platform's authentication, and headers that are set again.
_NOT_PASSED = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NOT_PASSED_BACK = _NOT_PASSED | {"date", "server"}
_GOOGLE_PREFIX = "x-goog-"
# In a request of the SDK these describe the envelope.
_OF_THE_ENVELOPE = frozenset({_CONTENT_TYPE, "accept", "accept-encoding", "user-agent"})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_HTTP_BODY = "httpBody"


@dataclass(frozen=True, slots=True)
class RawRequest:
    """The request as the container receives it."""

    headers: dict[str, str]
    body: bytes


def read_raw_request(headers: Iterable[tuple[str, str]], body: bytes) -> RawRequest:
    """Read a request without an envelope. Raises GoogleError for a header that cannot be forwarded."""
    return RawRequest(_passed(headers, _NOT_PASSED), body)


def read_sdk_request(headers: Iterable[tuple[str, str]], body: bytes) -> RawRequest:
    """Read a request in the SDK's envelope. Raises GoogleError for a body that is not one."""
    try:
        document = orjson.loads(body)
        held = document[_HTTP_BODY]
        content_type, text = held.get("contentType", ""), held.get("data", "")
        content = base64.b64decode(text.translate({ord("-"): "+", ord("_"): "/"}), validate=True)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, binascii.Error, ValueError):
        raise invalid(
            "Invalid JSON payload received. There must be an 'httpBody' with 'contentType' and 'data'"
        ) from None
    if type(content_type) is not str or not _VALUE.fullmatch(content_type):
        raise invalid("Invalid value at 'http_body.content_type'")
    passed = _passed(headers, _NOT_PASSED | _OF_THE_ENVELOPE)
    return RawRequest({**passed, **({"Content-Type": content_type} if content_type else {})}, content)


def passed_back(headers: Iterable[tuple[str, str]], deployment: Deployment) -> dict[str, str]:
    """The headers of the answer to the caller: the container's and the platform's."""
    passed = {
        name: value
        for name, value in headers
        if name.lower() not in _NOT_PASSED_BACK and _NAME.fullmatch(name) and _VALUE.fullmatch(value)
    }
    own = {
        "X-Vertex-AI-Endpoint-Id": deployment.endpoint_id,
        "X-Vertex-AI-Deployed-Model-Id": deployment.deployed_model_id,
        "X-Vertex-AI-Model": deployment.model,
        "X-Vertex-AI-Model-Version-Id": deployment.model_version_id,
    }
    taken = {name.lower() for name in own}
    return {name: value for name, value in passed.items() if name.lower() not in taken} | own


def sdk_answer(headers: Iterable[tuple[str, str]], body: bytes) -> bytes:
    """The container's answer in the SDK's envelope."""
    content_type = next((value for name, value in headers if name.lower() == _CONTENT_TYPE), "")
    held: dict[str, Any] = {"contentType": content_type, "data": base64.b64encode(body).decode()}
    return orjson.dumps(held)


def sdk_answers(headers: list[tuple[str, str]], parts: Iterable[bytes]) -> Iterator[bytes]:
    """A streamed answer for the SDK: a JSON list with an envelope for each part, as the parts arrive."""
    mark = b"["
    for part in parts:
        yield mark + sdk_answer(headers, part)
        mark = b",\n"
    yield b"[]" if mark == b"[" else b"]"


def _passed(headers: Iterable[tuple[str, str]], without: frozenset[str]) -> dict[str, str]:
    passed = {}
    for name, value in headers:
        if name.lower() in without or name.lower().startswith(_GOOGLE_PREFIX):
            continue
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise invalid(f"the header {name[:100]!r} is malformed")
        passed[name] = value
    return passed
