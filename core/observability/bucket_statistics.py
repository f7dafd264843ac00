"""Executions counted by the bucket to which their batch was padded.

Source: docs/ragged-batching.md.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BucketUse:
    """One execution in a bucket: `batch_size` rows of `length`, each 0 if it is not padded.

    `elements` are those of all inputs that the requests sent, `padding` those that were added.
    """

    batch_size: int
    length: int
    elements: int
    padding: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStatistics:
    """The executions in one bucket, with their elements and padding summed; see BucketUse."""

    batch_size: int
    length: int
    execution_count: int
    element_count: int
    padding_count: int


class BucketCounters:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], tuple[int, int, int]] = {}

    def count(self, use: BucketUse) -> None:
        key = (use.batch_size, use.length)
        executions, elements, padding = self._counts.get(key, (0, 0, 0))
        self._counts[key] = (executions + 1, elements + use.elements, padding + use.padding)

    def snapshot(self) -> tuple[BucketStatistics, ...]:
        """By ascending batch size and length."""
        return tuple(
            BucketStatistics(
                batch_size=batch_size,
                length=length,
                execution_count=executions,
                element_count=elements,
                padding_count=padding,
            )
            for (batch_size, length), (executions, elements, padding) in sorted(self._counts.items())
        )
