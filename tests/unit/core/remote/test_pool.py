"""Several engines as one: routing of requests, and combined reports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit import onnx_models
from tests.unit.core.remote.remote_parts import SMALL, Answer, Pooled, ServedEngine, ask, assert_served, numbers, pooled
from tests.unit.onnx_serving import running_engine
from tests.waiting import until
from trident.core.config.spec import BatchingSpec, ModelSpec
from trident.core.errors import InvalidRequest, ModelNotFound
from trident.core.lifecycle.options import EnginePlace
from trident.core.lifecycle.state import IndexEntry, ModelState, Phase, ServingPhase
from trident.core.observability.hardware import CpuReading, HardwareReading
from trident.core.observability.latencies import Exemplar, HistogramMetrics, LatencyMetrics, SummaryMetrics
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import (
    BatchStatistics,
    BatchTuning,
    BucketStatistics,
    CustomFamilyMetrics,
    CustomSeriesMetrics,
    DownloadMetrics,
    FailureReason,
    LoadMetrics,
    MetricsSnapshot,
    ModelMetrics,
    ModelProcessMetrics,
    RemoteCacheMetrics,
    ResourceMetrics,
    ResponseCacheMetrics,
    ResponseStatistics,
    StatisticsSnapshot,
    VersionStateMetrics,
)
from trident.core.observability.tracing.trace import Loss, TraceMetrics, TraceOptions
from trident.core.remote.calls import EngineGone
from trident.core.remote.pool import EnginePool, home_of, merged, merged_index


def test_sequence_moves_only_if_its_engine_is_missing() -> None:
    homes = {key: home_of(f"sequence {key}", [0, 1, 2]) for key in range(3000)}
    assert all(800 < count < 1200 for count in Counter(homes.values()).values())
    assert homes == {key: home_of(f"sequence {key}", [0, 1, 2]) for key in range(3000)}
    for key in range(300):
        before = home_of(f"sequence {key}", [0, 1, 2])
        after = [0, 2][home_of(f"sequence {key}", [0, 2])]
        assert after == before or before == 1
    assert home_of("sequence \udcff\0", [0, 1]) in (0, 1)


class Named(ServedEngine):
    """An engine that counts its requests."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.seen: list[int | str] = []
        self.spec_changes: dict[str, Any] = {}

    def submit(self, pending) -> None:  # type: ignore[no-untyped-def]
        self.seen.append(pending.request.correlation_id)
        super().submit(pending)

    def model_spec(self, name: str, version: int = -1) -> ModelSpec:
        return replace(super().model_spec(name, version), **self.spec_changes)


@pytest.fixture
def engines() -> list[Named]:
    return [Named(), Named()]


@pytest.fixture
def pool(engines: list[Named], tmp_path: Path) -> Iterator[Pooled]:
    with pooled(tmp_path, engines) as found:
        yield found


# --- requests


def test_large_inputs_are_read_where_they_were_received(pool: Pooled, engines: list[Named]) -> None:
    bodies = [pool[0].allocate(100_000) for _ in range(3)]  # there is room for one in the memory of each engine
    assert bodies[2] is None
    for body in bodies[:2]:
        assert body is not None
        body[:] = 1
        for _ in range(3):
            assert ask(pool[0], numbers(body.view(np.int32))).get().error is None
    assert [len(engine.seen) for engine in engines] == [3, 3]


def test_a_sequence_stays_with_one_engine(pool: Pooled, engines: list[Named]) -> None:
    for _ in range(3):
        for correlation_id in [*range(1, 11), "text"]:
            ask(pool[0], numbers(SMALL, correlation_id=correlation_id)).get()
    assert not set(engines[0].seen) & set(engines[1].seen)
    assert set(Counter(engines[0].seen).values()) == set(Counter(engines[1].seen).values()) == {3}


ORDERED, UNORDERED = (
    {"batching": BatchingSpec(preferred_batch_sizes=(1,), preserve_ordering=preserved)} for preserved in (True, False)
)


