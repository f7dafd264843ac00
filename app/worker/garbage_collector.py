"""How often Python looks for cycles."""

from __future__ import annotations

import gc

_ALLOCATIONS_BETWEEN_COLLECTIONS = 20_000


def settle_collector() -> None:
    """Called once all that stays has been made.

    What exists now stays: without this, full collections walk it all and hold every request up (p99 at 64 connections
    33-72 ms, with it 16). What requests make has no cycles but for errors, so it is enough to look now and then: by
    default the collector looks after every 15 requests, at those in flight.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS, 10, 10)
