"""The inbox of a hub, callers that wait for items from other threads, and deadlines."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gevent
import pytest

from tests.unit.core.waiting.hub_thread import LIMIT_S, hub_test, run_on_hub, until
from trident.core.frontend.gevent_bridge import GreenletMailbox, Inbox
from trident.core.waiting import TICK_S, Deadlines, Mailbox, ThreadMailbox


@contextmanager
def logged(name: str) -> Iterator[list[logging.LogRecord]]:
    """The records of a logger, on any thread."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield records
    finally:
        logger.removeHandler(handler)


@contextmanager
def inbox_of(hub: Any) -> Iterator[Inbox]:
    inbox = Inbox(hub)
    try:
        yield inbox
    finally:
        inbox.close()


def on_another_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(LIMIT_S)


@hub_test
def test_calls_of_other_threads_are_all_made_in_order_per_thread(hub: Any) -> None:
    made: list[tuple[int, int]] = []

    def put(thread: int) -> None:
        for number in range(2000):
            inbox.put(partial(made.append, (thread, number)))

    with inbox_of(hub) as inbox:
        threads = [threading.Thread(target=put, args=(thread,)) for thread in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: len(made) == 6000)
        for thread in threads:
            thread.join(LIMIT_S)
    for number in range(3):
        assert [each for thread, each in made if thread == number] == list(range(2000))


@hub_test
def test_call_that_raises_does_not_prevent_others(hub: Any) -> None:
    made: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError

    with inbox_of(hub) as inbox, logged("trident.borders") as lines:
        for call in (fail, partial(made.append, 1), fail, partial(made.append, 2)):
            inbox.put(call)
        until(lambda: made == [1, 2])
    assert [line.exc_info[0] for line in lines if line.exc_info] == [ZeroDivisionError] * 2


@hub_test
def test_sockets_are_served_between_endlessly_added_calls(hub: Any) -> None:
    made = 0

    def again() -> None:
        nonlocal made
        made += 1
        inbox.put(again)

    with inbox_of(hub) as inbox:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            readable = hub.loop.io(ours.fileno(), 1)
            read: list[int] = []
            readable.start(lambda: read.append(made))
            inbox.put(again)
            theirs.send(b"1")
            until(lambda: bool(read))
            readable.stop()
            readable.close()


@hub_test
def test_no_call_is_made_after_the_end(hub: Any) -> None:
    made: list[int] = []
    with inbox_of(hub) as inbox:
        inbox.put(partial(made.append, 1))
    inbox.put(partial(made.append, 2))
    on_another_thread(partial(inbox.put, partial(made.append, 3)))
    gevent.sleep(0.001)
    assert made == []


@hub_test
def test_item_after_the_timeout_does_not_wake_a_greenlet(hub: Any) -> None:
    with inbox_of(hub) as inbox:
        late: GreenletMailbox[str] = GreenletMailbox(inbox)
        other: GreenletMailbox[str] = GreenletMailbox(inbox)
        assert late.get(0.001) is None
        late.put("late")
        waiting = gevent.spawn(other.get)
        gevent.sleep(0.001)  # raises if the late item switches to this greenlet
        on_another_thread(partial(other.put, "item"))
        assert waiting.get(timeout=LIMIT_S) == "item"
        assert late.get() == "late"


@hub_test
def test_item_for_a_killed_greenlet_is_ignored(hub: Any) -> None:
    with inbox_of(hub) as inbox:
        mailbox: GreenletMailbox[str] = GreenletMailbox(inbox)
        waiting = gevent.spawn(mailbox.get)
        gevent.sleep(0.001)
        waiting.kill()
        mailbox.put("item")
        gevent.sleep(0.001)
        assert mailbox.take() == "item"


Test = Callable[[Mailbox[int]], None]


def on_thread(test: Test) -> None:
    test(ThreadMailbox())


def on_hub(test: Test) -> None:
    def run(hub: Any) -> None:
        with inbox_of(hub) as inbox:
            test(GreenletMailbox(inbox))

    run_on_hub(run)


both = pytest.mark.parametrize("on", [on_thread, on_hub])


@both
def test_no_item_is_lost_among_threads(on: Callable[[Test], None]) -> None:
    def test(mailbox: Mailbox[int]) -> None:
        def bring(first: int) -> None:
            for number in range(first, first + 1000):
                mailbox.put(number)

        threads = [threading.Thread(target=bring, args=(first,)) for first in (0, 1000, 2000)]
        for thread in threads:
            thread.start()
        found: list[int | None] = []
        while len(found) < 3000:
            found.append(mailbox.get(LIMIT_S))
            while (item := mailbox.take()) is not None:
                found.append(item)
        assert sorted(each for each in found if each is not None) == list(range(3000))
        for thread in threads:
            thread.join(LIMIT_S)

    on(test)


class Call:
    def __init__(self, ended: list[str], name: str) -> None:
        self._ended = ended
        self.name = name
        self.began = time.monotonic()
        self.lasted = 0.0

    def expire(self) -> None:
        self.lasted = time.monotonic() - self.began
        self._ended.append(self.name)


@hub_test
def test_deadline_that_raises_does_not_stop_others(hub: Any) -> None:
    ended: list[str] = []
    deadlines = Deadlines(hub)

    class Failing(Call):
        def expire(self) -> None:
            raise ZeroDivisionError

    with logged("trident.borders") as lines:
        for name, seconds, kind in (("fails", 0.0, Failing), ("same", 0.0, Call), ("later", 0.05, Call)):
            deadlines.add(seconds, kind(ended, name))
        until(lambda: ended == ["same", "later"])
    assert [line.exc_info[0] for line in lines if line.exc_info] == [ZeroDivisionError]
    deadlines.close()


@hub_test
def test_removed_deadline_does_not_expire(hub: Any) -> None:
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


@hub_test
def test_ended_calls_leave_no_deadlines(hub: Any) -> None:
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


@hub_test
def test_expiring_deadline_may_remove_and_add_others(hub: Any) -> None:
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


@hub_test
def test_deadline_is_near_just_before_it_expires(hub: Any) -> None:
    deadlines = Deadlines(hub)
    assert deadlines.is_near(deadlines.add(0.0, Call([], "now")))
    assert not deadlines.is_near(deadlines.add(60.0, Call([], "later")))
    deadlines.close()
