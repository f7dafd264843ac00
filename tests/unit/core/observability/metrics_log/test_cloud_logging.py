from __future__ import annotations

import json

from trident.core.observability.metrics_log import CloudLogging
from trident.core.observability.metrics_report import Figure, Report

NOW_NS = 1_700_000_000_123_456_789
FIGURES = (Figure("request_success", 7), Figure("request_failure", 2), Figure("request_duration_mean", 1.5))


def test_a_line_is_a_structured_entry() -> None:
    assert json.loads(CloudLogging({"endpoint": "e"}).line(Report("digits", FIGURES, "/models"), NOW_NS)) == {
        "severity": "INFO",
        "time": "2023-11-14T22:13:20.123456Z",
        "message": "model 'digits': 7 requests answered, 2 failed",
        "logger": "trident.metrics",
        "scope": "model",
        "logging.googleapis.com/labels": {"endpoint": "e", "model": "digits", "namespace": "/models"},
        "metrics": {"request_success": 7, "request_failure": 2, "request_duration_mean": 1.5},
    }


def test_the_report_of_the_server_has_no_model() -> None:
    line = CloudLogging({}).line(Report(None, FIGURES), NOW_NS)
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["scope"], entry["logging.googleapis.com/labels"]) == ("server", {})
    assert entry["message"] == "the server: 7 requests answered, 2 failed"
