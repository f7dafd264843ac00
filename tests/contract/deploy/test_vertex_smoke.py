"""`python -m deploy.vertex smoke` with the platform's emulator and the real server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.emulators.emulator_process import LIMIT_S
from tests.contract.emulators.vertex_emulator import VertexEmulator
from tests.contract.servers.simple_model import good_document
from tests.contract.vertex.vertex_container import environment
from tests.project import ROOT

MODELS = ROOT / "deploy" / "models"
DIGIT = ROOT / "deploy" / "digits" / "7.json"
ALL_CALLS = 6

pytestmark = pytest.mark.slow


def smoke(emulator: VertexEmulator, request: Path, *arguments: str) -> tuple[int, str, str]:
    """The exit status, the output and the errors."""
    _, project, _, location, _, endpoint = emulator.endpoint.split("/")
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "deploy.vertex", "smoke"),
            *(f"--project={project}", f"--location={location}", f"--endpoint={endpoint}"),
            *(f"--request={request}", f"--api-endpoint={emulator.url}", f"--timeout-secs={LIMIT_S}", *arguments),
        ],
        cwd=ROOT,
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return finished.returncode, finished.stdout, finished.stderr


def test_every_call_of_a_dedicated_endpoint_is_answered(tmp_path: Path) -> None:
    with VertexEmulator(tmp_path, MODELS / "digits") as emulator:
        status, out, errors = smoke(emulator, DIGIT)
        assert (status, errors) == (0, ""), out
        assert out.count(" ...\n") == 1 + ALL_CALLS
        assert out.count("  1 rows of 10 values\n") == ALL_CALLS - 1
        assert emulator.end() == 0, emulator.text()


def test_shared_endpoint_gets_no_unsupported_calls(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps(good_document()))
    with VertexEmulator(tmp_path, MODELS / "simple", "--endpoint-type=shared") as emulator:
        status, out, errors = smoke(emulator, request)
        assert (status, errors) == (0, ""), out
        assert "predict with 1 instances ...\n  1 rows of 32 values" in out
        assert "stream" not in out
        assert out.count(" ...\n") == 1 + ALL_CALLS - 2
        assert emulator.end() == 0, emulator.text()


def test_wrong_request_and_missing_endpoint_fail(tmp_path: Path) -> None:
    with VertexEmulator(tmp_path, MODELS / "simple") as emulator:
        status, out, _ = smoke(emulator, DIGIT)
        assert status == 1
        assert out.count("FAILED: status 400") == ALL_CALLS - 1
        assert "redirected to metrics ...\n  FAILED" not in out
        status, _, errors = smoke(emulator, DIGIT, "--endpoint=77")
        assert status == 1
        assert "is not found" in errors
        assert "Traceback" not in errors
        assert emulator.end() == 0, emulator.text()
