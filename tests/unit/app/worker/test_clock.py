from __future__ import annotations

from trident.app.worker.io import CoarseClock


def test_only_a_tick_changes_the_time() -> None:
    clock = CoarseClock()
    before = clock.now
    assert clock.now == before
    clock.tick()
    assert clock.now > before


def test_the_date_ends_the_head() -> None:
    end = CoarseClock().date_end
    assert end.startswith(b"Date: ")
    assert end.endswith(b" GMT\r\n\r\n")
