from __future__ import annotations

import logging

import pytest

from trident.core.response_cache.redis_cache import FIRST_PAUSE_S, LONGEST_PAUSE_S, MOST_LATE, CircuitBreaker


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    made = CircuitBreaker("cache:6379", clock)
    made.close()
    return made


def test_it_is_open_until_there_is_a_connection() -> None:
    breaker = CircuitBreaker("cache:6379")
    assert breaker.is_open
    breaker.close()
    assert not breaker.is_open


def test_a_redis_that_is_not_there_at_the_start_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    breaker = CircuitBreaker("cache:6379")
    for _ in range(2):
        breaker.open("refused")
    assert caplog.text.count("is left out") == 1


def test_late_answers_in_a_row_open_it(breaker: CircuitBreaker) -> None:
    breaker.note_late(MOST_LATE - 1)
    breaker.note_answer()
    breaker.note_late(MOST_LATE - 1)
    assert not breaker.is_open
    breaker.note_late(1)
    assert breaker.is_open


def test_each_change_is_logged_once(breaker: CircuitBreaker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "trident.cache"):
        for reason in ("refused", "refused", "timeout"):
            breaker.open(reason)
        for _ in range(3):
            breaker.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "cache:6379 is left out" in caplog.text
    assert "refused" in caplog.text


def test_the_pauses_grow_and_begin_anew_after_a_good_time(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.open("refused")
    pauses = [breaker.next_pause_s() for _ in range(7)]
    assert pauses == [FIRST_PAUSE_S * factor for factor in (1, 2, 4, 8, 16)] + [LONGEST_PAUSE_S] * 2
    breaker.close()
    clock.now_s += 1
    breaker.open("refused")
    assert breaker.next_pause_s() == LONGEST_PAUSE_S  # it was good for a moment only
    breaker.close()
    clock.now_s += LONGEST_PAUSE_S + 1
    breaker.open("refused")
    assert breaker.next_pause_s() == FIRST_PAUSE_S
