"""The reports of an interval, from the snapshots at its beginning and its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from core.observability.hardware.gauges import HardwareReading
from core.observability.metrics.snapshot import MetricsSnapshot, ModelMetrics
from core.observability.metrics_log.activity import Activity
from core.observability.metrics_log.report import Figure, Report

_Version = tuple[str, str, int]


class Intervals:
    """Keeps the last snapshot. One thread at a time."""

    def __init__(self) -> None:
        self._before: dict[_Version, ModelMetrics] = {}

    def reports(self, snapshot: MetricsSnapshot, *, is_ready: bool) -> list[Report]:
        """The report of the server, and one for each model that serves, since the last call or the start.

        They are there although nothing has happened: an alarm on missing data must only mean that the server is gone.
        """
        total = Activity()
        models: defaultdict[tuple[str, str], Activity] = defaultdict(Activity)
        now = {_key(entry): entry for entry in snapshot.models}
        for key, entry in now.items():
            activity = Activity.since(self._before.get(key), entry)
            total += activity
            models[key[:2]] += activity
        self._before = now
        figures = (
            Figure("ready", int(is_ready)),
            *total.figures(),
            *_hardware_figures(snapshot.hardware),
        )
        return [
            Report(None, figures),
            *(
                Report(model, tuple(activity.figures()), namespace)
                for (namespace, model), activity in sorted(models.items())
            ),
        ]


def _key(entry: ModelMetrics) -> _Version:
    return entry.namespace or "", entry.model, entry.version


def _hardware_figures(hardware: HardwareReading) -> Iterator[Figure]:
    if hardware.cpu is not None:
        yield Figure("cpu_utilization", _percent(hardware.cpu.utilization))
        yield Figure("cpu_memory_used_bytes", hardware.cpu.memory_used)
        share = hardware.cpu.memory_used / max(1, hardware.cpu.memory_total)
        yield Figure("cpu_memory_utilization", _percent(share))
    utilizations = [gpu.utilization for gpu in hardware.gpus if gpu.utilization is not None]
    if utilizations:
        yield Figure("gpu_utilization", _percent(max(utilizations)))
    shares = [gpu.memory_used / gpu.memory_total for gpu in hardware.gpus if gpu.memory_total and gpu.memory_used]
    if shares:
        yield Figure("gpu_memory_utilization", _percent(max(shares)))


def _percent(share: float) -> float:
    return round(share * 100, 2)
