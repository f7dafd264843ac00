from __future__ import annotations

import signal

import pytest

from trident.core.interprocess.restarts import end_text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with status 0"),
        (3, "ended with status 3"),
        (-signal.SIGKILL, "was ended by SIGKILL"),
        (-(signal.SIGRTMIN + 1), f"was ended by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_the_log_names_the_status_or_the_signal(code: int, text: str) -> None:
    assert end_text(code) == text
