from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.unit.core.lifecycle.lifecycle_bench import BROKEN, living, write
from tests.waiting import until
from trident.app.settings.reading import read_settings
from trident.app.sites.start import StartWatch, default_model_problem, start_failure
from trident.app.terminal import ModelRow
from trident.core.lifecycle.state import Phase, ServingPhase

ROWS = [ModelRow("cat", "1", "READY"), ModelRow("cow", "", "UNAVAILABLE"), ModelRow("dog", "2", "READY")]
AIP = {"AIP_MODE": "PREDICTION", "AIP_STORAGE_URI": "/models"}


def problem(*arguments: str) -> str:
    return default_model_problem(read_settings(arguments, AIP), ROWS)


@pytest.mark.parametrize("name", ["zzz", "cow"])
def test_a_default_model_that_was_not_loaded_is_a_problem(name: str) -> None:
    expected = f"--vertex-ai-default-model is '{name}', which is not among the loaded models: cat, dog"
    assert problem(f"--vertex-ai-default-model={name}") == expected
    assert problem(f"--vertex-ai-default-model={name}", "--model-control-mode=explicit") == expected


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--vertex-ai-default-model=dog"],
        ["--vertex-ai-default-model=zzz", "--model-control-mode=poll"],
        ["--vertex-ai-default-model=zzz", "--model-control-mode=explicit", "--allow-http=true"],
        ["--vertex-ai-default-model=zzz", "--model-control-mode=explicit", "--public-routes=model-repository"],
    ],
)
def test_a_default_model_that_is_loaded_or_may_be_is_no_problem(arguments: list[str]) -> None:
    assert problem(*arguments) == ""


def test_the_first_failures_are_named_with_their_reasons() -> None:
    assert default_model_problem(read_settings(["--model-repository=/models"], {}), ROWS) == ""
    settings = read_settings(["--model-repository=/models"], {})
    expected = "Internal - failed to load all models (a: no; b: no; c: no; and 1 more)"
    assert start_failure(settings, FAILED, ROWS) == expected
    assert start_failure(settings, ServingPhase(name=Phase.READY), ROWS) == ""


FAILED = ServingPhase(name=Phase.FAILED, failures=dict.fromkeys("dcba", "no"))


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