@pytest.mark.parametrize(
    ("changes", "keeps_answers", "most"),
    [
        ({"response_cache": True}, True, 20),
        ({"response_cache": True}, False, 10),
        (ORDERED, False, 20),
        (UNORDERED, False, 10),
    ],
    ids=["answers kept by the engine", "answers kept elsewhere", "in order", "in any order"],
)
def test_a_model_with_cached_or_ordered_answers_has_one_engine(
    engines: list[Named], tmp_path: Path, changes: dict[str, Any], keeps_answers: bool, most: int
) -> None:
    for engine in engines:
        engine.spec_changes = changes
    with pooled(tmp_path, engines, keeps_answers=keeps_answers) as (pool, _):
        for _ in range(20):
            ask(pool, numbers(SMALL)).get()
    assert max(len(engine.seen) for engine in engines) == most


def test_a_trace_is_ended_in_its_engine(pool: Pooled, engines: list[Named]) -> None:
    for number in (1, 2, 3, 4):
        pool[0].trace_answered(number, [], [])
    until(lambda: sum(len(engine.calls) for engine in engines) == 4)
    assert [[call[1] for call in engine.calls] for engine in engines] == [[1, 3], [2, 4]]


# --- the loss of an engine


def test_lost_engine_fails_only_its_requests(pool: Pooled, engines: list[Named]) -> None:
    front, those = pool
    for engine in engines:
        engine.respond = lambda request: None
    waiting = [ask(front, numbers(SMALL)) for _ in range(4)]
    until(lambda: [len(engine.seen) for engine in engines] == [2, 2])
    those[1].end()
    until(lambda: sum(answer.is_there for answer in waiting) == 2)
    assert all(isinstance(answer.get().error, EngineGone) for answer in waiting if answer.is_there)
    assert (front.is_ready(), front.is_live(), front.phase().name) == (True, True, Phase.READY)
    engines[0].respond = ServedEngine().respond
    assert_served(front)
    for answer in waiting:
        answer.pending.cancel()
    those[1].begin()
    engines[1].respond = ServedEngine().respond
    engines[1].seen.clear()

    def has_rejoined() -> bool:
        ask(front, numbers(SMALL)).get()
        return bool(engines[1].seen)

    until(has_rejoined, "the engine gets no requests")


def test_front_end_without_engines_reports_engine_down(pool: Pooled) -> None:
    front, those = pool
    for each in those:
        each.end()
    until(lambda: not front.is_ready())
    assert (front.is_live(), front.phase().name) == (True, Phase.ENGINE_DOWN)
    with pytest.raises(EngineGone):
        front.model("simple")
    with pytest.raises(EngineGone):
        front.metrics()


def test_the_server_is_ready_when_all_engines_are(engines: list[Named], tmp_path: Path) -> None:
    engines[1].ready = False
    engines[1].serving = ServingPhase(name=Phase.LOADING, model="simple", done=1, total=2)
    with pooled(tmp_path, engines, ready=False) as (front, _):
        until(lambda: front.phase().name is Phase.LOADING)
        assert not front.is_ready()
        engines[1].ready = True
        engines[1].serving = ServingPhase(name=Phase.READY)
        until(front.is_ready)
        engines[1].ready = False
        until(lambda: front.phase().name is Phase.READY)
        assert front.is_ready(), "the other one serves"
    assert not front.is_ready()


# --- real engines


@pytest.fixture
def real(tmp_path: Path) -> Iterator[EnginePool]:
    """Two engines of one server, with the model `double` and without `other`, which may be loaded."""
    repository = tmp_path / "models"
    for name in ("double", "other"):
        onnx_models.write_version(onnx_models.identity("FP32"), repository, name, "max_batch_size: 8")
    with ExitStack() as stack:
        engines = [
            stack.enter_context(
                running_engine(
                    repository,
                    control_mode="explicit",
                    load_models=("double",),
                    place=EnginePlace(index, 2),
                    tracing=TraceOptions(numbers=(1 + index, 2)),
                )
            )
            for index in range(2)
        ]
        front, _ = stack.enter_context(pooled(tmp_path, engines))
        yield front


def infer(front: EnginePool, count: int, model: str = "double", version: int = -1) -> None:
    answers: list[Answer] = []
    for number in range(count):
        request = numbers(np.array([[number]], np.float32), "INPUT0", "FP32")
        request.model_name, request.model_version = model, version
        answers.append(ask(front, request))
    for number, answer in enumerate(answers):
        assert answer.get().error is None, answer.get().error
        assert answer.get().outputs[0].array.tolist() == [[number]]


