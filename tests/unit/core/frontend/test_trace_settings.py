from __future__ import annotations

from typing import Any

import pytest

from trident.core.errors import InvalidRequest, ServerError, Unsupported
from trident.core.frontend.admin import wanted_changes


def texts(name: str, value: object) -> list[str]:
    assert isinstance(value, list)
    return value


def text(name: str, value: object) -> str:
    return str(value)


def changes(**wanted: Any) -> dict[str, Any]:
    return wanted_changes(wanted, texts, text, " ")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, {}),
        ({"trace_mode": "opentelemetry"}, {}),
        ({"trace_level": ["TENSORS", "TIMESTAMPS"]}, {"trace_level": ("TIMESTAMPS", "TENSORS")}),
        ({"trace_level": ["TENSORS", "timestamps"]}, {"trace_level": ("TENSORS",)}),
        ({"trace_level": ["nothing"]}, {}),
        ({"trace_level": []}, {}),
        ({"trace_level": ["OFF"]}, {"trace_level": ()}),
        ({"trace_level": None, "trace_rate": None}, {"trace_level": None, "trace_rate": None}),
        ({"trace_rate": "12abc", "log_frequency": " +3"}, {"trace_rate": 12, "log_frequency": 3}),
        ({"trace_rate": "-1"}, {"trace_rate": 4294967295}),
        ({"trace_count": "-1"}, {"trace_count": -1}),
    ],
)
def test_changes(wanted: dict[str, Any], found: dict[str, Any]) -> None:
    assert changes(**wanted) == found


@pytest.mark.parametrize(
    ("wanted", "message", "kind"),
    [
        ({"trace_file": None}, "trace file location can not be updated through network protocol", Unsupported),
        ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified", InvalidRequest),
        ({"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x", InvalidRequest),
        (
            {"trace_rate": "10000000000"},
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 10000000000",
            InvalidRequest,
        ),
        (
            {"trace_count": "9" * 5000},
            f"Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: {'9' * 5000}",
            InvalidRequest,
        ),
        ({"trace_levl": ["OFF"]}, "unknown trace setting 'trace_levl', did you mean 'trace_level'?", InvalidRequest),
        ({"trace_count": "-2"}, "Unable to parse 'trace_count'. Expecting value >= -1, got: -2", InvalidRequest),
    ],
)
def test_invalid_changes(wanted: dict[str, Any], message: str, kind: type[ServerError]) -> None:
    with pytest.raises(kind) as refusal:
        changes(**wanted)
    assert refusal.value.message == message
