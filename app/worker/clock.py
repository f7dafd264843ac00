"""The worker's coarse clock, which is read often and set rarely."""

from __future__ import annotations

import time
from email.utils import formatdate


class CoarseClock:
    """Monotonic seconds, and the `Date` header with the end of a head, as of the last `tick()`. Hub thread only.

    A request needs the time only for timeouts of seconds, so it reads an attribute instead of the clock.
    """

    __slots__ = ("date_end", "now")

    now: float
    date_end: bytes

    def __init__(self) -> None:
        self.tick()

    def tick(self) -> None:
        """Set the present time. The worker calls this once per tick of its main loop."""
        self.now = time.monotonic()
        self.date_end = f"Date: {formatdate(usegmt=True)}\r\n\r\n".encode()
