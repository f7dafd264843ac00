"""A hub for one test, in its own thread, so that the main thread never gets one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import gevent

from tests import waiting

LIMIT_S = 30.0
until = partial(waiting.until, sleep=gevent.sleep)


def run_on_hub(test: Callable[[Any], None]) -> None:
    """Run `test(hub)` as a greenlet of a new hub; fail if it takes longer than LIMIT_S or raises."""
    tests = [test]  # the frame of a hub's thread outlives the thread: what `test` refers to must not

    def run() -> None:
        hub = gevent.get_hub()
        try:
            greenlet = gevent.spawn(tests.pop(), hub)
            greenlet.join(LIMIT_S)
            assert greenlet.ready(), "the test hangs"
            greenlet.get()
        finally:
            hub.destroy(destroy_loop=True)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


def hub_test(test: Callable[[Any], None]) -> Callable[[], None]:
    """The test that runs `test` with `run_on_hub`."""

    def run() -> None:
        run_on_hub(test)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