def test_statistics_index_and_changes_are_those_of_one_server(real: EnginePool) -> None:
    infer(real, 40)
    (found,) = real.model_statistics("double")
    assert (found.statistics.request_success, found.statistics.inference_count) == (40, 40)
    (metrics,) = real.metrics().models
    assert metrics.statistics.request_success == 40
    with pytest.raises(InvalidRequest):
        real.model_statistics("unknown")
    real.load_model("other", {})
    assert real.is_model_ready("other")
    infer(real, 10, "other")
    names = ["double", "other"]
    assert [entry.name for entry in real.repository_index(True)] == names
    assert sorted(line.entry.name for line in real.overview()) == names
    real.unload_model("other", False, wait=True)
    with pytest.raises(ModelNotFound):
        real.model("other")
    assert [entry.name for entry in real.repository_index(True)] == ["double"]


def test_held_version_is_used_in_its_engine(real: EnginePool) -> None:
    held = [real.hold_version("double") for _ in range(4)]
    assert len(set(held)) >= 2
    for number in held:
        infer(real, 2, version=number)
    real.unload_model("double", False)
    for number in held:
        infer(real, 2, version=number)
        real.release_version("double", number)
    with pytest.raises(ModelNotFound):
        real.model("double")


READY = IndexEntry(name="m", version=1, state=ModelState.READY)


def test_index_shows_a_version_that_only_some_engines_have() -> None:
    with_reason = IndexEntry(name="m", version=1, state=ModelState.READY, reason="a newer one failed")
    assert merged_index([[READY], [with_reason]]) == [with_reason]
    never = IndexEntry(name="n")
    assert merged_index([[never], [never]]) == [never]
    assert merged_index([[IndexEntry(name="m")], [READY]]) == [READY]


EMPTY = ModelStatistics().snapshot()


def counted(number: int) -> StatisticsSnapshot:
    """A snapshot in which every plain number is `number`."""
    return replace(EMPTY, **{each.name: number for each in fields(StatisticsSnapshot) if each.type == "int"})


def test_numbers_are_summed_except_latest_and_oldest() -> None:
    total = merged([counted(3), counted(4)])
    latest = {"last_inference_ms": 4, "oldest_execution_ns": 4}
    assert total == replace(merged([counted(7)]), **latest, batch_closes=total.batch_closes)
    assert total.request_success == 7


MODEL = ModelMetrics(
    model="m",
    version=1,
    statistics=replace(ModelStatistics().snapshot(), request_success=3),
    load_duration_secs=1.0,
    processes=(ModelProcessMetrics(instance="m_0", resident_bytes=10, restarts=1),),
)


def test_a_model_is_one_series_with_sums() -> None:
    other = replace(MODEL, load_duration_secs=2.0, namespace="n")
    slow = replace(MODEL, load_duration_secs=4.0)
    total = merged([MetricsSnapshot(models=(MODEL, other)), MetricsSnapshot(models=(slow,))])
    assert [(each.namespace, each.statistics.request_success) for each in total.models] == [(None, 6), ("n", 3)]
    assert total.models[0].load_duration_secs == 4.0
    assert total.models[0].processes == (ModelProcessMetrics(instance="m_0", resident_bytes=20, restarts=2),)


