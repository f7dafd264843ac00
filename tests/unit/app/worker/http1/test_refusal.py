from __future__ import annotations

import json

import pytest

from trident.app.worker.http1.request_head import Refusal, check_length


@pytest.mark.parametrize("status", [400, 414, 417, 431, 501])
def test_a_refusal_begins_with_its_status_in_words(status: int) -> None:
    head, body = Refusal.of(status, "a fault").response().split(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    assert f"Content-Length: {len(body)}" in fields
    assert line == f"HTTP/1.1 {status} {json.loads(body)['error'].removesuffix(': a fault')}"


def test_a_length_above_the_limit_is_refused() -> None:
    check_length(10, 10)
    with pytest.raises(Refusal, match="maximum allowed size of 10 bytes"):
        check_length(11, 10)
    with pytest.raises(Refusal, match=r"range \[ -2147483648, 2147483647 \], got: 2147483648$"):
        check_length(2**31, 2**40)
