from __future__ import annotations

import pytest

from trident.core.observability.tracing.trace import parse_traceparent, traceparent_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_context_that_is_written_can_be_read() -> None:
    text = traceparent_of(int(TRACE, 16), int(SPAN, 16))
    assert text == f"00-{TRACE}-{SPAN}-01"
    assert parse_traceparent(text) == (int(TRACE, 16), int(SPAN, 16))
    assert parse_traceparent(traceparent_of(1, 2)) == (1, 2)


def test_a_later_version_may_have_more() -> None:
    assert parse_traceparent(f" 01-{TRACE}-{SPAN}-00-what-else ") == (int(TRACE, 16), int(SPAN, 16))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-" + "x" * 500,
    ],
)
def test_an_invalid_context_is_none(text: str) -> None:
    assert parse_traceparent(text) is None
