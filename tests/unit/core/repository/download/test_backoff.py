"""Retries with pauses, and their end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from trident.core.errors import RepositoryUnavailable
from trident.core.repository.download import Backoff, GivenUp
from trident.core.repository.stores.object_store import TransientError


def failing(times: int) -> Callable[[], str]:
    failures = iter(range(times))

    def operation() -> str:
        if next(failures, None) is not None:
            raise TransientError("connection lost")
        return "done"

    return operation


def recording(pauses: list[float], attempts: int) -> Backoff:
    return Backoff(attempts=attempts, pause=lambda _, seconds: pauses.append(seconds), draw=lambda: 0.5)


def test_pauses_grow_up_to_the_cap() -> None:
    pauses: list[float] = []
    assert recording(pauses, 10).call(failing(8), "list", threading.Event()) == "done"
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


def test_call_fails_after_the_last_attempt() -> None:
    pauses: list[float] = []
    with pytest.raises(RepositoryUnavailable, match="failed to list the bucket in 3 attempts: connection lost"):
        recording(pauses, 3).call(failing(3), "list the bucket", threading.Event())
    assert len(pauses) == 2


def test_call_ends_when_stop_is_set() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(GivenUp):
        Backoff().call(failing(1), "list", stop)


def test_pauses_have_full_jitter() -> None:
    pauses: list[float] = []
    backoff = Backoff(pause=lambda _, seconds: pauses.append(seconds))
    for _ in range(200):
        backoff.wait(3, threading.Event())
    assert 0.0 <= min(pauses) < 0.2 < 0.6 < max(pauses) <= 0.8
