"""What was observed of a batcher in a window of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from core.inference.pending_request import PendingRequest

# Latencies are counted in buckets that are a 32nd of their value wide.
_BITS = 5


@dataclass(slots=True)
class Window:
    """Sums over the executions that ended in it. Durations are nanoseconds.

    `sizes` are items, `squares` those of the sizes of executions, `products` each size times its duration: enough to
    tell what an execution costs and what an item costs. `latencies` counts requests by bucket: from their arrival to
    the end of their execution.
    """

    begin_ns: int
    end_ns: int = 0
    requests: int = 0
    executions: int = 0
    sizes: int = 0
    squares: int = 0
    busy_ns: int = 0
    products: int = 0
    latencies: dict[int, int] = field(default_factory=dict)

    def note(self, requests: Sequence[PendingRequest], begin_ns: int, end_ns: int) -> None:
        """Add an execution of `requests`."""
        size = 0
        latencies = self.latencies
        for pending in requests:
            size += pending.batch_size or 1
            bucket = _bucket(end_ns - (pending.request.arrived_ns or pending.enqueue_ns))
            latencies[bucket] = latencies.get(bucket, 0) + 1
        duration_ns = end_ns - begin_ns
        self.end_ns = max(self.end_ns, end_ns)
        self.requests += len(requests)
        self.executions += 1
        self.sizes += size
        self.squares += size * size
        self.busy_ns += duration_ns
        self.products += size * duration_ns

    @property
    def duration_ns(self) -> int:
        return max(1, self.end_ns - self.begin_ns)

    @property
    def mean_size(self) -> float:
        return self.sizes / self.executions

    def percentile_ns(self, share: float) -> int:
        """The latency that at most 1 - `share` of the requests exceed, up to a 32nd too much; 0 without requests."""
        beyond = self.requests * (1 - share)
        for bucket in sorted(self.latencies, reverse=True):
            beyond -= self.latencies[bucket]
            if beyond < 0:
                return _upper_end(bucket)
        return 0


def _bucket(latency_ns: int) -> int:
    shift = max(0, latency_ns.bit_length() - _BITS - 1)
    return (shift << _BITS) + (latency_ns >> shift)


def _upper_end(bucket: int) -> int:
    shift = max(0, (bucket >> _BITS) - 1)
    return (bucket - (shift << _BITS) + 1 << shift) - 1
