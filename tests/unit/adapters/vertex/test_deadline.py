"""The time that an answer may take."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.vertex.deadline import Deadline, set_deadline
from core.errors import DeadlineExceeded
from core.http.reply import CLIENT_GONE_KEY


class Now:
    value = 100.0

    def __call__(self) -> float:
        return self.value


def test_until_then_the_client_is_asked() -> None:
    now, gone = Now(), [False]
    deadline = Deadline(2.5, lambda: gone[0], now)
    now.value = 102.4
    assert not deadline()
    gone[0] = True
    assert deadline()


def test_where_nobody_can_be_asked_the_client_is_there() -> None:
    assert not Deadline(2.5, None, Now())()


@pytest.mark.parametrize("gone", [None, lambda: True])
def test_when_it_is_over_it_says_so(gone: Any) -> None:
    now = Now()
    deadline = Deadline(2.5, gone, now)
    now.value = 102.5
    with pytest.raises(DeadlineExceeded, match=r"^there was no answer within 2\.5 seconds$") as over:
        deadline()
    assert over.value.hint == "--vertex-ai-timeout-secs is the limit"


def test_a_request_has_one_if_there_is_a_limit() -> None:
    environ: dict[str, Any] = {}
    set_deadline(environ, 0.0)
    assert environ == {}
    set_deadline(environ, 60.0)
    assert not environ[CLIENT_GONE_KEY]()
    environ = {CLIENT_GONE_KEY: lambda: True}
    set_deadline(environ, 60.0)
    assert environ[CLIENT_GONE_KEY]()
