"""The metrics log: a line for the server and for each model after every interval, for CloudWatch or Cloud Logging."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from itertools import pairwise
from typing import NamedTuple, TextIO

from trident.core.observability.hardware import HardwareReading
from trident.core.observability.log import print_line, stdout
from trident.core.observability.statistics import FailureReason, MetricsSnapshot, ModelMetrics
from trident.core.options import COMPUTE, QUEUE, REQUEST


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


_Figures = Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one model, over all its versions, or of the whole server: then `model` is None.

    Their names are in FIGURES. `namespace` is the model repository of the model, empty unless model namespacing is on.
    """

    model: str | None
    figures: _Figures
    namespace: str = ""


# Source: docs/spec/metrics-log.md.


_log = logging.getLogger("trident.observability")
_CLOSE_WITHIN_S = 2.0
# Writes a report on one line without its end; the number is the wall clock's time in ns.
Format = Callable[[Report, int], str]


class MetricsLog:
    """Writes from `start` to `close`, on one native daemon thread. Made in the process that has the engine.

    While stdout has no reader, the thread waits, and nothing else; the next interval is as long as it has waited.
    """

    def __init__(
        self,
        read: Callable[[], MetricsSnapshot],
        is_ready: Callable[[], bool],
        format: Format,
        interval_s: float,
        *,
        out: TextIO | None = None,
    ) -> None:
        """`read` and `is_ready` are called on the thread. `out` replaces stdout."""
        self._read = read
        self._is_ready = is_ready
        self._format = format
        self._interval_s = interval_s
        self._out = out
        self._intervals = Intervals()
        self._is_broken = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trident-metrics-log", daemon=True)

    def start(self) -> None:
        """Begin the first interval; once only."""
        self._thread.start()

    def close(self) -> None:
        """End the last interval and write it. Call it while the models still have their counts; a second call, or one
        without a start, does nothing.
        """
        if not self._closing.is_set() and self._thread.is_alive():
            self._closing.set()
            # A reader of stdout that has stopped to read would hold the thread up for ever.
            self._thread.join(_CLOSE_WITHIN_S)

    def _run(self) -> None:
        due = time.monotonic() + self._interval_s
        while not self._closing.wait(max(0.0, due - time.monotonic())):
            self._write()
            # Without a drift, and without the intervals for which the process was stopped.
            due = max(due + self._interval_s, time.monotonic())
        self._write()

    def _write(self) -> None:
        reports = self._intervals.reports(self._read(), is_ready=self._is_ready())
        now_ns = time.time_ns()
        try:
            for report in reports:
                print_line(self._format(report, now_ns), self._out or stdout())
        except (OSError, ValueError) as error:  # a closed pipe, a full disk; a closed stream
            if not self._is_broken:
                _log.error("the metrics cannot be written to stdout: %s; they are lost until they can", error)
            self._is_broken = True
        else:
            self._is_broken = False


_Version = tuple[str, str, int]


class Intervals:
    """Keeps the last snapshot. One thread at a time."""

    def __init__(self) -> None:
        self._before: dict[_Version, ModelMetrics] = {}

    def reports(self, snapshot: MetricsSnapshot, *, is_ready: bool) -> list[Report]:
        """The report of the server, and one for each model that serves, since the last call or the start.

        They are there although nothing has happened: an alarm on missing data must only mean that the server is gone.
        """
        total: Counter[_Key] = Counter()
        models: defaultdict[tuple[str, str], Counter[_Key]] = defaultdict(Counter)
        now = {(entry.namespace or "", entry.model, entry.version): entry for entry in snapshot.models}
        for key, entry in now.items():
            activity = activity_since(self._before.get(key), entry)
            total.update(activity)
            models[key[:2]].update(activity)
        self._before = now
        figures = {"ready": int(is_ready), **figures_of(total), **_hardware_figures(snapshot.hardware)}
        return [
            Report(None, figures),
            *(
                Report(model, figures_of(activity), namespace)
                for (namespace, model), activity in sorted(models.items())
            ),
        ]


def _hardware_figures(hardware: HardwareReading) -> _Figures:
    found: dict[str, int | float] = {}
    if hardware.cpu is not None:
        found["cpu_utilization"] = _percent(hardware.cpu.utilization)
        found["cpu_memory_used_bytes"] = hardware.cpu.memory_used
        found["cpu_memory_utilization"] = _percent(hardware.cpu.memory_used / max(1, hardware.cpu.memory_total))
    utilizations = [gpu.utilization for gpu in hardware.gpus if gpu.utilization is not None]
    if utilizations:
        found["gpu_utilization"] = _percent(max(utilizations))
    shares = [gpu.memory_used / gpu.memory_total for gpu in hardware.gpus if gpu.memory_total and gpu.memory_used]
    if shares:
        found["gpu_memory_utilization"] = _percent(max(shares))
    return found


def _percent(share: float) -> float:
    return round(share * 100, 2)


_HISTOGRAMS = {"request": REQUEST, "queue": QUEUE, "compute": COMPUTE}
_PERCENTILES = (50, 99)
_NS_PER_MS = 1e6
_MS_PER_S = 1000
# Two bounds of a histogram, in seconds.
_Bucket = tuple[float, float]
# A count has the name of its figure. The durations of successful requests, in ns, have that of their part of
# _HISTOGRAMS, and the requests between two bounds that name and the bounds.
_Key = str | tuple[str, _Bucket]
_FAILURES = {reason: f"request_failure_{reason.value.lower()}" for reason in FailureReason}
_COUNTS = ("inference_count", "execution_count", "pending_request_count")


