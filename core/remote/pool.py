"""Several engines as one for a front end: the choice of an engine for a request, and merged reports.

Source: docs/processes.md "Several engines"; docs/spec/statistics-and-metrics.md.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from hashlib import blake2b
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from trident.core.config.spec import ModelSpec
from trident.core.engine.protocol import Engine
from trident.core.errors import InvalidRequest, ModelNotFound, ServerError
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import RegionInput
from trident.core.inference.tensors import Array
from trident.core.interprocess.frames import LARGE
from trident.core.lifecycle.state import IndexEntry, ModelState, Phase, ServingPhase, VersionOverview
from trident.core.observability.hardware import HardwareReading
from trident.core.observability.history import (
    Activity,
    VersionHistory,
    VersionRequests,
    merged_history,
    merged_requests,
)
from trident.core.observability.latencies import Exemplar, HistogramMetrics, SummaryMetrics
from trident.core.observability.statistics import (
    BatchStatistics,
    BatchTuning,
    BucketStatistics,
    CustomFamilyMetrics,
    CustomSeriesMetrics,
    DemandModel,
    DemandOverview,
    DeviceMemoryMetrics,
    LetGo,
    LoadMetrics,
    MetricsSnapshot,
    ModelMetrics,
    ModelProcessMetrics,
    RemoteCacheMetrics,
    ResourceMetrics,
    ResponseStatistics,
    StatisticsSnapshot,
    VersionStateMetrics,
    VersionStatistics,
)
from trident.core.observability.switches import TraceGate
from trident.core.observability.tracing.trace import TraceEvent, TraceRecord
from trident.core.remote.calls import CALLS, EngineGone, EngineMethod, sent_by
from trident.core.remote.changes import Broadcast, ControlChange, ModelAssignment
from trident.core.remote.connection import Link
from trident.core.remote.engine_client import RemoteEngine, RemoteModel

# The number of a held version in the first engine; clients' versions are greater.
_FIRST_HOLD = -2
_FIRST_TRACE = 1
# How long a front end that starts waits for engines that cannot be reached.
_MISSING_SECONDS = 10.0
_LOOK_SECONDS = 0.1
# The order in which engines get ready.
_PHASES = (Phase.ENGINE_DOWN, Phase.STARTING, Phase.LOADING, Phase.FAILED, Phase.EXITING, Phase.READY)
_STILL_LOADING = frozenset((Phase.STARTING, Phase.LOADING))
_IN_FLIGHT = attrgetter("in_flight")
MakeLink = Callable[[], Link]
T = TypeVar("T")


def home_of(key: str, engines: Sequence[int]) -> int:
    """Return the position in `engines`, which are numbers in the server, of the engine with the state of `key`.

    All front ends choose the same one. If an engine is missing, only its own keys move (rendezvous hashing).
    """
    text = key.encode("utf-8", "replace")
    return max(range(len(engines)), key=lambda position: blake2b(b"%d %s" % (engines[position], text)).digest())


class Replica(NamedTuple):
    """A model in one engine, and the engine's number in the server."""

    number: int
    engine: RemoteEngine
    model: RemoteModel


class PooledModel:
    """The model of all `candidates`, until the engines or their models change. Any thread may submit.

    A request of a sequence goes to the engine with its state. With `is_pinned` one engine gets all requests. Any other
    request goes to the engine whose memory has its input, or to the one with the fewest requests in flight.
    """

    cached_answer: None = None

    def __init__(self, candidates: Sequence[Replica], *, is_pinned: bool) -> None:
        """`candidates` is not empty."""
        self._candidates = list(candidates)
        first = candidates[0].model
        self.spec: ModelSpec = first.spec
        self._numbers = [each.number for each in candidates]
        self._requests = itertools.count()
        if is_pinned:
            self._candidates = [self._candidates[home_of(f"model {first.spec.name}", self._numbers)]]

    def submit(self, pending: PendingRequest) -> None:
        self._chosen(pending.request).model.submit(pending)

    def _chosen(self, request: InferenceRequest) -> Replica:
        candidates = self._candidates
        if len(candidates) == 1:
            return candidates[0]
        if request.correlation_id:
            return candidates[home_of(f"sequence {request.correlation_id}", self._numbers)]
        if type(request.inputs) is list:
            large = (each for each in request.inputs if type(each) is not RegionInput and each.nbytes >= LARGE)
            first = next(large, None)
            if first is not None:
                for candidate in candidates:
                    if candidate.engine.has_in_memory(first.data):  # which reads it in place
                        return candidate
        # The one with the fewest requests; of equal ones another first with each request.
        start = next(self._requests)
        places = [(start + offset) % len(candidates) for offset in range(len(candidates))]
        return candidates[min(places, key=[each.engine.in_flight for each in candidates].__getitem__)]


