"""The callers of a model, and whether all of them wait for it: then nobody is left who could add to a batch.

It is the one place that decides whether a batch is closed before its queue delay is over because of that.
Source: docs/spec/schedulers.md section 3.2, "When every caller waits".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from core.inference.caller import Caller
from core.inference.pending_request import PendingRequest

SETTLED_NS: Final = 1_000_000_000
SETTLED_DELAYS: Final = 10
"""If so many delays have passed without a new caller, and a second, none is expected within the next delay."""
# From so many known callers on, those that have gone are looked for also while new ones come.
_MANY: Final = 256


class Callers:
    """Guarded by the scheduler's lock.

    A caller is one from its first request for the model to the end of its connection, also while it sends nothing. A
    request without a caller may be followed by others at any time, so for a moment it counts as a new caller does.
    """

    __slots__ = ("_known", "_looks_at", "_looks_ns", "_settled_ns", "_settles_ns")

    def __init__(self, delay_ns: int) -> None:
        """`delay_ns` is the queue delay of the model."""
        self._settles_ns = max(SETTLED_NS, SETTLED_DELAYS * delay_ns)
        self._known: set[Caller] = set()
        # From when on no new caller is expected; when, or with how many known ones, to look for those that have gone.
        self._settled_ns = 0
        self._looks_ns = 0
        self._looks_at = _MANY

    def note(self, pending: PendingRequest, now_ns: int) -> None:
        """Note that the caller of `pending`, if it has one, waits."""
        caller = pending.request.caller
        if caller is None:
            self._settled_ns = now_ns + self._settles_ns
        elif caller not in self._known:
            # Callers that ask once and go never let the model settle, and must not stay known.
            if len(self._known) >= self._looks_at:
                self._look()
            self._known.add(caller)
            self._settled_ns = now_ns + self._settles_ns

    def may_all_wait(self, requests: int, now_ns: int) -> bool:
        """Whether `all_wait` can be true while so many `requests` are queued."""
        return now_ns >= self._settled_ns and (requests >= len(self._known) or now_ns >= self._looks_ns)

    def all_wait(self, requests: Sequence[PendingRequest], now_ns: int) -> bool:
        """Whether `requests`, which nobody has cancelled, are those of all callers."""
        if now_ns < self._settled_ns:
            return False
        if now_ns >= self._looks_ns:
            self._looks_ns = now_ns + SETTLED_NS
            self._look()
        if len(requests) < len(self._known):
            return False
        return self._known <= {pending.request.caller for pending in requests}

    def _look(self) -> None:
        """Forget the callers that have gone."""
        self._known = {caller for caller in self._known if caller.is_open}
        self._looks_at = max(_MANY, 2 * len(self._known))
