from __future__ import annotations

import io
from typing import Any

import pytest

from trident.core.errors import InvalidRequest
from trident.core.http.body import read_body, read_object, read_parameters


def environ(content: bytes, **more: Any) -> dict[str, Any]:
    return {"wsgi.input": io.BytesIO(content), "CONTENT_LENGTH": str(len(content)), **more}


def chunked(content: bytes) -> dict[str, Any]:
    return {"wsgi.input": io.BytesIO(content), "wsgi.input_terminated": True}


def test_a_body_up_to_the_limit_is_read() -> None:
    assert read_body(environ(b"12345"), 5) == b"12345"
    assert read_body(chunked(b"12345"), 5) == b"12345"


def test_read_body_stops_at_the_announced_length() -> None:
    assert read_body(environ(b"12345", CONTENT_LENGTH="2"), 100) == b"12"
    assert read_body({"wsgi.input": io.BytesIO(b"next request")}, 100) == b""


@pytest.mark.parametrize("given", [environ(b"123456"), chunked(b"123456"), environ(b"", CONTENT_LENGTH="9" * 19)])
def test_a_larger_body_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="exceeds the maximum allowed input size of 5 bytes") as refused:
        read_body(given, 5)
    assert refused.value.message.endswith("Use --http-max-input-size to increase the limit.")


def test_an_empty_body_is_an_empty_object() -> None:
    assert read_object(environ(b""), 100) == {}
    assert read_parameters(environ(b""), 100) == {}


def test_read_object_parses_objects() -> None:
    assert read_object(environ(b'{"a":1}'), 100) == {"a": 1}
    assert read_parameters(environ(b'{"parameters":{"a":1}}'), 100) == {"a": 1}


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 5000, b'{"a":NaN}'])
def test_invalid_json_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^failed to parse the request JSON buffer: .* at \d+$"):
        read_object(environ(content), 10_000)


@pytest.mark.parametrize("content", [b"[]", b"1", b"null"])
def test_a_value_other_than_an_object_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequest, match="attempt to access JSON non-object as object"):
        read_object(environ(content), 100)


def test_parameters_other_than_an_object_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^Unable to parse 'parameters': "):
        read_parameters(environ(b'{"parameters":[]}'), 100)
