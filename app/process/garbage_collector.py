"""The configuration of Python's garbage collector."""

from __future__ import annotations

import gc

_ALLOCATIONS_WHILE_STARTING = 20_000
# An object takes up to 0.3 µs (a greenlet with its frames, not in the caches), and two batches are traversed at most.
_ALLOCATIONS_WHILE_SERVING = 1_500
_NEVER = 1 << 30
# Collections of young objects after which the exempt ones are counted: that reads all of them, 1 ms for 100,000.
_COUNTED_AFTER = 256
_MORE_THAN_BEFORE = 50_000

# Collections of young objects since the exempt ones were counted, and how many of those a full collection left.
_collections = 0
_left = 0


def collect_rarely() -> None:
    """Collect after many allocations. Call it before the imports of a server, whose objects stay: by default the
    collector would traverse them about 180 times, a tenth of the time until the server is ready."""
    gc.set_threshold(_ALLOCATIONS_WHILE_STARTING, 10, 10)


def keep_memory_shared() -> None:
    """Exempt all present objects from collection. Call it before a fork: a collection in the child would write into
    all of them, and the child would get its own copy of their pages (two HTTP workers: 25 MB)."""
    gc.freeze()


def settle_collector() -> None:
    """Exempt all present objects from collection, and those of later that survive two collections.

    So that no collection holds up requests for a millisecond, however many objects there are: 10,000 connections are
    300,000 objects, which a full collection would traverse in 50 ms. An exempt object goes when nothing refers to it;
    only garbage with reference cycles that was in use during two collections stays until `collect_exempt`: a Python
    model that was unloaded, or one of a hundred requests that went through Flask. Call it when all long-lived objects
    exist; it collects once in full.
    """
    _collect()
    # Each second collection is one of both younger generations, and what it leaves is exempt: the oldest one is empty.
    gc.set_threshold(_ALLOCATIONS_WHILE_SERVING, 0, _NEVER)
    if _exempt_survivors not in gc.callbacks:
        gc.callbacks.append(_exempt_survivors)


def collect_exempt() -> None:
    """Collect in full, the exempt objects too. It takes 10 to 50 ms: call it when no request would wait for it."""
    gc.unfreeze()
    _collect()


def is_much_exempt() -> bool:
    """Whether there are so many more exempt objects than after the last full collection that some may be garbage: half
    as many again, and 50,000. A server that is never idle then has to `collect_exempt` while requests wait."""
    global _collections
    if _collections < _COUNTED_AFTER:
        return False
    _collections = 0
    return gc.get_freeze_count() > _left + _left // 2 + _MORE_THAN_BEFORE


def _collect() -> None:
    global _collections, _left
    gc.collect()
    gc.freeze()
    _collections, _left = 0, gc.get_freeze_count()


def _exempt_survivors(phase: str, found: dict[str, int]) -> None:
    global _collections
    if phase == "stop" and found["generation"] == 1:
        gc.freeze()
        _collections += 1