class EnginePool:
    """The engines that listen at `paths`. Any thread may call any method; a call blocks only its thread or greenlet.

    Requests go to the engines that have their model ready; the loss of one fails only the requests that it has. All
    engines make a change; with `by_model`, the one engine that has the model makes those of a model. The processes of
    the server share `folder` for that.
    """

    def __init__(
        self,
        paths: Sequence[str],
        make_link: MakeLink,
        memory_bytes: int,
        folder: Path,
        *,
        keeps_answers: bool,
        by_model: bool = False,
    ) -> None:
        """`keeps_answers`: each engine has its own response cache. `by_model`: each model is in one engine."""
        self._links = [make_link() for _ in paths]
        self._engines = [
            RemoteEngine(path, link, memory_bytes, self._changed) for path, link in zip(paths, self._links, strict=True)
        ]
        self._keeps_answers = keeps_answers
        self._broadcast = Broadcast(self._engines, folder, self._wait)
        self._assignment = ModelAssignment(self._engines, folder, self._wait) if by_model else None
        # The errors that say least about a model: its engine is gone; or, with `by_model`, it is in another.
        self._dull = (ModelNotFound, InvalidRequest) if by_model else EngineGone
        self._models: dict[tuple[str, int], PooledModel] = {}
        self._is_exiting = False
        self._was_complete = False
        self._started = time.monotonic()
        self.trace_gate = TraceGate()

    def _wait(self, seconds: float) -> None:
        self._links[0].mailbox().get(seconds)

    def start(self) -> None:
        """Begin to connect to all engines, and then finish the changes that a front end had begun when it died."""
        self._started = time.monotonic()
        for engine in self._engines:
            engine.start()
        if self._broadcast.log.unfinished():
            threading.Thread(target=self._finish, name="trident-unfinished", daemon=True).start()

    def _finish(self) -> None:
        while self._awaited() and not self._is_exiting:
            time.sleep(_LOOK_SECONDS)
        self._broadcast.finish_unfinished()

    def begin_exit(self) -> None:
        """Become neither live nor ready; requests are still served."""
        self._is_exiting = True
        for engine in self._engines:
            engine.begin_exit()

    def close(self) -> None:
        """End all connections; every request and call that still waits gets EngineGone."""
        self._is_exiting = True
        for engine in self._engines:
            engine.close()

    def allocate(self, size: int) -> Array | None:
        """Return memory shared with the least busy engine for a body of `size` bytes; it then gets the request."""
        for engine in sorted(self._engines, key=_IN_FLIGHT):
            memory = engine.allocate(size)
            if memory is not None:
                return memory
        return None

    def release_memory(self) -> None:
        """Return unused shared memory to the system."""
        for engine in self._engines:
            engine.release_memory()

    def _changed(self) -> None:
        """Drop cached models after a change of an engine's state. A link's thread."""
        self._models = {}
        gates = [engine.trace_gate for engine in self._engines]
        self.trace_gate.is_open = any(gate.is_open for gate in gates)
        self.trace_gate.reads_context = any(gate.reads_context for gate in gates)
        if all(engine.is_ready() for engine in self._engines):
            self._was_complete = True

    # --- models and requests

    def model(self, name: str, version: int = -1) -> PooledModel | RemoteModel:
        found = self._models.get((name, version))
        if found is not None:
            return found
        if version <= _FIRST_HOLD:
            return self._holder_of(version).model(name, version)
        models = self._models
        candidates = []
        errors: list[ServerError] = []
        for number, engine in enumerate(self._engines):
            try:
                candidates.append(Replica(number, engine, engine.model(name, version)))
            except ServerError as error:
                errors.append(error)
        if not candidates:
            raise self._most_telling(errors)
        spec = candidates[0].model.spec
        is_pinned = spec.preserves_ordering or (self._keeps_answers and spec.response_cache)
        found = models[name, version] = PooledModel(candidates, is_pinned=is_pinned)
        return found

    def model_nowait(self, name: str, version: int = -1) -> PooledModel | None:
        return self._models.get((name, version))

    def hold_version(self, name: str, version: int = -1) -> int:
        by_load = sorted(self._engines, key=_IN_FLIGHT)
        return self._first_answer(by_load, lambda engine: engine.hold_version(name, version))

    def release_version(self, name: str, number: int) -> None:
        self._holder_of(number).release_version(name, number)

    def _holder_of(self, number: int) -> RemoteEngine:
        return self._engines[(_FIRST_HOLD - number) % len(self._engines)]

    def trace_answered(self, number: int, ahead: Sequence[TraceEvent], behind: Sequence[TraceEvent]) -> None:
        engine = self._engines[(number - _FIRST_TRACE) % len(self._engines)]
        engine.trace_answered(number, ahead, behind)

    # --- asked of the first engine that answers

    def _ask_one(self, call: EngineMethod, arguments: Sequence[object]) -> Any:
        """Return the result of the first engine that does not fail. Raises the most telling error if all fail."""
        return self._first_answer(self._engines, lambda engine: engine.begin(call, arguments).result())

    def _first_answer(self, engines: Sequence[RemoteEngine], ask: Callable[[RemoteEngine], T]) -> T:
        errors: list[ServerError] = []
        for engine in engines:
            try:
                return ask(engine)
            except ServerError as error:
                errors.append(error)
        raise self._most_telling(errors)

    model_spec = sent_by(_ask_one, Engine.model_spec)
    server_metadata = sent_by(_ask_one, Engine.server_metadata)
    model_metadata = sent_by(_ask_one, Engine.model_metadata)
    prefetch_model = sent_by(_ask_one, Engine.prefetch_model)
    model_config = sent_by(_ask_one, Engine.model_config)
    config_report = sent_by(_ask_one, Engine.config_report)
    trace_settings = sent_by(_ask_one, Engine.trace_settings)
    system_regions = sent_by(_ask_one, Engine.system_regions)
    cuda_regions = sent_by(_ask_one, Engine.cuda_regions)

    def directories(self) -> dict[str, str]:
        return self._assignment.directories() if self._assignment is not None else {}

    # --- merged from all engines

    def model_statistics(self, name: str = "", version: int = -1) -> list[VersionStatistics]:
        answers = self._ask_all(CALLS["model_statistics"], [name, version])
        return [merged(same) for same in _groups(part for answer in answers for part in answer).values()]

    def slowest_requests(self, name: str, version: int = -1) -> list[VersionRequests]:
        answers = self._ask_all(CALLS["slowest_requests"], [name, version])
        return merged_requests(requests for answer in answers for requests in answer)

    def overview(self, name: str = "") -> list[VersionOverview]:
        found: dict[tuple[str, int | None], list[VersionOverview]] = {}
        for lines in self._ask_all(CALLS["overview"], [name]):
            for line in lines:
                found.setdefault((line.entry.name, line.entry.version), []).append(line)
        return [replace(merged(same), entry=_merged([each.entry for each in same])) for same in found.values()]

    def demand_overview(self) -> DemandOverview | None:
        found = [each for each in self._ask_all(CALLS["demand_overview"], []) if each is not None]
        return merged(found) if found else None

    def recent_traces(self) -> list[tuple[TraceRecord, ...]]:
        answers = self._ask_all(CALLS["recent_traces"], [])
        return [trace for answer in answers for trace in answer]

    def history(self, models: list[str], since: int) -> list[VersionHistory]:
        answers = self._ask_all(CALLS["history"], [models, since])
        return merged_history(part for answer in answers for part in answer)

    def repository_index(self, ready_only: bool) -> list[IndexEntry]:
        answers = self._ask_all(CALLS["repository_index"], [ready_only], but_recovering=True)
        index = merged_index(answers)
        if not ready_only or self._assignment is not None:
            return index
        times = Counter((entry.name, entry.version) for entries in answers for entry in entries)
        return [entry for entry in index if times[entry.name, entry.version] == len(answers)]

    def metrics(self) -> MetricsSnapshot:
        snapshots: list[MetricsSnapshot] = self._ask_all(CALLS["metrics"], [])
        return merged(snapshots)

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        answers, errors = self._answers(CALLS["is_model_ready"], [name, version], but_recovering=True)
        if not answers:
            raise self._most_telling(errors)
        return all(answers) and not [error for error in errors if not isinstance(error, (EngineGone, self._dull))]

    def _ask_all(self, call: EngineMethod, arguments: Sequence[object], *, but_recovering: bool = False) -> list[Any]:
        """Return the results of the engines that did not fail. Raises the most telling error if all fail."""
        answers, errors = self._answers(call, arguments, but_recovering=but_recovering)
        if not answers:
            raise self._most_telling(errors)
        return answers

    def _answers(
        self, call: EngineMethod, arguments: Sequence[object], *, but_recovering: bool = False
    ) -> tuple[list[Any], list[ServerError]]:
        """Ask all engines at once; with `but_recovering`, only those with loaded models if there are any."""
        asked, answers, errors = [], [], list[ServerError]()
        leaves_out = but_recovering and self._assignment is None
        there = [engine for engine in self._engines if not (leaves_out and engine.is_recovering)]
        for engine in there or self._engines:
            try:
                asked.append(engine.begin(call, arguments))
            except ServerError as error:
                errors.append(error)
        for each in asked:
            try:
                answers.append(each.result())
            except ServerError as error:
                errors.append(error)
        return answers, errors

    def _most_telling(self, errors: Sequence[ServerError]) -> ServerError:
        return next((error for error in errors if not isinstance(error, self._dull)), errors[0])

    # --- changes

    def _change(self, call: EngineMethod, arguments: list[Any]) -> None:
        change = ControlChange(call, arguments)
        if self._assignment is not None and change.is_of_model:
            self._assignment.make(change)
        else:
            self._broadcast.make(change)

    load_model = sent_by(_change, Engine.load_model)
    load_directory = sent_by(_change, Engine.load_directory)
    unload_model = sent_by(_change, Engine.unload_model)
    change_log = sent_by(_change, Engine.change_log)
    change_trace = sent_by(_change, Engine.change_trace)
    register_system_region = sent_by(_change, Engine.register_system_region)
    register_cuda_region = sent_by(_change, Engine.register_cuda_region)
    unregister_regions = sent_by(_change, Engine.unregister_regions)

    # --- the state

    def is_live(self) -> bool:
        return not self._is_exiting and any(engine.is_live() for engine in self._engines)

    def is_ready(self) -> bool:
        """At the start True if all engines are ready; later one is enough, as it gets the requests of the others."""
        if self._is_exiting or not any(engine.is_ready() for engine in self._engines):
            return False
        return not self._awaited()

    def phase(self) -> ServingPhase:
        """The phase of the slowest engine at the start, later that of the most advanced one."""
        if self._is_exiting:
            return ServingPhase(name=Phase.EXITING)
        engines = self._awaited()
        if engines:
            return min((engine.phase() for engine in engines), key=_progress)
        return max((engine.phase() for engine in self._engines), key=_progress)

    def _awaited(self) -> list[RemoteEngine]:
        """The engines that the server waits for at its start; none after all were ready once."""
        if self._was_complete:
            return []
        is_early = time.monotonic() - self._started < _MISSING_SECONDS
        return [
            engine
            for engine in self._engines
            if not engine.is_ready() and (is_early or engine.phase().name in _STILL_LOADING)
        ]


