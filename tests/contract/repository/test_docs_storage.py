"""The ways to serve from cloud storage that the docs show, run as they stand, against the emulators they start."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.session import session_members, start_session
from tests.project import ROOT
from tests.waiting import until

SCRIPT = re.compile(r"^<!-- storage: (\w+) -->\n```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPTS = dict(SCRIPT.findall((ROOT / "docs" / "model-repository.md").read_text()))
EMULATOR_PORTS = {"s3": "5000", "gs": "9023"}
LIMIT_S = 90.0


def test_both_storages_are_shown() -> None:
    assert SCRIPTS.keys() == EMULATOR_PORTS.keys()


@contextlib.contextmanager
def running(script: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The script in a session of its own, which is gone at the end with all that was started in it."""
    names = ("AWS_", "GOOGLE_", "STORAGE_", "TRIDENT_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(names) and not k.lower().endswith("_proxy")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    started = start_session(["bash", "-euc", script], log, cwd=ROOT, env=environment)
    try:
        yield started
    finally:
        deadline = time.monotonic() + LIMIT_S
        while members := session_members(started.pid):
            late = time.monotonic() > deadline
            for member in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL if late else signal.SIGTERM)
            time.sleep(0.05)
        started.wait(LIMIT_S)


def ask(port: int, method: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=LIMIT_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def is_ready(port: int) -> bool:
    with contextlib.suppress(OSError):
        return ask(port, "GET", "/v2/health/ready")[0] == 200
    return False


@pytest.mark.slow
@pytest.mark.parametrize("storage", SCRIPTS)
def test_the_commands_serve_the_models(storage: str, tmp_path: Path) -> None:
    http_port, metrics_port, emulator_port = free_ports(3)
    script = SCRIPTS[storage].replace(EMULATOR_PORTS[storage], str(emulator_port)).rstrip()
    assert script.splitlines()[-1].startswith("trident serve")
    options = f"--http-address={HOST} --http-port={http_port} --metrics-port={metrics_port}"
    log = tmp_path / "log"
    with running(f"{script} {options} --model-cache-directory={tmp_path / 'cache'}", log) as started:
        until(lambda: is_ready(http_port) or started.poll() is not None, log.read_text, limit_s=LIMIT_S)
        assert started.poll() is None, log.read_text()
        _, index = ask(http_port, "POST", "/v2/repository/index")
        assert {(item["name"], item["state"]) for item in json.loads(index)} == {
            ("digits", "READY"),
            ("simple", "READY"),
        }
        _, page = ask(metrics_port, "GET", "/metrics")
        assert re.search(rb"^trident_repository_downloaded_objects_total [1-9]", page, re.MULTILINE)
