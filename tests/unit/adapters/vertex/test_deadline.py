"""The time limit of a request."""

from __future__ import annotations

from typing import Any

import pytest

from trident.adapters.vertex.endpoint import Deadline, set_deadline
from trident.core.errors import DeadlineExceeded
from trident.core.http.reply import CLIENT_GONE_KEY


class Now:
    value = 100.0

    def __call__(self) -> float:
        return self.value


def test_before_the_deadline_the_client_check_counts() -> None:
    now, gone = Now(), [False]
    deadline = Deadline(2.5, lambda: gone[0], now)
    now.value = 102.4
    assert not deadline()
    gone[0] = True
    assert deadline()


def test_without_a_client_check_the_client_counts_as_connected() -> None:
    assert not Deadline(2.5, None, Now())()


@pytest.mark.parametrize("gone", [None, lambda: True])
def test_after_the_deadline_a_call_raises(gone: Any) -> None:
    now = Now()
    deadline = Deadline(2.5, gone, now)
    now.value = 102.5
    with pytest.raises(DeadlineExceeded, match=r"^there was no answer within 2\.5 seconds$") as over:
        deadline()
    assert over.value.hint == "--vertex-ai-timeout-secs is the limit"


def test_a_limit_sets_the_deadline_of_a_request() -> None:
    environ: dict[str, Any] = {}
    set_deadline(environ, 0.0)
    assert environ == {}
    set_deadline(environ, 60.0)
    assert not environ[CLIENT_GONE_KEY]()
    environ = {CLIENT_GONE_KEY: lambda: True}
    set_deadline(environ, 60.0)
    assert environ[CLIENT_GONE_KEY]()
