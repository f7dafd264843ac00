from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import ROOT

# Imported by what needs them: object stores, platforms, other protocols, backends and schedulers, and the tools of this
# project.
ON_USE = {
    "trident.adapters.sagemaker.application",
    "trident.adapters.vertex.application",
    "asyncio",
    "boto3",
    "botocore",
    "trident.core.backends.python.backend",
    "trident.core.repository.download",
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
from trident.app.sites.credentials import Credentials
from trident.app.sites.engine_start import EngineStart
from trident.app.sites.in_process import InProcessSite

settings = read_settings(["--model-repository=" + sys.argv[1], "--allow-grpc=" + sys.argv[2]], {})
site = InProcessSite(settings, Credentials(settings), EngineStart(settings))
site.start()
assert site._engine.wait_loaded(60)
print(*sys.modules)
site.finish(10)
"""


@pytest.mark.slow
def test_the_engine_starts_before_what_is_in_front_of_it_is_imported() -> None:
    code = "import sys, trident.app.sites.engine_start; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert IN_FRONT & set(ended.stdout.split()) == set()


@pytest.mark.slow
def test_the_worker_imports_http2_on_use() -> None:
    code = "import sys, trident.app.worker.worker, trident.app.sites.in_process; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert FOR_GRPC & set(ended.stdout.split()) == set()


@pytest.mark.slow
@pytest.mark.parametrize("grpc", ["true", "false"])
def test_a_server_of_one_local_model_imports_only_what_it_uses(tmp_path: Path, grpc: str) -> None:
    (tmp_path / "simple").symlink_to(ROOT / "deploy" / "models" / "simple")
    ended = subprocess.run(
        [sys.executable, "-c", SERVE_ONE_MODEL, str(tmp_path), grpc],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    imported = set(ended.stdout.splitlines()[-1].split())
    assert "trident.core.backends.onnxruntime.backend" in imported
    assert ("trident.core.grpc.application" in imported) == (grpc == "true")
    assert (ON_USE if grpc == "true" else ON_USE | FOR_GRPC) & imported == set()
