"""The settings of the log and of traces, the statistics, and the load, as clients see them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.unit.fake_engine import FakeEngine
from trident.core.errors import InvalidRequest, ServerError, Unsupported
from trident.core.frontend.admin import (
    FRESH_S,
    LoadReports,
    changed_settings,
    model_statistics_json,
    wanted_changes,
)
from trident.core.inference.request import CloseReason
from trident.core.observability.hardware import CpuReading, GpuReading, HardwareReading
from trident.core.observability.log import LogLevels, change_log
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import (
    BatchStatistics,
    BucketUse,
    CustomFamilyMetrics,
    CustomSeriesMetrics,
    FailureReason,
    MetricsSnapshot,
    ModelMetrics,
    ResponseKind,
    StatisticsSnapshot,
    VersionStatistics,
)


@pytest.fixture(autouse=True)
def _levels_of_the_start() -> None:
    """Whatever another test left."""
    change_log(LogLevels())


def applied(wanted: Mapping[str, object]) -> tuple[LogLevels, ServerError | None]:
    """The levels after the changes that were applied, and the error that ended them."""
    levels = LogLevels()
    try:
        for each in changed_settings(wanted, _any, _any, _any, ""):
            levels = each
    except ServerError as error:
        return levels, error
    return levels, None


def _any(name: str, value: object) -> Any:
    if value == "wrong":
        raise InvalidRequest(f"not {name}")
    return value


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"trace_levl": ["OFF"]}, "unknown trace setting 'trace_levl', did you mean 'trace_level'?"),
        ({"url": "http://elsewhere"}, "'url' can not be updated through network protocol"),
        # Longer texts than Python makes integers of.
        (
            {"trace_count": "9" * 5000},
            f"Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: {'9' * 5000}",
        ),
    ],
    ids=["misspelt", "url", "long"],
)
def test_wrong_trace_settings_are_refused(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(ServerError) as error:
        wanted_changes(wanted, dict, _any, _any, "")
    assert error.value.message == message


def test_the_named_settings_change_until_one_is_invalid() -> None:
    assert applied({"log_verbose_level": 3, "log_error": False}) == (LogLevels(verbose=3, error=False), None)
    levels, error = applied({"log_format": "json", "log_verbose_level": "wrong", "log_info": False})
    assert levels == LogLevels(info=False)
    assert str(error) == "not log_verbose_level"
    _, error = applied({"log_format": "xml"})
    assert isinstance(error, InvalidRequest)
    assert (error.message, error.hint) == ("invalid argument for log_format, got: xml", "one of default, ISO8601, json")


@pytest.mark.parametrize(("value", "scope"), [("all", "all"), ("true", "true"), (True, "true"), (False, "false")])
def test_the_access_log_is_switched_by_a_text_or_a_boolean(value: object, scope: str) -> None:
    assert applied({"log_access": value, "response_timing": True}) == (LogLevels(access=scope, timing=True), None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log_verbos_level", "unknown log setting 'log_verbos_level', did you mean 'log_verbose_level'?"),
        ("zzz", "unknown log setting 'zzz'"),
    ],
)
def test_a_misspelled_setting_is_refused_before_anything_changes(name: str, text: str) -> None:
    levels, error = applied({"log_info": False, name: 1})
    assert isinstance(error, InvalidRequest)
    assert (levels, error.message) == (LogLevels(), text)


def test_changing_the_log_file_is_refused_without_other_changes() -> None:
    levels, error = applied({"log_info": False, "log_file": "/tmp/other"})
    assert isinstance(error, Unsupported)
    assert error.message == "log file location can not be updated through network protocol"
    assert levels == LogLevels()


COUNTED = StatisticsSnapshot(
    request_success=3,
    request_failures={FailureReason.BACKEND: 1, FailureReason.REJECTED: 1},
    inference_count=4,
    execution_count=2,
    request_ns=406,
    queue_ns=230,
    compute_input_ns=21,
    compute_infer_ns=82,
    compute_output_ns=43,
    pending=7,
    failure_ns=2**63,
    last_inference_ms=1_700_000_000_123,
    batch_closes={CloseReason.FULL: 1, CloseReason.DELAY: 1},
    batches=(
        BatchStatistics(batch_size=2, execution_count=1, compute_input_ns=1, compute_infer_ns=2, compute_output_ns=3),
    ),
)


@pytest.fixture
def item() -> dict[str, object]:
    (item,) = model_statistics_json([VersionStatistics(name="m", version=7, statistics=COUNTED)])["model_stats"]
    return item


def test_statistics_count_responses_by_index() -> None:
    statistics = ModelStatistics()
    for kind, ns in ((ResponseKind.SUCCESS, 5), (ResponseKind.SUCCESS, 6), (ResponseKind.FAIL, 7)):
        statistics.record_response(0, kind, ns)
    statistics.record_response(1, ResponseKind.EMPTY, 1)
    statistics.record_response(1, ResponseKind.CANCELLED, 2)
    statistics.record_response(100_000, ResponseKind.SUCCESS, 2)
    told = VersionStatistics(name="m", version=1, statistics=statistics.snapshot())
    none = {"count": 0, "ns": 0}
    assert model_statistics_json([told])["model_stats"][0]["response_stats"] == {
        "0": {
            "compute_infer": {"count": 3, "ns": 18},
            "compute_output": {"count": 2, "ns": 0},
            "success": {"count": 2, "ns": 11},
            "fail": {"count": 1, "ns": 7},
            "empty_response": none,
            "cancel": none,
        },
        "1": {
            "compute_infer": {"count": 1, "ns": 1},
            "compute_output": none,
            "success": none,
            "fail": none,
            "empty_response": {"count": 1, "ns": 1},
            "cancel": {"count": 1, "ns": 2},
        },
    }


def test_an_execution_is_shown_while_it_takes_long(item: dict[str, object]) -> None:
    assert "long_execution" not in item  # Triton has no such field
    for seconds, shown in ((9, None), (10, {"ns": 10 * 10**9, "pending_count": 3})):
        counted = replace(COUNTED, oldest_execution_ns=seconds * 10**9, pending=3)
        (told,) = model_statistics_json([VersionStatistics(name="m", version=7, statistics=counted)])["model_stats"]
        assert told.get("long_execution") == shown


def test_buckets_are_shown_with_the_sizes_that_the_model_pads_to(item: dict[str, object]) -> None:
    assert "bucket_stats" not in item  # Triton has no such field
    statistics = ModelStatistics()
    for use in (BucketUse(4, 0, 6, 2), BucketUse(4, 0, 8, 0)):
        statistics.record_bucket(use)
    version = VersionStatistics(name="m", version=7, statistics=statistics.snapshot())
    (shown,) = model_statistics_json([version])["model_stats"]
    assert shown["bucket_stats"] == [{"batch_size": 4, "execution_count": 2, "element_count": 14, "padding_count": 2}]


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
        failures = {FailureReason.BACKEND: self.failed}
        statistics = StatisticsSnapshot(request_success=self.answered, request_failures=failures, pending=3)
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


def test_binary_load_report_is_the_orca_message(report: Callable[[str], str]) -> None:
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


def test_load_reports_share_one_reading_and_rates_need_two(engine: BusyEngine, now: list[float]) -> None:
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


def test_unknown_load_report_format_is_ignored(engine: BusyEngine) -> None:
    reports = LoadReports(engine)
    assert [reports.field(form, "m") for form in ("grpc", "")] == [None, None]
    assert engine.asked == 0
