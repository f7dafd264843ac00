from __future__ import annotations

import json

import pytest
from gunicorn.http import errors

from app.worker.http1.refusal import Refusal, check_length


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.LimitRequestLine(9000, 8190), 414),
        (errors.LimitRequestHeaders("too many"), 431),
        (errors.UnsupportedTransferCoding("br"), 501),
        (errors.ExpectationFailed("x"), 417),
        (errors.InvalidHeader("X"), 400),
    ],
)
def test_an_error_of_the_parser_has_its_status(error: Exception, status: int) -> None:
    head, body = Refusal.of(error).response().split(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert f"Content-Length: {len(body)}".encode() in head
    assert list(json.loads(body)) == ["error"]


def test_a_length_above_the_limit_is_refused() -> None:
    check_length(10, 10)
    with pytest.raises(Refusal, match="maximum allowed size of 10 bytes"):
        check_length(11, 10)
    with pytest.raises(Refusal, match=r"range \[ -2147483648, 2147483647 \], got: 2147483648$"):
        check_length(2**31, 2**40)
