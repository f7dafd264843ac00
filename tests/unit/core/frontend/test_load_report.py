"""Load reports on answers: docs/scale.md, docs/spec/http.md section 9 "ORCA"."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.unit.fake_engine import FakeEngine
from trident.core.frontend.load_report import FRESH_S, LoadReports, cache_figures
from trident.core.observability.hardware import CpuReading, GpuReading, HardwareReading
from trident.core.observability.metrics.snapshot import (
    CustomFamilyMetrics,
    CustomSeriesMetrics,
    MetricsSnapshot,
    ModelMetrics,
)
from trident.core.observability.statistics import FailureReason, StatisticsSnapshot


def blocks(name: str = "nv_trt_llm_kv_cache_block_metrics", model: str = "", **kinds: float) -> CustomFamilyMetrics:
    of_model = {"model": model} if model else {}
    series = tuple(
        CustomSeriesMetrics(labels={**of_model, "kv_cache_block_type": kind}, value=value)
        for kind, value in kinds.items()
    )
    return CustomFamilyMetrics(name=name, type="gauge", description="", series=series)


class BusyEngine(FakeEngine):
    def __init__(self) -> None:
        super().__init__()
        self.asked = self.answered = self.failed = 0

    def metrics(self) -> MetricsSnapshot:
        self.asked += 1
        statistics = StatisticsSnapshot(
            request_success=self.answered,
            request_failures={FailureReason.BACKEND: self.failed},
            inference_count=0,
            execution_count=0,
            request_ns=0,
            queue_ns=0,
            compute_input_ns=0,
            compute_infer_ns=0,
            compute_output_ns=0,
            pending=3,
        )
        return MetricsSnapshot(
            models=(ModelMetrics(model="m", version=1, statistics=statistics, load_duration_secs=0),),
            hardware=HardwareReading(
                cpu=CpuReading(utilization=0.3, memory_total=1000, memory_used=800),
                gpus=(
                    GpuReading(uuid="a", utilization=0.5),
                    GpuReading(uuid="b", utilization=0.9),
                    GpuReading(uuid="c"),
                ),
            ),
            custom=(blocks(used=30, max=120, tokens_per=64),),
        )


@pytest.fixture
def engine() -> BusyEngine:
    return BusyEngine()


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def report(engine: BusyEngine, now: list[float]) -> Callable[[str], str]:
    """The value of a report, when one second with 6 answers and 2 failures has passed."""
    reports = LoadReports(engine, clock=lambda: now[0])
    reports.field("text", "m")
    now[0] += 1
    engine.answered, engine.failed = 6, 2

    def value(form: str) -> str:
        found = reports.field(form, "m")
        assert found is not None
        assert found[0] == ("endpoint-load-metrics-bin" if form == "bin" else "endpoint-load-metrics")
        return found[1]

    return value


EXPECTED = {
    "cpu_utilization": 0.3,
    "mem_utilization": 0.8,
    "application_utilization": 0.9,
    "rps_fractional": 8.0,
    "eps": 2.0,
    "named_metrics": {"pending_requests": 3, "kv_cache_utilization": 0.25, "max_token_capacity": 7680},
}


def test_a_report_is_json_or_text(report: Callable[[str], str]) -> None:
    name, _, document = report("JSON").partition(" ")
    assert (name, orjson.loads(document)) == ("JSON", EXPECTED)
    assert report("text") == (
        "TEXT cpu_utilization=0.300000, mem_utilization=0.800000, application_utilization=0.900000, "
        "rps_fractional=8.000000, eps=2.000000, named_metrics.pending_requests=3, "
        "named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=7680"
    )


def test_bin_is_the_protobuf_message_that_grpc_and_envoy_read(report: Callable[[str], str]) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="orca.proto", package="xds.data.orca.v3", syntax="proto3")
    message = file.message_type.add(name="OrcaLoadReport")
    fields = {"cpu_utilization": 1, "mem_utilization": 2, "rps_fractional": 6, "eps": 7, "application_utilization": 9}
    for name, number in fields.items():
        message.field.add(name=name, number=number, type="TYPE_DOUBLE", label="LABEL_OPTIONAL")
    entry = message.nested_type.add(name="NamedMetricsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    entry.field.add(name="value", number=2, type="TYPE_DOUBLE", label="LABEL_OPTIONAL")
    kind = ".xds.data.orca.v3.OrcaLoadReport.NamedMetricsEntry"
    message.field.add(name="named_metrics", number=8, type="TYPE_MESSAGE", type_name=kind, label="LABEL_REPEATED")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    read: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("xds.data.orca.v3.OrcaLoadReport"))()
    read.ParseFromString(b64decode(report("bin")))
    found = {name: getattr(read, name) for name in fields}
    assert {**found, "named_metrics": dict(read.named_metrics)} == EXPECTED


def test_the_engine_is_asked_once_for_many_reports_and_rates_take_time(engine: BusyEngine, now: list[float]) -> None:
    reports = LoadReports(engine, clock=lambda: now[0])

    def rates() -> list[float]:
        found = reports.field("json", "m")
        assert found is not None
        document = orjson.loads(found[1].removeprefix("JSON "))
        return [document[name] for name in ("rps_fractional", "eps") if name in document]

    assert (rates(), rates(), engine.asked) == ([], [], 1)
    engine.answered = 10
    now[0] += FRESH_S
    assert (rates(), engine.asked) == ([], 2)
    now[0] += 4 - FRESH_S
    assert rates() == [2.5, 0]
    engine.answered = 0  # its model was unloaded
    now[0] += 1
    assert rates() == [0, 0]
    now[0] += 100
    assert rates() == []


def test_another_form_has_no_report(engine: BusyEngine) -> None:
    reports = LoadReports(engine)
    assert [reports.field(form, "m") for form in ("grpc", "")] == [None, None]
    assert engine.asked == 0


def test_of_several_models_the_cache_of_the_requests_model_counts() -> None:
    others = [blocks(model="m", used=30, max=120, tokens_per=64), blocks(model="n", used=1, max=1, tokens_per=1)]
    assert cache_figures("m", others) == {"kv_cache_utilization": 0.25, "max_token_capacity": 7680}
