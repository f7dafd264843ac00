"""The rules of CloudWatch's embedded metric format, for tests of its writer.

Source: docs/spec/metrics-log.md section 1. CloudWatch drops a document that breaks one of them and says nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

UNITS = {"Count", "Milliseconds", "Percent", "Bytes"}
_PRINTABLE = re.compile(r"(?!:)(?=.*[!-~])[ -~]+")


def check_document(line: str) -> None:
    """AssertionError unless one line of a log is a valid document."""
    assert "\n" not in line
    assert len(line.encode()) <= 256 * 1024  # the older limit; today it is 1 MB
    root = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    metadata = root["_aws"]
    assert set(metadata) == {"Timestamp", "CloudWatchMetrics"}
    assert 10**12 < metadata["Timestamp"] < 10**13, "it is in milliseconds"
    for directive in metadata["CloudWatchMetrics"]:
        assert set(directive) == {"Namespace", "Dimensions", "Metrics"}
        assert _is_text(directive["Namespace"], 255)
        for names in directive["Dimensions"]:
            assert len(names) <= 30
            assert len(set(names)) == len(names)
            assert all(_is_text(name, 250) and _is_text(root.get(name), 1024) for name in names), names
        assert 0 < len(directive["Metrics"]) <= 100
        for metric in directive["Metrics"]:
            assert set(metric) == {"Name", "Unit"}
            assert _is_text(metric["Name"], 255)
            assert metric["Unit"] in UNITS
            assert type(root[metric["Name"]]) in (int, float), metric


def _is_text(value: Any, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and _PRINTABLE.fullmatch(value) is not None
