"""Imports of a start, and its progress in the log."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import ROOT
from tests.unit.core.lifecycle.lifecycle_bench import BROKEN, living, write
from tests.unit.core.lifecycle.test_ensembles import ensemble, step
from tests.waiting import until
from trident.app.settings.reading import read_settings
from trident.app.sites.engine_start import default_model_problem, watch_start
from trident.app.terminal import ModelRow

# Imported by what needs them: object stores, platforms, other protocols, backends and schedulers, and the tools of this
# project.
ON_USE = {
    "trident.adapters.sagemaker.application",
    "trident.adapters.vertex.application",
    "asyncio",
    "boto3",
    "botocore",
    "trident.core.backends.python.backend",
    "trident.core.repository.cloud_sources",
    "trident.core.scheduling.ensemble",
    "trident.core.scheduling.sequence_batcher",
    "flask",
    "google.cloud.storage",
    "grpc",
    "importlib.metadata",
    "jinja2",
    "multiprocessing",
    "onnx",
    "opentelemetry",
    "packaging.requirements",
    "prometheus_flask_exporter",
    "redis",
    "requests",
    "tritonclient.grpc",
    "urllib3",
    "werkzeug",
}

# What is in front of the engine: it is imported while the models load.
IN_FRONT = {
    "trident.app.worker.worker",
    "trident.core.grpc.application",
    "trident.core.http.application",
    "gevent",
    "gunicorn",
    "hpack",
}

FOR_GRPC = {"trident.app.worker.http2.connection", "trident.core.grpc.application", "hpack"}

SERVE_ONE_MODEL = """
import sys
from trident.app.settings.reading import read_settings
from trident.app.sites.site import Credentials
from trident.app.sites.engine_start import EngineStart
from trident.app.sites.applications import InProcessSite

settings = read_settings(["--model-repository=" + sys.argv[1], "--allow-grpc=" + sys.argv[2]], {})
site = InProcessSite(settings, Credentials(settings), EngineStart(settings))
site.start()
assert site._engine.wait_loaded(60)
print(*sys.modules)
site.finish(10)
"""


def imported_by(code: str, *arguments: str) -> set[str]:
    """The modules that a program has imported at its end."""
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.splitlines()[-1].split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "later"),
    [
        ("trident.app.sites.engine_start", IN_FRONT),
        ("trident.app.worker.worker, trident.app.sites.applications", FOR_GRPC),
    ],
    ids=["the engine starts before what is in front of it", "the worker imports HTTP/2 on use"],
)
def test_engine_and_worker_import_modules_on_use(modules: str, later: set[str]) -> None:
    assert later & imported_by(f"import sys, {modules}; print(*sys.modules)") == set()


@pytest.mark.slow
@pytest.mark.parametrize("grpc", ["true", "false"])
def test_server_of_one_local_model_imports_only_needed_modules(tmp_path: Path, grpc: str) -> None:
    (tmp_path / "simple").symlink_to(ROOT / "deploy" / "models" / "simple")
    imported = imported_by(SERVE_ONE_MODEL, str(tmp_path), grpc)
    assert "trident.core.backends.onnxruntime.backend" in imported
    assert ("trident.core.grpc.application" in imported) == (grpc == "true")
    assert (ON_USE if grpc == "true" else ON_USE | FOR_GRPC) & imported == set()


ROWS = [ModelRow("cat", "1", "READY"), ModelRow("cow", "", "UNAVAILABLE"), ModelRow("dog", "2", "READY")]
AIP = {"AIP_MODE": "PREDICTION", "AIP_STORAGE_URI": "/models"}


def problem(*arguments: str) -> str:
    return default_model_problem(read_settings(arguments, AIP), ROWS)


@pytest.mark.parametrize("name", ["zzz", "cow"])
def test_missing_default_model_ends_the_start(name: str) -> None:
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
def test_default_model_that_is_or_may_be_loaded_does_not_end_the_start(arguments: list[str]) -> None:
    assert problem(*arguments) == ""


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


def test_start_lines_that_tools_wait_for_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path, "m", 1)
    with living(tmp_path) as bench:
        watch_start(read_settings(OPTIONS, {}), bench.engine, pytest.fail)
        until(lambda: len(started(caplog)) == len(STARTED))
        assert started(caplog) == STARTED


def test_sample_request_prefers_the_ensemble_to_its_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path, "a", 1)  # whose request is shorter
    ensemble(tmp_path, "ensemble", step("a", "INPUT0", "OUTPUT0"))
    with living(tmp_path) as bench:
        watch_start(read_settings(OPTIONS, {}), bench.engine, pytest.fail)
        until(lambda: any("To try it" in message for message in caplog.messages))
        (command,) = [record.__dict__["command"] for record in caplog.records if "command" in record.__dict__]
        assert "/v2/models/ensemble/infer" in command


def test_failed_server_does_not_log_that_it_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path, "m", BROKEN)
    reasons: list[str] = []
    with living(tmp_path) as bench:
        watch_start(read_settings(OPTIONS, {}), bench.engine, reasons.append)
        until(lambda: bool(reasons))
        (reason,) = reasons
        assert reason.startswith("Internal - failed to load all models (m: version 1 is UNAVAILABLE: Internal: the wei")
        assert started(caplog) == []
