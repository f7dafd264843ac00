"""What an execution takes, learnt from those that were observed."""

from __future__ import annotations

from core.scheduling.tuning.window import Window

# After a window the earlier ones count this much less: a change is learnt within some windows.
_KEEPS = 0.7
# Sizes that vary less than this (their variance) do not tell what one item more costs.
_LEAST_VARIANCE = 0.25


class ExecutionCost:
    """A line through the observed sizes and durations: `fixed_ns` for an execution and `item_ns` for each of its items.

    As long as all executions had nearly the same size, an item counts as free: larger batches are tried, then known.
    """

    __slots__ = ("_count", "_durations", "_products", "_sizes", "_squares", "fixed_ns", "item_ns")

    def __init__(self) -> None:
        self._count = self._sizes = self._squares = self._durations = self._products = 0.0
        self.fixed_ns = 0.0
        self.item_ns = 0.0

    def learn(self, window: Window) -> None:
        """Add the executions of `window`, which has at least one."""
        self._count = _KEEPS * self._count + window.executions
        self._sizes = _KEEPS * self._sizes + window.sizes
        self._squares = _KEEPS * self._squares + window.squares
        self._durations = _KEEPS * self._durations + window.busy_ns
        self._products = _KEEPS * self._products + window.products
        size, duration = self._sizes / self._count, self._durations / self._count
        variance = self._squares / self._count - size * size
        covariance = self._products / self._count - size * duration
        slope = covariance / variance if variance > _LEAST_VARIANCE else 0.0
        self.item_ns = min(max(slope, 0.0), duration / size)
        self.fixed_ns = duration - self.item_ns * size

    def of(self, size: float) -> float:
        """The nanoseconds that an execution of `size` items takes."""
        return self.fixed_ns + self.item_ns * size
