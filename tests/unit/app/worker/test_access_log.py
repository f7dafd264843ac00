"""The lines of the access log."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from trident.app.worker.access_log import log_answered, log_refused
from trident.core.http.errors import REQUEST_ID_KEY
from trident.core.http.front_end import INFERENCE_KEY, PROBE_KEY, InferenceNote
from trident.core.inference.request import InferenceTimes
from trident.core.observability.switches import SWITCHES

INFER = {"REQUEST_METHOD": "POST", "RAW_URI": "/v2/models/m/infer", "CONTENT_LENGTH": "12"}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "trident.access")
    return caplog


def fields(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    (record,) = caplog.records
    duration = record.__dict__["duration_ms"]
    assert isinstance(duration, float)
    assert duration >= 0
    return record.__dict__


def test_an_inference_is_logged_with_all_that_is_known(lines: pytest.LogCaptureFixture) -> None:
    note = InferenceNote("m", 3, InferenceTimes(1000, 2000, 3000, 4000, 8))
    log_answered("1.2.3.4", {**INFER, REQUEST_ID_KEY: "a b", INFERENCE_KEY: note}, 200, time.perf_counter_ns(), 99)
    found = fields(lines)
    expected = {
        "client": "1.2.3.4",
        "method": "POST",
        "path": "/v2/models/m/infer",
        "status": 200,
        "received_bytes": 12,
        "sent_bytes": 99,
        "request_id": "a b",
        "model": "m",
        "version": 3,
        "queue_us": 1,
        "compute_input_us": 2,
        "compute_infer_us": 3,
        "compute_output_us": 4,
        "batch_size": 8,
    }
    assert {name: found[name] for name in expected} == expected
    text = lines.messages[0]
    assert text.startswith('1.2.3.4 "POST /v2/models/m/infer" 200 duration_ms=')
    assert 'sent_bytes=99 request_id="a b" model=m version=3 queue_us=1 ' in text
    assert text.endswith(" batch_size=8")


def test_what_is_not_known_is_left_out(lines: pytest.LogCaptureFixture) -> None:
    environ = {"REQUEST_METHOD": "POST", "RAW_URI": "/x", INFERENCE_KEY: InferenceNote("m", -1)}
    log_answered("", environ, 400, time.perf_counter_ns(), 0, aborted=True)
    found = fields(lines)
    assert (found["received_bytes"], found["model"], found["aborted"]) == (0, "m", True)
    assert not {"version", "batch_size", "request_id"} & found.keys()


@pytest.mark.parametrize(("scope", "count"), [("true", 0), ("all", 1)])
def test_probes_are_logged_on_demand(lines: pytest.LogCaptureFixture, scope: str, count: int) -> None:
    SWITCHES.set(access=scope)
    log_answered("", {**INFER, PROBE_KEY: True}, 200, time.perf_counter_ns(), 0)
    assert len(lines.records) == count


@pytest.mark.parametrize(
    ("received", "shown"),
    [
        (b"GET /a HTTP/1.1\r\nHost: b", "GET /a"),
        (b"GET /a", "GET /a"),
        (b"\x16\x03\x01", "- -"),
        (b"", "- -"),
        (b"GET /" + b"a" * 5000, "GET /" + "a" * 1019),
    ],
)
def test_a_refusal_is_logged_with_what_was_received(
    lines: pytest.LogCaptureFixture, received: bytes, shown: str
) -> None:
    log_refused("h", received, 431, time.perf_counter_ns(), 50)
    assert (lines.messages[0].partition('" ')[0], fields(lines)["status"]) == (f'h "{shown}', 431)
