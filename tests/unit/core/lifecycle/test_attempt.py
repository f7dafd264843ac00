"""The attempt to load a version, and its end before it is done."""

from __future__ import annotations

import threading

import pytest

from trident.core.errors import ModelLoadFailed
from trident.core.lifecycle.attempt import LoadAttempt


def test_an_ended_attempt_fails_at_once_and_its_work_at_its_next_step() -> None:
    attempt, go_on, outcomes = LoadAttempt("m"), threading.Event(), []
    reasons: list[str] = []

    def work() -> None:
        attempt.begin("a step")
        attempt.watch(reasons.append)
        outcomes.append(attempt.end("newer files"))
        assert go_on.wait(60)
        for late in (attempt.settle, lambda: attempt.begin("another")):
            with pytest.raises(ModelLoadFailed, match="newer files"):
                late()
        attempt.watch(reasons.append)
        outcomes.append(attempt.end("again"))
        done.release()

    done = threading.Semaphore(0)
    assert str(attempt.run(work)) == "newer files"
    go_on.set()
    assert done.acquire(timeout=60)
    assert reasons == ["newer files"] * 2
    assert outcomes == [True, False]
    assert str(attempt.run(work)) == "newer files", "nothing begins any more"


@pytest.mark.parametrize("error", [ValueError("a fault"), SystemExit("a fault")])
def test_exception_of_the_work_is_the_failure_reason(error: BaseException) -> None:
    def work() -> None:
        raise error

    assert str(LoadAttempt("m").run(work)) == "a fault"


def test_only_named_steps_have_a_time_limit() -> None:
    attempt, go_on = LoadAttempt("m"), threading.Event()

    def work() -> None:
        attempt.begin("golden request 'g'")
        assert go_on.wait(60)

    failure = attempt.run(work, limit_s=0.01)
    assert str(failure) == "golden request 'g' took longer than --model-load-timeout-secs allows (0.01 s)"
    go_on.set()
    fetching = LoadAttempt("m", clock=lambda: 1 << 60)
    assert fetching.run(lambda: None, limit_s=1e-9) is None
