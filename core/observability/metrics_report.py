"""The content of a line of the metrics log, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Unit(Enum):
    """The unit of a figure; the value is CloudWatch's name for it."""

    COUNT = "Count"
    MILLISECONDS = "Milliseconds"
    PERCENT = "Percent"
    BYTES = "Bytes"


class Meaning(NamedTuple):
    """The unit of a figure, and its description in the documentation."""

    unit: Unit
    text: str


FIGURES: dict[str, Meaning] = {
    "ready": Meaning(Unit.COUNT, "1 if the server is ready, otherwise 0"),
    "request_success": Meaning(Unit.COUNT, "requests that were answered"),
    "request_failure": Meaning(Unit.COUNT, "requests that failed; the next four are the same by reason"),
    "request_failure_rejected": Meaning(Unit.COUNT, "the queue was full, or the request waited too long"),
    "request_failure_canceled": Meaning(Unit.COUNT, "the client gave up"),
    "request_failure_backend": Meaning(Unit.COUNT, "the execution failed"),
    "request_failure_other": Meaning(Unit.COUNT, "anything else"),
    "inference_count": Meaning(Unit.COUNT, "items of the batches of requests"),
    "execution_count": Meaning(Unit.COUNT, "executions of the model"),
    "pending_request_count": Meaning(Unit.COUNT, "requests that wait in the queue at the end of the interval"),
    **{
        f"{part}_duration_{kind}": Meaning(Unit.MILLISECONDS, text)
        for part, what in (
            ("request", "from the request to its response"),
            ("queue", "in the queue"),
            ("compute", "from the start to the end of its execution"),
        )
        for kind, text in (
            ("mean", f"{what}, the mean"),
            ("p50", "the median"),
            ("p99", "the 99th percentile"),
        )
    },
    "cpu_utilization": Meaning(Unit.PERCENT, "of all processors, in percent"),
    "cpu_memory_used_bytes": Meaning(Unit.BYTES, "of the machine"),
    "cpu_memory_utilization": Meaning(Unit.PERCENT, "of the machine, in percent"),
    "gpu_utilization": Meaning(Unit.PERCENT, "of the busiest GPU, in percent"),
    "gpu_memory_utilization": Meaning(Unit.PERCENT, "of the fullest GPU, in percent"),
}
"""Every figure that a report may have, in its order."""

OF_SERVER = frozenset(name for name in FIGURES if name.startswith(("ready", "cpu_", "gpu_")))
"""The figures that only the report of the server has."""

RESERVED_NAMES = frozenset({"_aws", "model", "namespace", *FIGURES})
"""The names that a person may not choose for a dimension."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number; `name` is in FIGURES."""

    name: str
    value: int | float

    @property
    def unit(self) -> Unit:
        return FIGURES[self.name].unit


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one model, over all its versions, or of the whole server: then `model` is None.

    `namespace` is the model repository of the model, empty unless model namespacing is on.
    """

    model: str | None
    figures: tuple[Figure, ...]
    namespace: str = ""