BATCH = BatchStatistics(batch_size=4, execution_count=1, compute_input_ns=1, compute_infer_ns=2, compute_output_ns=3)
TWO_BATCHES = BatchStatistics(
    batch_size=4, execution_count=2, compute_input_ns=2, compute_infer_ns=4, compute_output_ns=6
)
SINGLE, DOUBLE = (replace(BATCH, batch_size=size) for size in (1, 2))
BUCKET = BucketStatistics(batch_size=8, length=0, execution_count=1, element_count=10, padding_count=2)
RESPONSE = ResponseStatistics(index=0, counts=(1, 0, 0, 0), durations_ns=(5, 0, 0, 0))
LATER = ResponseStatistics(index=1, counts=(1, 1, 0, 0), durations_ns=(5, 7, 0, 0))
TUNING = BatchTuning(target_p99_ns=9, delay_ns=1, max_size=4)
STATE = VersionStateMetrics(model="m", version="1", state="READY")
REMOTE = RemoteCacheMetrics(is_up=True, faults={"timeout": 1})
CPU = CpuReading(utilization=0.5, memory_total=8, memory_used=4)
MACHINE = HardwareReading(cpu=CPU)
LOAD = LoadMetrics(cause="server start", result="success", count=2)
CACHE = ResponseCacheMetrics(size=100, used=10, entries=1, evictions=2)
RESOURCE = ResourceMetrics(resource="r", device="", limit=4, held=1, waiting=0)
TRACES = TraceMetrics(written=3, lost={Loss.QUEUE_FULL: 1})
EARLY, LATE = (Exemplar(request_id=name, value=1.0, timestamp=at) for name, at in (("a", 1.0), ("b", 2.0)))
HISTOGRAM = HistogramMetrics(name="h", bounds=(1.0,), counts=(1, 2), sum=3.0, exemplars=(LATE, None))
SUMMARY = SummaryMetrics(name="s", quantiles=((0.5, 5.0), (0.9, math.nan)), sum=10, count=2)
ONE = CustomSeriesMetrics(labels={"x": "1"}, value=2.0)
OTHER = CustomSeriesMetrics(labels={"x": "2"}, value=1.0, bounds=(1.0,), counts=(1, 0))
FAMILY = CustomFamilyMetrics(name="c", type="counter", description="", series=(ONE, OTHER))
BOTH = (replace(ONE, value=4.0), replace(OTHER, value=2.0, counts=(2, 0)))
FEW, MORE = {FailureReason.OTHER: 2}, {FailureReason.OTHER: 3, FailureReason.BACKEND: 0}
REPORTS = (EMPTY, MetricsSnapshot(), LatencyMetrics())


@pytest.mark.parametrize(
    ("name", "parts", "expected"),
    [
        ("request_failures", [FEW, MORE], {FailureReason.OTHER: 5, FailureReason.BACKEND: 0}),
        ("batches", [(SINGLE, BATCH), (DOUBLE, BATCH)], (SINGLE, DOUBLE, TWO_BATCHES)),
        ("buckets", [(BUCKET,)] * 2, (replace(BUCKET, execution_count=2, element_count=20, padding_count=4),)),
        ("responses", [(RESPONSE,), (LATER,)], (RESPONSE, LATER)),
        ("responses", [(LATER,)] * 2, (replace(LATER, counts=(2, 2, 0, 0), durations_ns=(10, 14, 0, 0)),)),
        ("tuning", [TUNING, replace(TUNING, delay_ns=2, max_size=3), None], replace(TUNING, delay_ns=2)),
        ("states", [(STATE,), (replace(STATE, state="LOADING"),)], (replace(STATE, state="LOADING"),)),
        (
            "remote_cache",
            [REMOTE, replace(REMOTE, is_up=False)],
            RemoteCacheMetrics(is_up=False, faults={"timeout": 2}),
        ),
        ("hardware", [MACHINE] * 2, MACHINE),
        ("loads", [(LOAD,)] * 2, (replace(LOAD, count=4),)),
        ("downloads", [DownloadMetrics(bytes=5, seconds=0.5)] * 2 + [None], DownloadMetrics(bytes=10, seconds=1.0)),
        ("response_cache", [CACHE] * 2, ResponseCacheMetrics(size=200, used=20, entries=2, evictions=4)),
        ("resources", [(RESOURCE,)] * 2, (replace(RESOURCE, limit=8, held=2),)),
        ("traces", [TRACES] * 2, TraceMetrics(written=6, lost={Loss.QUEUE_FULL: 2})),
        (
            "histograms",
            [(replace(HISTOGRAM, exemplars=(EARLY, None)),), (HISTOGRAM,)],
            (replace(HISTOGRAM, counts=(2, 4), sum=6.0),),
        ),
        (
            "summaries",
            [(replace(SUMMARY, quantiles=((0.5, 3.0), (0.9, math.nan))),), (SUMMARY,)],
            (replace(SUMMARY, sum=20, count=4),),
        ),
        ("custom", [(replace(FAMILY, series=(OTHER, ONE)),), (FAMILY,)], (replace(FAMILY, series=BOTH),)),
    ],
)
def test_reports_of_engines_are_merged_by_their_keys(name: str, parts: list[Any], expected: Any) -> None:
    whole = next(each for each in REPORTS if hasattr(each, name))
    found = getattr(merged([replace(whole, **{name: part}) for part in parts]), name)
    assert repr(found) == repr(expected)  # as texts, because nan does not equal itself