def _progress(phase: ServingPhase) -> tuple[int, int]:
    return _PHASES.index(phase.name), phase.done


# Worst first. None is a model that was never loaded.
_ORDER = (ModelState.UNAVAILABLE, None, ModelState.UNLOADING, ModelState.LOADING, ModelState.READY)


def merged_index(of_engines: Sequence[Sequence[IndexEntry]]) -> list[IndexEntry]:
    """Return the entries by model and version, each in its worst state, with the first reason that an engine gives.

    A version that only some engines know has its state there: the others are about to add it, or have removed it.
    """
    found: dict[tuple[str, int | None], list[IndexEntry]] = {}
    for entries in of_engines:
        for entry in entries:
            found.setdefault((entry.name, entry.version), []).append(entry)
    with_versions = {name for name, version in found if version is not None}
    return [
        _merged(same)
        for (name, version), same in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or 0))
        if version is not None or name not in with_versions
    ]


def _merged(same: Sequence[IndexEntry]) -> IndexEntry:
    state = min((entry.state for entry in same), key=_ORDER.index)
    worst = [entry for entry in same if entry.state is state]
    reason = next((entry.reason for entry in [*worst, *same] if entry.reason), "")
    memory = _added(entry.device_bytes for entry in same)
    return IndexEntry(name=same[0].name, version=same[0].version, state=state, reason=reason, device_bytes=memory)


