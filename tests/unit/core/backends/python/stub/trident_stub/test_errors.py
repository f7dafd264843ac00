"""TritonError: message and code."""

from __future__ import annotations

from typing import Any

import pytest
from trident_stub.errors import TritonError


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("UNKNOWN", 0),
        ("INTERNAL", 1),
        ("NOT_FOUND", 2),
        ("INVALID_ARG", 3),
        ("UNAVAILABLE", 4),
        ("UNSUPPORTED", 5),
        ("ALREADY_EXISTS", 6),
        ("CANCELLED", 7),
    ],
)
def test_codes(name: str, number: int) -> None:
    error = TritonError(message="text", code=getattr(TritonError, name))
    assert (error.message(), error.code()) == ("text", number)


def test_an_error_is_internal_unless_it_says_otherwise() -> None:
    assert TritonError("text").code() == TritonError.INTERNAL


@pytest.mark.parametrize("arguments", [(None,), (1,), ("text", None), ("text", 8), ("text", "INTERNAL")])
def test_wrong_types(arguments: Any) -> None:
    with pytest.raises(TypeError, match="TritonError"):
        TritonError(*arguments)
