"""The coarse clock."""

from __future__ import annotations

from app.worker.clock import CoarseClock


def test_time_moves_with_a_tick_only() -> None:
    clock = CoarseClock()
    before = clock.now
    assert clock.now == before
    clock.tick()
    assert clock.now > before


def test_date_ends_the_head() -> None:
    end = CoarseClock().date_end
    assert end.startswith(b"Date: ")
    assert end.endswith(b" GMT\r\n\r\n")