def activity_since(before: ModelMetrics | None, now: ModelMetrics) -> Counter[_Key]:
    """Return the activity since `before`, or all of it if the version is new or was loaded again. They may be added."""
    total = _total(now)
    if before is None or (
        before.load_duration_secs != now.load_duration_secs
        or before.statistics.request_success > now.statistics.request_success
    ):
        return total
    activity = total.copy()
    activity.subtract(_total(before))
    activity["pending_request_count"] = now.statistics.pending
    for part in _HISTOGRAMS:
        if any(count < 0 for count in _buckets(activity, part).values()):  # the histograms were switched on anew
            for bounds in _buckets(activity, part):
                activity[part, bounds] = total[part, bounds]
    return activity


def _total(entry: ModelMetrics) -> Counter[_Key]:
    statistics = entry.statistics
    found: Counter[_Key] = Counter(
        {
            "request_success": statistics.request_success,
            **{name: statistics.failures(reason) for reason, name in _FAILURES.items()},
            "inference_count": statistics.inference_count,
            "execution_count": statistics.execution_count,
            "pending_request_count": statistics.pending,
            "request": statistics.request_ns,
            "queue": statistics.queue_ns,
            "compute": statistics.compute_input_ns + statistics.compute_infer_ns + statistics.compute_output_ns,
        }
    )
    parts = {name: part for part, name in _HISTOGRAMS.items()}
    for histogram in entry.latencies.histograms:
        if histogram.name in parts:
            bounds = pairwise((0.0, *histogram.bounds, float("inf")))
            for between, count in zip(bounds, histogram.counts, strict=True):
                found[parts[histogram.name], between] = count
    return found


def _buckets(activity: Counter[_Key], part: str) -> dict[_Bucket, int]:
    return {key[1]: count for key, count in activity.items() if isinstance(key, tuple) and key[0] == part}


def figures_of(activity: Counter[_Key]) -> _Figures:
    """Counts are always there; durations only if there were requests, and percentiles only with histograms."""
    successes = activity["request_success"]
    found: dict[str, int | float] = {
        "request_success": successes,
        "request_failure": sum(activity[name] for name in _FAILURES.values()),
        **{name: activity[name] for name in (*_FAILURES.values(), *_COUNTS)},
    }
    for part in _HISTOGRAMS if successes > 0 else ():
        found[f"{part}_duration_mean"] = round(activity[part] / successes / _NS_PER_MS, 4)
        buckets = _buckets(activity, part)
        for percent in _PERCENTILES if any(buckets.values()) else ():
            found[f"{part}_duration_p{percent}"] = round(quantile(buckets, percent / 100) * _MS_PER_S, 4)
    return found


def quantile(buckets: dict[_Bucket, int], fraction: float) -> float:
    """The value at `fraction` of the counts, which are not all 0: by proportion within its bucket, as in Prometheus.

    Of the last bucket, which has no upper bound, it is the lower bound.
    """
    rank = fraction * sum(buckets.values())
    for (lower, upper), count in sorted(buckets.items(), key=lambda item: (item[0][1], item[0][0])):
        if rank <= count and count:
            return lower if upper == float("inf") else lower + (upper - lower) * rank / count
        rank -= count
    raise ValueError("there is nothing in the buckets")


# Source: docs/spec/metrics-log.md section 2.


LOGGER = "trident.metrics"


def cloud_logging_line(labels: Mapping[str, str], report: Report, time_ns: int) -> str:
    """An entry on one line, with `labels` beside those of the report; `time_ns` is the wall clock's time."""
    when = datetime.fromtimestamp(time_ns // 1000 / 1_000_000, UTC)
    figures = report.figures
    of = "the server" if report.model is None else f"model '{report.model}'"
    message = f"{of}: {figures['request_success']} requests answered, {figures['request_failure']} failed"
    return _json(
        {
            "severity": "INFO",
            "time": f"{when:%Y-%m-%dT%H:%M:%S.%fZ}",
            "message": message,
            "logger": LOGGER,
            "scope": "server" if report.model is None else "model",
            "logging.googleapis.com/labels": _with_model(labels, report),
            "metrics": figures,
        }
    )


def _with_model(labels: Mapping[str, str], report: Report) -> dict[str, str]:
    own = {"model": report.model, "namespace": report.namespace}
    return {**labels, **{name: value for name, value in own.items() if value}}


def _json(document: Mapping[str, object]) -> str:
    return json.dumps(document, separators=(",", ":"))


# Source: docs/spec/metrics-log.md section 1.


def embedded_metrics_line(namespace: str, dimensions: Mapping[str, str], report: Report, time_ns: int) -> str:
    """A document for `namespace`, with `dimensions` beside those of the report; `time_ns` is the wall clock's time."""
    dimensions = _with_model(dimensions, report)
    directive = {
        "Namespace": namespace,
        "Dimensions": [list(dimensions)],
        "Metrics": [{"Name": name, "Unit": FIGURES[name].unit.value} for name in report.figures],
    }
    return _json(
        {
            "_aws": {"Timestamp": time_ns // 1_000_000, "CloudWatchMetrics": [directive]},
            **{name: _ascii(value) for name, value in dimensions.items()},
            **report.figures,
        }
    )


def _ascii(value: str) -> str:
    """A value of a dimension is printable ASCII."""
    return "".join(each if " " <= each <= "~" else each.encode("unicode_escape").decode() for each in value)
