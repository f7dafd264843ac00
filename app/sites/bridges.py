"""The bridges between the applications of a site and the engine's threads."""

from __future__ import annotations

from collections.abc import Callable

import gevent

from trident.core.frontend.bridge import Bridge, ThreadBridge
from trident.core.frontend.gevent_bridge import GeventBridge

# Makes a bridge, given the number of threads for blocking calls.
MakeBridge = Callable[[int], Bridge]


def make_hub_bridge(threads: int) -> Bridge:
    """For this project's worker: requests wait on the hub."""
    return GeventBridge(gevent.get_hub(), threads)


def make_thread_bridge(threads: int) -> Bridge:
    """For a stock worker, whose requests have their own threads and may block them."""
    return ThreadBridge()
