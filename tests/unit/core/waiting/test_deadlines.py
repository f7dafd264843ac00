from __future__ import annotations

import time
from typing import Any

from tests.unit.core.waiting.hub_thread import run_on_hub, until
from trident.core.waiting.waiting import TICK_S, Deadlines


class Call:
    def __init__(self, ended: list[str], name: str) -> None:
        self._ended = ended
        self.name = name
        self.began = time.monotonic()
        self.lasted = 0.0

    def expire(self) -> None:
        self.lasted = time.monotonic() - self.began
        self._ended.append(self.name)


def test_what_is_due_expires_in_its_order_and_not_too_early() -> None:
    def test(hub: Any) -> None:
        ended: list[str] = []
        deadlines = Deadlines(hub)
        calls = [Call(ended, name) for name in ("late", "soon", "now", "past")]
        for call, seconds in zip(calls, (0.2, 0.1, 0.0, -5.0), strict=True):
            deadlines.add(seconds, call)
        until(lambda: len(ended) == 4)
        assert ended == ["now", "past", "soon", "late"]
        assert calls[0].lasted >= 0.2
        assert calls[1].lasted >= 0.1
        deadlines.close()

    run_on_hub(test)


def test_what_was_removed_does_not_expire() -> None:
    def test(hub: Any) -> None:
        ended: list[str] = []
        deadlines = Deadlines(hub)
        calls = [Call(ended, str(number)) for number in range(3)]
        ticks = [deadlines.add(0.01, call) for call in calls]
        deadlines.remove(ticks[1], calls[1])
        deadlines.remove(ticks[1], calls[1])
        until(lambda: len(ended) == 2)
        assert ended == ["0", "2"]
        deadlines.remove(ticks[0], calls[0])
        deadlines.close()

    run_on_hub(test)


def test_nothing_is_kept_of_many_calls_that_ended_in_time() -> None:
    def test(hub: Any) -> None:
        ended: list[str] = []
        deadlines = Deadlines(hub)
        last = Call(ended, "last")
        for _ in range(20_000):
            call = Call(ended, "never")
            deadlines.remove(deadlines.add(60.0, call), call)
        assert sum(map(len, deadlines._ticks.values())) == 0
        assert len(deadlines._ticks) < 60 / TICK_S
        deadlines.add(0.0, last)
        until(lambda: ended == ["last"])
        # The ticks before a tick that is still used go with the next look.
        assert deadlines._ticks == {}
        assert deadlines._timer is None

    run_on_hub(test)


def test_one_that_expires_may_remove_another_and_add_a_new_one() -> None:
    def test(hub: Any) -> None:
        ended: list[str] = []
        deadlines = Deadlines(hub)
        other = Call(ended, "other")
        later = Call(ended, "later")

        class Busy(Call):
            def expire(self) -> None:
                deadlines.remove(tick, other)
                deadlines.add(0.0, later)
                super().expire()

        first = Busy(ended, "busy")
        tick = deadlines.add(0.01, first)
        deadlines._ticks[tick][other] = None
        until(lambda: "later" in ended)
        assert ended == ["busy", "later"]
        deadlines.close()

    run_on_hub(test)


def test_a_deadline_is_near_in_its_last_moment() -> None:
    def test(hub: Any) -> None:
        deadlines = Deadlines(hub)
        assert deadlines.is_near(deadlines.add(0.0, Call([], "now")))
        assert not deadlines.is_near(deadlines.add(60.0, Call([], "later")))
        deadlines.close()

    run_on_hub(test)
