from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import BROKEN, living, write
from tests.waiting import until
from trident.app.settings.reading import read_settings
from trident.app.sites.start import StartWatch

OPTIONS = (
    "--model-repository=/models",
    "--http-address=127.0.0.1",
    "--metrics-address=127.0.0.2",
    "--allow-sagemaker=true",
    "--sagemaker-port=8081",
    "--allow-vertex-ai=true",
    "--vertex-ai-port=8082",
)
STARTED = [
    "Started GRPCInferenceService at 0.0.0.0:8001",
    "Started HTTPService at 127.0.0.1:8000",
    "Started Sagemaker HTTPService at 127.0.0.1:8081",
    "Started Vertex AI HTTPService at 127.0.0.1:8082",
    "Started Metrics Service at 127.0.0.2:8002",
]


def started(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.startswith("Started ")]


def test_the_lines_that_tools_wait_for_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path, "m", 1)
    with living(tmp_path) as bench:
        StartWatch(read_settings(OPTIONS, {}), bench.engine, pytest.fail).start()
        until(lambda: len(started(caplog)) == len(STARTED))
        assert started(caplog) == STARTED


def test_a_server_that_fails_does_not_log_that_it_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path, "m", BROKEN)
    reasons: list[str] = []
    with living(tmp_path) as bench:
        StartWatch(read_settings(OPTIONS, {}), bench.engine, reasons.append).start()
        until(lambda: bool(reasons))
        (reason,) = reasons
        assert reason.startswith("Internal - failed to load all models (m: version 1 is UNAVAILABLE: Internal: the wei")
        assert started(caplog) == []