# --- statistics and metrics


def merged(parts: Sequence[T]) -> T:
    """Merge objects of one dataclass, at least one, into one.

    Numbers are sums: counts, durations, sizes, and gauges too, as each engine has its own instances of a model. Counts
    by a key are added by it, and numbers in columns by their column. Objects in tuples are merged if their `_KEYS` are
    equal, and sorted by them. `_RULES` has functions for other fields; of the rest the first value counts.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    kind = type(first)
    changes = {
        field.name: _merged_field(kind, field.name, [getattr(part, field.name) for part in parts])
        for field in fields(first)  # type: ignore[arg-type]
        if field.name not in _KEYS.get(kind, ())
    }
    return replace(first, **changes)  # type: ignore[type-var]


def _merged_field(kind: type[Any], name: str, values: Sequence[Any]) -> Any:
    rule = _RULES.get((kind, name))
    if rule is not None:
        return rule(values)
    there = [value for value in values if value is not None]
    first = there[0] if there else None
    if isinstance(first, int | float):
        return sum(there)
    if isinstance(first, Mapping):
        return _added(there)
    if isinstance(first, tuple):
        items = [item for value in there for item in value]
        if items and is_dataclass(items[0]):
            return tuple(merged(same) for _, same in sorted(_groups(items).items()))
        return tuple(map(sum, zip(*there, strict=True)))
    return merged(there) if is_dataclass(first) else first


def _groups(items: Iterable[T]) -> dict[tuple[Any, ...], list[T]]:
    """Group the items by sortable forms of their keys."""
    found: dict[tuple[Any, ...], list[T]] = {}
    for item in items:
        values = (getattr(item, name) for name in _KEYS[type(item)])
        key = tuple(
            "" if each is None else tuple(sorted(each.items())) if isinstance(each, Mapping) else each
            for each in values
        )
        found.setdefault(key, []).append(item)
    return found


def _added(counts: Iterable[Mapping[Any, int]]) -> dict[Any, int]:
    """Add counts by key; keys with 0 stay."""
    total: Counter[Any] = Counter()
    for part in counts:
        total.update(part)
    return dict(total)


def _first(values: Sequence[T]) -> T:
    return next((value for value in values if value is not None), values[0])


def _latest(columns: Sequence[tuple[Exemplar | None, ...]]) -> tuple[Exemplar | None, ...]:
    return tuple(
        max((each for each in column if each is not None), key=lambda each: each.timestamp, default=None)
        for column in zip(*columns, strict=True)
    )


def _largest(columns: Sequence[tuple[tuple[float, float], ...]]) -> tuple[tuple[float, float], ...]:
    """Return the largest of each quantile, an upper bound of that of all values together."""
    return tuple(
        (column[0][0], max((value for _, value in column if not math.isnan(value)), default=math.nan))
        for column in zip(*columns, strict=True)
    )


_KEYS: dict[type[Any], tuple[str, ...]] = {
    BatchStatistics: ("batch_size",),
    BucketStatistics: ("batch_size", "length"),
    CustomFamilyMetrics: ("name",),
    CustomSeriesMetrics: ("labels", "bounds"),
    DemandModel: ("model", "is_resident", "is_pinned"),
    DeviceMemoryMetrics: ("device", "gpu_uuid"),
    HistogramMetrics: ("name",),
    LetGo: ("at", "model", "reason", "text"),
    LoadMetrics: ("cause", "result"),
    ModelMetrics: ("model", "namespace", "version"),
    ModelProcessMetrics: ("instance",),
    ResourceMetrics: ("resource", "device"),
    ResponseStatistics: ("index",),
    SummaryMetrics: ("name",),
    VersionOverview: ("entry",),
    VersionStateMetrics: ("model", "namespace", "version"),
    VersionStatistics: ("name", "version"),
}
_RULES: dict[tuple[type[Any], str], Callable[[Sequence[Any]], Any]] = {
    (Activity, "p50_us"): max,
    (Activity, "p95_us"): max,
    (Activity, "p99_us"): max,
    (BatchTuning, "target_p99_ns"): _first,
    (BatchTuning, "delay_ns"): max,  # the largest limits that any of the batchers has set itself
    (BatchTuning, "max_size"): max,
    (HardwareReading, "cpu"): _first,  # all engines read the same machine
    (HardwareReading, "gpus"): lambda readings: tuple({gpu.uuid: gpu for gpus in readings for gpu in gpus}.values()),
    (HistogramMetrics, "bounds"): _first,
    (HistogramMetrics, "exemplars"): _latest,
    (ModelMetrics, "load_duration_secs"): max,  # the loads of a model took as long as the longest
    (ModelMetrics, "tags"): _first,
    (ModelMetrics, "is_cached"): any,
    # Several GPUs are none, as in one engine.
    (ModelMetrics, "gpu_uuid"): lambda values: values[0] if len(set(values)) == 1 else None,
    (ModelProcessMetrics, "process_id"): _first,
    (RemoteCacheMetrics, "is_up"): all,
    (StatisticsSnapshot, "last_inference_ms"): max,
    (StatisticsSnapshot, "oldest_execution_ns"): max,
    (SummaryMetrics, "quantiles"): _largest,
    (VersionOverview, "load_seconds"): max,
    (VersionOverview, "oldest_execution_ns"): max,
    (VersionOverview, "steps"): _first,
    (VersionStateMetrics, "state"): lambda values: min(values, key=lambda each: _ORDER.index(ModelState(each))),
}
