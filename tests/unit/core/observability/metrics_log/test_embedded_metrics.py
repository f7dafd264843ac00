from __future__ import annotations

import json

import pytest

from tests.unit.core.observability.metrics_log.embedded_metric_format import problems
from trident.core.observability.metrics_log import EmbeddedMetrics
from trident.core.observability.metrics_report import FIGURES, Figure, Report

NOW_NS = 1_700_000_000_123_456_789
EVERYTHING = tuple(Figure(name, 1.5) for name in FIGURES)


def test_a_line_is_a_document_of_the_format() -> None:
    line = EmbeddedMetrics("Trident", {"endpoint": "e"}).line(Report("digits", (Figure("request_success", 7),)), NOW_NS)
    assert json.loads(line) == {
        "_aws": {
            "Timestamp": 1_700_000_000_123,
            "CloudWatchMetrics": [
                {
                    "Namespace": "Trident",
                    "Dimensions": [["endpoint", "model"]],
                    "Metrics": [{"Name": "request_success", "Unit": "Count"}],
                }
            ],
        },
        "endpoint": "e",
        "model": "digits",
        "request_success": 7,
    }
    assert problems(line) == []


@pytest.mark.parametrize(
    ("report", "dimensions"),
    [
        (Report(None, EVERYTHING), []),
        (Report("m", EVERYTHING), ["model"]),
        (Report("m", EVERYTHING, "/models"), ["model", "namespace"]),
        (Report('Modèle "1"\n', EVERYTHING), ["model"]),
    ],
)
def test_every_report_is_valid(report: Report, dimensions: list[str]) -> None:
    own = {f"d{number}": "x" for number in range(28)}
    for given in ({}, own):
        line = EmbeddedMetrics("Trident", given).line(report, NOW_NS)
        assert problems(line) == []
        assert json.loads(line)["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [[*given, *dimensions]]


def test_a_name_that_is_not_ascii_is_escaped() -> None:
    line = EmbeddedMetrics("Trident", {}).line(Report("modèle", EVERYTHING), NOW_NS)
    assert json.loads(line)["model"] == "mod\\xe8le"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"x": "text"}, "the value of x"),
        ({"x": {"a": 1}}, "the value of x"),
        ({"x": [1] * 101}, "the value of x"),
        ({"d": 7}, "the value of the dimension d"),
        ({"d": "é"}, "the value of the dimension d"),
        ({"d": " "}, "the value of the dimension d"),
        ({"_aws": {"Timestamp": 1_700_000_000, "CloudWatchMetrics": []}}, "a timestamp in ms"),
    ],
)
def test_the_rules_find_a_wrong_document(change: dict[str, object], problem: str) -> None:
    """Otherwise the tests above would prove nothing."""
    directive = {"Namespace": "N", "Dimensions": [["d"]], "Metrics": [{"Name": "x", "Unit": "Count"}]}
    good = {"_aws": {"Timestamp": NOW_NS // 10**6, "CloudWatchMetrics": [directive]}, "d": "v", "x": [1, 2.5]}
    assert problems(json.dumps(good)) == []
    assert problem in problems(json.dumps({**good, **change}))
