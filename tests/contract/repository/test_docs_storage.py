"""The commands of the documents that serve from cloud storage, run with the emulators they start."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.contract.repository.azurite import azurite_program
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.session import kill_session, session_members, start_session
from tests.needed import program
from tests.project import ROOT
from tests.waiting import until

SCRIPT = re.compile(r"^<!-- storage: (\w+) -->\n```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPTS = dict(SCRIPT.findall((ROOT / "docs" / "model-repository.md").read_text()))
EMULATOR_PORTS = {"s3": "5000", "gs": "9023", "as": "10000"}
LIMIT_S = 90.0


def test_document_shows_every_storage() -> None:
    assert SCRIPTS.keys() == EMULATOR_PORTS.keys()


@contextlib.contextmanager
def running(script: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the script in a new session, whose processes are ended on exit."""
    names = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_", "TRIDENT_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(names) and not k.lower().endswith("_proxy")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    started = start_session(["bash", "-euc", script], log, cwd=ROOT, env=environment)
    try:
        yield started
    finally:
        for member in session_members(started.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGTERM)
        try:
            until(lambda: not session_members(started.pid), "processes do not end", limit_s=LIMIT_S)
        finally:
            kill_session(started)


def is_ready(port: int) -> bool:
    with contextlib.suppress(requests.ConnectionError):
        return requests.get(f"http://{HOST}:{port}/v2/health/ready", timeout=LIMIT_S).status_code == 200
    return False


@pytest.mark.slow
@pytest.mark.parametrize("storage", SCRIPTS)
def test_commands_serve_the_models(storage: str, tmp_path: Path) -> None:
    program("curl", "apt install curl")
    if storage == "as":
        azurite_program()
    http_port, metrics_port, emulator_port = free_ports(3)
    script = SCRIPTS[storage].replace(EMULATOR_PORTS[storage], str(emulator_port)).rstrip()
    assert script.splitlines()[-1].startswith("trident serve")
    options = f"--http-address={HOST} --http-port={http_port} --metrics-port={metrics_port} --allow-grpc=false"
    log = tmp_path / "log"
    with running(f"{script} {options} --model-cache-directory={tmp_path / 'cache'}", log) as started:
        until(lambda: is_ready(http_port) or started.poll() is not None, log.read_text, limit_s=LIMIT_S)
        assert started.poll() is None, log.read_text()
        index = requests.post(f"http://{HOST}:{http_port}/v2/repository/index", timeout=LIMIT_S).json()
        assert {(item["name"], item["state"]) for item in index} == {("digits", "READY"), ("simple", "READY")}
        page = requests.get(f"http://{HOST}:{metrics_port}/metrics", timeout=LIMIT_S).text
        assert re.search(r"^trident_repository_downloaded_objects_total [1-9]", page, re.MULTILINE)
