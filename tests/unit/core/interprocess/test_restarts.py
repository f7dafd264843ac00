from __future__ import annotations

from core.interprocess.restarts import Restarts, restart_delay_s


def test_the_delay_grows_with_each_early_end() -> None:
    assert [restart_delay_s(ends) for ends in range(9)] == [0, 0, 1, 3, 7, 15, 31, 31, 31]


def test_a_process_that_ran_for_a_while_is_restarted_at_once() -> None:
    now = 100.0
    restarts = Restarts(lambda: now)
    for delay in (0, 1, 3):
        restarts.started()
        assert restarts.ended() == delay
    assert not restarts.is_due()
    now += 3
    assert restarts.is_due()
    restarts.started()
    now += 60
    assert restarts.ended() == 0
    assert restarts.is_due()
