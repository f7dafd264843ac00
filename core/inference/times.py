"""The times of one answer, as the statistics count them.

Source: docs/spec/statistics-and-metrics.md section A (`queue`, `compute_input`, `compute_infer`, `compute_output`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from core.inference.close_reason import CloseReason
from core.inference.request import InferenceRequest, Parameter

ASKS = "timing"
"""The request parameter by which a client asks for the times as parameters of its response."""


class InferenceTimes(NamedTuple):
    """Nanoseconds. `batch_size` is the number of items in the execution, those of other requests included.

    `close_reason` is why the batch was closed; None for a request that was in no batch of its model.
    """

    queue_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    batch_size: int
    close_reason: CloseReason | None = None

    @classmethod
    def of(cls, numbers: Iterable[int], close_reason: CloseReason | None) -> InferenceTimes:
        """The times with those `numbers`. Raises TypeError for another number of them than five."""
        return cls._make((*numbers, close_reason))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The four durations and the size."""
        return self[:5]

    @classmethod
    def longest(cls, found: Iterable[InferenceTimes | None]) -> InferenceTimes | None:
        """The longest of each time and the largest batch, of requests that belong together; None without any times.

        The reason is that of the request which was queued for the longest time.
        """
        known = [times for times in found if times is not None]
        if not known:
            return None
        last = max(known, key=lambda times: times.queue_ns)
        return cls.of(map(max, zip(*[times.numbers for times in known], strict=True)), last.close_reason)

    def parameters(self) -> dict[str, Parameter]:
        """The times in whole microseconds and the reason, as parameters of a response."""
        parameters: dict[str, Parameter] = {
            "timing_queue_us": self.queue_ns // 1000,
            "timing_compute_input_us": self.compute_input_ns // 1000,
            "timing_compute_infer_us": self.compute_infer_ns // 1000,
            "timing_compute_output_us": self.compute_output_ns // 1000,
            "timing_batch_size": self.batch_size,
        }
        if self.close_reason is not None:
            parameters["timing_batch_close"] = self.close_reason.label
        return parameters


def asks_for_times(request: InferenceRequest) -> bool:
    """Whether the client wants the times as parameters. Any other value than true belongs to the model."""
    return request.parameters is not None and request.parameters.get(ASKS) is True
