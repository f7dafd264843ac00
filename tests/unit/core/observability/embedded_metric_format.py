"""The rules of CloudWatch's embedded metric format, for tests of what writes it.

Source: docs/spec/metrics-log.md section 1. CloudWatch drops a document that breaks one of them and says nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

UNITS = frozenset(
    {
        *("Seconds", "Microseconds", "Milliseconds", "Percent", "Count", "None"),
        *(f"{size}{what}" for size in ("", "Kilo", "Mega", "Giga", "Tera") for what in ("bytes", "bits") if size),
        *("Bytes", "Bits", "Count/Second", "Bytes/Second", "Bits/Second"),
    }
)
MAX_BYTES = 256 * 1024  # of the older limit; today it is 1 MB
MAX_METRICS = 100
MAX_DIMENSIONS = 30
MAX_VALUES = 100
_PRINTABLE = re.compile(r"(?!:)(?=.*[!-~])[ -~]+")


def problems(line: str) -> list[str]:
    """What is wrong with one line of a log; empty for a valid document."""
    found: list[str] = []

    def check(condition: object, what: str) -> None:
        if not condition:
            found.append(what)

    check("\n" not in line and len(line.encode()) <= MAX_BYTES, "one line of limited size")
    root = json.loads(line, parse_constant=lambda name: found.append(f"{name} is no JSON"))
    metadata = root["_aws"]
    check(set(metadata) == {"Timestamp", "CloudWatchMetrics"}, "the members of _aws")
    check(_is_integer(metadata["Timestamp"]) and 10**12 < metadata["Timestamp"] < 10**13, "a timestamp in ms")
    check(metadata["CloudWatchMetrics"], "a directive")
    for directive in metadata["CloudWatchMetrics"]:
        check(set(directive) == {"Namespace", "Dimensions", "Metrics"}, "the members of a directive")
        check(_is_text(directive["Namespace"], 255), "a namespace")
        check(directive["Dimensions"], "a set of dimensions")
        for names in directive["Dimensions"]:
            check(len(names) <= MAX_DIMENSIONS and len(set(names)) == len(names), "the number of dimensions")
            for name in names:
                check(_is_text(name, 250), f"the name of the dimension {name}")
                check(_is_text(root.get(name), 1024), f"the value of the dimension {name}")
        check(0 < len(directive["Metrics"]) <= MAX_METRICS, "the number of metrics")
        for metric in directive["Metrics"]:
            check({"Name"} <= set(metric) <= {"Name", "Unit", "StorageResolution"}, "the members of a metric")
            check(_is_text(metric["Name"], 255), "the name of a metric")
            check(metric.get("Unit", "None") in UNITS, f"the unit of {metric['Name']}")
            check(metric.get("StorageResolution", 60) in (1, 60), f"the resolution of {metric['Name']}")
            check(_is_numeric(root.get(metric["Name"])), f"the value of {metric['Name']}")
    return found


def _is_text(value: Any, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and _PRINTABLE.fullmatch(value) is not None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_numeric(value: Any) -> bool:
    if isinstance(value, list):
        return 0 < len(value) <= MAX_VALUES and all(map(_is_numeric, value))
    return isinstance(value, int | float) and not isinstance(value, bool)
