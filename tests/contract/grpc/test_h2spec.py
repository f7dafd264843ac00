"""h2spec, the conformance suite for HTTP/2, against the gRPC port.

What it checks stands in tests/unit/app/worker/http2/test_rules.py as raw frames, too.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess

pytestmark = pytest.mark.slow

LIMIT_S = 120
TESTS = 146


def test_all_of_h2spec(server: ServerProcess):
    h2spec = shutil.which("h2spec")
    if h2spec is None:
        pytest.skip("there is no h2spec on the PATH: https://github.com/summerwind/h2spec")
    path = "/inference.GRPCInferenceService/ModelInfer"
    command = [h2spec, "-h", HOST, "-p", str(server.grpc_port), "-P", path, "-o", "5"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert f"{TESTS} tests, {TESTS} passed, 0 skipped, 0 failed" in ran.stdout, ran.stdout + ran.stderr
    assert "Traceback" not in server.log_text()
