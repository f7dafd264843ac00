"""The times of one answer, as the statistics count them, and who is told of them.

Source: docs/spec/statistics-and-metrics.md section A (`queue`, `compute_input`, `compute_infer`, `compute_output`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from core.inference.request import InferenceRequest, Parameter

ASKS = "timing"
"""The request parameter by which a client asks for the times as parameters of its response."""


class TimesFor(Enum):
    """Whom the engine notes the times for. CLIENTS includes the log."""

    NOBODY = "nobody"
    LOG = "log"
    CLIENTS = "clients"


class InferenceTimes(NamedTuple):
    """Nanoseconds. `batch_size` is the number of items in the execution, those of other requests included."""

    queue_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    batch_size: int

    @classmethod
    def longest(cls, found: Iterable[InferenceTimes | None]) -> InferenceTimes | None:
        """The longest of each time and the largest batch, of requests that belong together; None without any times."""
        known = [times for times in found if times is not None]
        return cls(*map(max, zip(*known, strict=True))) if known else None

    def parameters(self) -> dict[str, Parameter]:
        """The times in whole microseconds, as parameters of a response."""
        return {
            "timing_queue_us": self.queue_ns // 1000,
            "timing_compute_input_us": self.compute_input_ns // 1000,
            "timing_compute_infer_us": self.compute_infer_ns // 1000,
            "timing_compute_output_us": self.compute_output_ns // 1000,
            "timing_batch_size": self.batch_size,
        }


def asks_for_times(request: InferenceRequest) -> bool:
    """Whether the client wants the times as parameters. Any other value than true belongs to the model."""
    return request.parameters is not None and request.parameters.get(ASKS) is True
