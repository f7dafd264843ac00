"""Why a batch was closed: what decided that no further request joins it, and that it is executed now.

Source: docs/spec/schedulers.md section 3.2, "Why a batch was closed".
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class CloseReason(IntEnum):
    """The values are consecutive and begin at 0, so that they index counters."""

    IDLE = 0
    """An instance was free, and there was nothing to wait for."""
    FULL = 1
    """It had the greatest size, or the next request did not fit."""
    PREFERRED = 2
    """It had a preferred size, or the next request would have made it larger than all of them."""
    DELAY = 3
    """The queue delay of its oldest request was over."""
    DEADLINE = 4
    """One of its requests would have outlived its queue timeout."""
    PRIORITY = 5
    """It had its size, and younger requests of a higher priority level took the place of one that waits on."""
    SHAPE = 6
    """The next request has other shapes or inputs, and cannot be in the same batch."""
    SEQUENCE = 7
    """The sequence batcher closed it."""
    CALLERS = 8
    """Every caller of the model waited already, so that none could add to it."""

    @property
    def label(self) -> str:
        """As metrics, statistics and answers show it."""
        return self.name.lower()


# In Python 3.11 a member costs a function call when it is looked up on its class.
IDLE: Final = CloseReason.IDLE
FULL: Final = CloseReason.FULL
PREFERRED: Final = CloseReason.PREFERRED
DELAY: Final = CloseReason.DELAY
DEADLINE: Final = CloseReason.DEADLINE
PRIORITY: Final = CloseReason.PRIORITY
SHAPE: Final = CloseReason.SHAPE
SEQUENCE: Final = CloseReason.SEQUENCE
CALLERS: Final = CloseReason.CALLERS
