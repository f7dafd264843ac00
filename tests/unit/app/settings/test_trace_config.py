from __future__ import annotations

from typing import Any

import pytest

from trident.adapters.common.options import BadOption
from trident.app.settings.reading import read_settings
from trident.app.settings.server import ServerSettings
from trident.core.observability.tracing.settings import TraceMode, TraceOptions, TraceSettings


def options(*arguments: str) -> TraceOptions:
    return read_settings(["--model-repository=/models", *arguments], {}).trace_options


def config(*texts: str, **fields: Any) -> TraceOptions:
    return ServerSettings(trace_config=texts, **fields).trace_options


def test_nothing_is_traced_unless_asked_for() -> None:
    assert options() == TraceOptions()
    assert TraceOptions().start == TraceSettings(levels=(), rate=1000, count=-1, frequency=0)
    assert options("--trace-level=OFF", "--trace-config=level=TIMESTAMPS").start.levels == ()
    assert config("level=OFF", "level=TIMESTAMPS", "triton,file=/t").start.levels == ("TIMESTAMPS",)


def test_settings_of_the_triton_mode() -> None:
    found = config(
        "mode=Triton",
        "level=TENSORS",
        "level=timestamps",
        "rate=5",
        "count=7",
        "triton,file=/t",
        "triton,log-frequency=3",
    )
    assert found.start == TraceSettings(levels=("TIMESTAMPS", "TENSORS"), rate=5, count=7, frequency=3)
    assert (found.mode, found.file) == (TraceMode.TRITON, "/t")


def test_the_older_options() -> None:
    older = ("--trace-file=/t", "--trace-level=MAX", "--trace-rate=2", "--trace-count=3", "--trace-log-frequency=4")
    assert options(*older).start == TraceSettings(levels=("TIMESTAMPS",), rate=2, count=3, frequency=4)
    newer = ("--trace-config=rate=9", "--trace-config=triton,file=/new")
    found = options(*older, *newer)
    assert (found.start.rate, found.file, found.start.count) == (9, "/new", 3)
    warnings = read_settings(["--model-repository=/models", *older, *newer], {}).warnings
    assert [text for text in warnings if "--trace-rate" in text and "--trace-config" in text] != []
    assert [text for text in warnings if "--trace-count" in text] == []


def test_opentelemetry_has_its_own_settings() -> None:
    found = config(
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        "rate=0",
        "opentelemetry,url=http://c:1/v1/traces",
        "opentelemetry,resource=a=b=c",
        "opentelemetry,resource=service.name=mine",
        "opentelemetry,bsp_max_queue_size=9",
        otel_queue_size="100",
        otel_schedule_delay="200",
    )
    assert found.export.url == "http://c:1/v1/traces"
    assert found.export.resource == {"service.name": "mine", "a": "b=c"}
    assert (found.export.queue_size, found.export.delay_ms, found.export.batch_size) == (9, 200, 512)
    assert list(found.shown) == [
        "url",
        "resource",
        "bsp_max_queue_size",
        "bsp_schedule_delay",
        "bsp_max_export_batch_size",
    ]
    assert found.shown["bsp_schedule_delay"] == "200"


@pytest.mark.parametrize(
    ("text", "source", "reason"),
    [
        ("rate", "--trace-config", "option format is"),
        (",rate=1", "--trace-config", "option format is"),
        ("speed=1", "--trace-config", "there is no setting 'speed'"),
        ("triton,rate=1", "--trace-config", "there is no setting 'triton,rate'"),
        ("rate=x", "--trace-config rate", "Invalid option value. Got x"),
        ("rate=-1", "--trace-config rate", "out of bound"),
        ("count=-2", "--trace-config count", "out of bound"),
        ("triton,log-frequency=x", "--trace-config triton,log-frequency", "Invalid option value. Got x"),
        ("level=HIGH", "--trace-config level", "invalid value for trace level option: HIGH"),
        (
            "mode=x",
            "--trace-config mode",
            'invalid value for trace mode option: x. Available options are "triton" and "opentelemetry"',
        ),
        ("level=TIMESTAMPS", "--trace-config", "trace file name is not given"),
        ("opentelemetry,resource=x", "--trace-config opentelemetry,resource", "it takes <key>=<value>"),
        ("opentelemetry,bsp_schedule_delay=0", "--trace-config opentelemetry,bsp_schedule_delay", "out of bound"),
    ],
)
def test_invalid_values_are_refused_at_the_start(text: str, source: str, reason: str) -> None:
    with pytest.raises(BadOption) as refusal:
        config(text)
    assert str(refusal.value).startswith(f'Bad option: "{source}".\n')
    assert reason in str(refusal.value)


def test_an_invalid_variable_is_named() -> None:
    with pytest.raises(BadOption, match="OTEL_BSP_SCHEDULE_DELAY"):
        config("mode=opentelemetry", otel_schedule_delay="soon")


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (("level=TIMESTAMPS", "rate=0", "triton,file=/t"), "sample rate must be non-zero"),
        (("mode=opentelemetry", "level=TENSORS"), "it cannot send tensors"),
    ],
)
def test_settings_that_could_trace_nothing_are_refused(texts: tuple[str, ...], reason: str) -> None:
    with pytest.raises(BadOption, match=reason):
        config(*texts)
