"""The protocol between the scheduler and a response cache, wherever the answers are kept.

    ResponseCache  the protocol
    ├── LocalCache  in the memory of the process that runs the models (local_cache.py)
    └── RedisCache  in a Redis server, which several servers share (redis/redis_cache.py)

Source: docs/spec/schedulers.md section 3.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from core.observability.metrics.snapshot import RemoteCacheMetrics, ResponseCacheMetrics
from core.response_cache.cached_response import CachedResponse

# Gets the response, or None if there is none or it did not come in time. Any thread; it must not raise.
OnFound = Callable[[CachedResponse | None], None]


class LookUp(Protocol):
    """A look-up in progress."""

    def give_up(self) -> None:
        """End it at once as one that found nothing, unless it has ended."""
        ...


class ResponseCache(Protocol):
    """Every method may be called on any thread, the hub's included, and returns within microseconds.

    Keys begin with a scope of the cache and have the form of `request_key`.
    """

    answers_later: bool
    """Whether `look_up` finds answers, and `get` none, because they are not in this process."""

    def open_scope(self, name: str, version: int, identity: Callable[[], bytes | None]) -> bytes:
        """The scope of one load of a version of a model; scopes of one cache have the same length.

        `identity` is a digest of all that decides the version's answers besides the request; None if that is not known.
        It may read the files of the model, so this method is for loader threads alone.
        """
        ...

    def close_scope(self, scope: bytes) -> None:
        """The version of that scope asks and answers no more: remove what only it could use."""
        ...

    def get(self, key: bytes) -> CachedResponse | None:
        """The response, if it is in this process."""
        ...

    def look_up(self, key: bytes, on_found: OnFound) -> LookUp | None:
        """Look for a response elsewhere; `on_found` is called once, on another thread, within the cache's budget.

        None: there is nobody to ask now, and `on_found` is not called.
        """
        ...

    def put(self, key: bytes, response: CachedResponse) -> None:
        """Keep a response, if there is room for it."""
        ...

    def holds(self, nbytes: int) -> bool:
        """Whether a response with outputs of `nbytes` bytes could be kept."""
        ...

    def metrics(self) -> ResponseCacheMetrics | RemoteCacheMetrics:
        """What the metrics page shows of it."""
        ...

    def close(self) -> None:
        """End its threads and connections. What is looked up now is not found."""
        ...
