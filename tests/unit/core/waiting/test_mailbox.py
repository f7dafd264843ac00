from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.core.waiting.hub_thread import LIMIT_S, run_on_hub
from trident.core.waiting.hub import GreenletMailbox, HubWaiters
from trident.core.waiting.waiting import Mailbox, ThreadMailbox

Test = Callable[[Mailbox[int]], None]


def on_thread(test: Test) -> None:
    test(ThreadMailbox())


def on_hub(test: Test) -> None:
    def run(hub: Any) -> None:
        waiters = HubWaiters(hub)
        try:
            test(GreenletMailbox(waiters))
        finally:
            waiters.close()

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
        found: list[int] = []
        while len(found) < 3000:
            assert mailbox.wait(LIMIT_S)
            found.append(mailbox.items.popleft())
        assert sorted(found) == list(range(3000))
        for thread in threads:
            thread.join(LIMIT_S)

    on(test)


@both
def test_a_wait_ends_without_an_item(on: Callable[[Test], None]) -> None:
    def test(mailbox: Mailbox[int]) -> None:
        assert not mailbox.wait(0.001)
        mailbox.put(1)
        assert mailbox.wait(0.001)
        assert mailbox.wait()

    on(test)
