from __future__ import annotations

from typing import Any

import pytest

from trident.core.errors import InvalidRequest
from trident.core.observability.tracing.settings import TraceSettings, TraceTable

START = TraceSettings(levels=(), rate=1000, count=-1, frequency=0)
TIMES = ("TIMESTAMPS",)


def table(start: TraceSettings = START, *, has_destination: bool = True) -> TraceTable:
    return TraceTable(start, has_destination=has_destination)


@pytest.mark.parametrize(
    ("changes", "server", "model"),
    [
        ([], START, START),
        ([("", {"trace_rate": 5})], TraceSettings(rate=5), TraceSettings(rate=5)),
        ([("m", {"trace_rate": 5})], START, TraceSettings(rate=5)),
        # What a model has of its own stays, the rest follows the server.
        (
            [("m", {"trace_rate": 5}), ("", {"trace_rate": 7, "trace_count": 9})],
            TraceSettings(rate=7, count=9),
            TraceSettings(rate=5, count=9),
        ),
        ([("m", {"trace_level": TIMES}), ("m", {"trace_level": None})], START, START),
        (
            [("", {"trace_level": TIMES}), ("m", {"trace_level": (), "trace_rate": 1}), ("m", {"trace_level": None})],
            TraceSettings(levels=TIMES),
            TraceSettings(levels=TIMES, rate=1),
        ),
        ([("", {"log_frequency": 2}), ("", {"log_frequency": None})], START, START),
        ([("", {"trace_rate": 0}), ("m", {"trace_count": 0})], TraceSettings(rate=0), TraceSettings(rate=0, count=0)),
    ],
)
def test_a_model_inherits_what_it_does_not_have(
    changes: list[tuple[str, dict[str, Any]]], server: TraceSettings, model: TraceSettings
) -> None:
    settings = table()
    for name, values in changes:
        settings.change(name, values)
    assert settings.of() == settings.of("other") == server
    assert settings.of("m") == model


def test_what_is_cleared_is_that_of_the_start() -> None:
    settings = table(TraceSettings(levels=TIMES, rate=3))
    settings.change("", {"trace_rate": 4})
    settings.change("", {"trace_rate": None})
    assert settings.of() == TraceSettings(levels=TIMES, rate=3)


def test_a_model_whose_settings_are_all_cleared_has_none() -> None:
    settings = table()
    settings.change("m", {"trace_rate": 1, "trace_count": 1})
    assert settings.models == ("m",)
    settings.change("m", {"trace_rate": None, "trace_count": None})
    assert settings.models == ()


@pytest.mark.parametrize(
    ("model", "changes", "text"),
    [
        ("", {"trace_level": TIMES, "trace_rate": 0}, ":sample rate must be non-zero"),
        ("m", {"trace_rate": 0}, ":sample rate must be non-zero"),
        ("", {"trace_rate": 0}, ":sample rate must be non-zero"),
    ],
)
def test_settings_that_could_trace_nothing_are_refused_and_nothing_is_changed(
    model: str, changes: dict[str, Any], text: str
) -> None:
    settings = table()
    settings.change("m", {"trace_level": TIMES})
    with pytest.raises(InvalidRequest, match=f"^Attempting to set invalid trace setting {text}$"):
        settings.change(model, changes)
    assert settings.of() == START
    assert settings.of("m") == TraceSettings(levels=TIMES)


def test_nothing_can_be_traced_without_a_file() -> None:
    settings = table(has_destination=False)
    with pytest.raises(InvalidRequest, match="trace file name is not given"):
        settings.change("", {"trace_level": TIMES})
    settings.change("", {"trace_rate": 0})
