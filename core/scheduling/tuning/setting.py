"""What the controller sets."""

from __future__ import annotations

from typing import NamedTuple

from core.scheduling.policy import BatchLimits

# A batch of a tuned model is closed this long before one of its requests would outlive its queue timeout: the thread
# that waits with it wakes later than it asked for.
_BEFORE_TIMEOUT_NS = 2_000_000


class BatchSetting(NamedTuple):
    """How long a batch may wait for requests, in nanoseconds, and how many items it may have."""

    delay_ns: int
    max_size: int

    def limits(self) -> BatchLimits:
        """The limits of a batch under this setting."""
        size = self.max_size
        return BatchLimits(size, frozenset((size,)), size, self.delay_ns, _BEFORE_TIMEOUT_NS)

    def differs_notably(self, other: BatchSetting) -> bool:
        """Whether a person should hear of the change: a quarter and 0.2 ms of the delay, or a quarter of the size."""
        delays = sorted((self.delay_ns, other.delay_ns))
        sizes = sorted((self.max_size, other.max_size))
        return delays[1] > max(1.25 * delays[0], delays[0] + 200_000) or sizes[1] > 1.25 * sizes[0]
