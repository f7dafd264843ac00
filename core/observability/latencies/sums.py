"""The sums of the durations of all requests, which histograms and summaries show beside their distributions."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySums:
    """Nanoseconds, summed over the `success_count` successful requests; `failure_ns` over the failed ones.

    The durations of hits of the response cache are in `request_ns` and in `cache_hit_ns`.
    """

    success_count: int
    request_ns: int
    queue_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    failure_ns: int
    cache_hit_count: int = 0
    cache_hit_ns: int = 0
    cache_miss_count: int = 0
    cache_miss_ns: int = 0

    def since(self, before: LatencySums) -> LatencySums:
        """What was added after `before`."""
        added = {each.name: getattr(self, each.name) - getattr(before, each.name) for each in fields(self)}
        return LatencySums(**added)

    @property
    def compute_ns(self) -> int:
        return self.compute_input_ns + self.compute_infer_ns + self.compute_output_ns
