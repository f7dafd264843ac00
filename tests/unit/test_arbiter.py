"""The arbiter's decisions."""

from __future__ import annotations

from app.arbiter import restart_delay_s


def test_worker_that_ends_early_again_and_again_waits_longer() -> None:
    assert [restart_delay_s(ends) for ends in range(9)] == [0, 0, 1, 3, 7, 15, 31, 31, 31]
