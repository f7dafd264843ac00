"""core/frontend/bridge.py: how often long work gives way."""

from __future__ import annotations

from trident.core.frontend.bridge import TimeSlice


def test_it_gives_way_once_it_has_taken_its_time() -> None:
    clock = [0.0]
    gave_way: list[float] = []

    def give_way() -> None:
        gave_way.append(clock[0])
        clock[0] += 1.0  # what the others take does not count

    turns = TimeSlice(give_way, now=lambda: clock[0])
    for _ in range(10):
        clock[0] += 0.00005
        turns()
    assert len(gave_way) == 2
    assert gave_way[1] - gave_way[0] > 1.0
