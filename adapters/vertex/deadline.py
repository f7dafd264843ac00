"""The time that an answer may take: what is still queued when it is over does not run.

Source: spec/vertex.md section (a) A4 (timeouts), native translation, point 6.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Now = Callable[[], float]
ClientGone = Callable[[], bool]


class Deadline:
    """Asked as the bridge asks whether the client is gone: true when it is, or when `seconds` have passed."""

    __slots__ = ("_client_gone", "_end", "_now")

    def __init__(self, seconds: float, client_gone: ClientGone | None, now: Now = time.monotonic) -> None:
        self._client_gone = client_gone
        self._now = now
        self._end = now() + seconds

    @property
    def has_passed(self) -> bool:
        return self._now() >= self._end

    def __call__(self) -> bool:
        return self.has_passed or (self._client_gone is not None and self._client_gone())
