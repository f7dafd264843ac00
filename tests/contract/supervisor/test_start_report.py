"""The report of a start on the terminal: its width, its colours, and a request to copy."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import ServerProcess, environment_without
from tests.contract.servers.session import TRIDENT
from tests.waiting import until

pytestmark = pytest.mark.slow

LIMIT_S = 60.0
COLOUR = re.compile(r"\x1b\[[0-9]*m")


def command_in(log: str) -> str:
    (command,) = [line.strip() for line in log.splitlines() if line.startswith("    curl ")]
    return command


def test_request_in_the_start_report_works(tmp_path: Path, shipped_models: Path) -> None:
    with ServerProcess(shipped_models, tmp_path / "log", "--shutdown-grace-secs=0") as server:
        until(lambda: "    curl " in server.log_text(), server.log_text)
        log = server.log_text()
        *_, url, data, body = shlex.split(command_in(log))
        assert (url.startswith(f"http://{server.address}/"), data) == (True, "-d")
        status, _, answer = server.request("POST", url.partition(server.address)[2], body)
        assert (status, json.loads(answer)["model_name"]) == (200, "simple")
    assert max(len(line) for line in log.splitlines() if line[:1] in ("|", "+")) <= 80
    assert "\x1b" not in log


@pytest.mark.parametrize("no_color", ["", "1"])
def test_terminal_output_is_coloured_unless_disabled(shipped_models: Path, no_color: str) -> None:
    http, grpc, metrics = free_ports(3)
    options = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}", "--shutdown-grace-secs=0"]
    environment = environment_without("TRIDENT_", "NO_COLOR") | {"TERM": "xterm", "NO_COLOR": no_color}
    ours, theirs = pty.openpty()
    command = [TRIDENT, "serve", str(shipped_models), f"--http-address={HOST}", f"--grpc-address={HOST}", *options]
    server = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment, start_new_session=True)
    os.close(theirs)
    shown = ""
    try:
        while "curl" not in shown or not shown.endswith("\n"):
            shown += os.read(ours, 65536).decode()
        server.send_signal(signal.SIGTERM)
        while True:
            try:
                if not os.read(ours, 65536):
                    break
            except OSError:  # the other end is closed
                break
        assert server.wait(LIMIT_S) == 0
    finally:
        server.kill()
        server.wait()
        os.close(ours)
    assert bool(COLOUR.search(shown)) is not bool(no_color)
    assert shlex.split(COLOUR.sub("", command_in(COLOUR.sub("", shown))))[:2] == ["curl", "-s"]
