"""docker/healthcheck.py, which the image's HEALTHCHECK runs, with real servers in their three roles."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from docker.healthcheck import Question, question, server_arguments
from tests.contract.platforms.container import platform_environment
from tests.contract.servers.ports import free_ports
from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.waiting import until
from trident.app.settings.reading import read_settings

MODELS = ROOT / "deploy" / "models"
LIMIT_S = 60.0


def healthcheck(pid: int, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The exit status and the output of the check."""
    command = [sys.executable, str(ROOT / "docker" / "healthcheck.py"), str(pid)]
    done = subprocess.run(
        command,
        env={**platform_environment({}), **(environment or {}), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def answers(server: ServerProcess) -> bool:
    try:
        return server.request("GET", "/v2/health/live")[0] == 200
    except OSError:
        return False


@pytest.mark.slow
def test_ready_server_is_healthy(tmp_path: Path) -> None:
    options = ("--model-control-mode=explicit", "--load-model=simple", "--shutdown-grace-secs=0")
    with ServerProcess(MODELS, tmp_path / "log", *options) as server:
        assert healthcheck(server.process.pid) == (0, "")


@pytest.mark.slow
def test_unready_server_is_unhealthy_with_the_reason(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    (repository / "broken").mkdir(parents=True)
    (repository / "broken" / "config.pbtxt").write_text('backend: "onnxruntime"\n')
    options = ("--exit-on-error=false", "--shutdown-grace-secs=0")
    with ServerProcess(repository, tmp_path / "log", *options, ready=False) as server:
        until(lambda: answers(server), server.log_text)
        status, printed = healthcheck(server.process.pid)
    assert status == 1
    assert printed.startswith("400 ")  # Triton's status
    assert "broken" in printed


@pytest.mark.slow
def test_closed_port_is_unhealthy() -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-c", "input()", "trident", "--model-repository=/models", f"--http-port={port}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        status, printed = healthcheck(process.pid)
        assert process.stdin is not None
        process.stdin.write(b"\n")
    assert status == 1
    assert printed.startswith(f"port {port}: ")


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["/opt/trident/bin/python", "/opt/trident/bin/trident", "serve"], []),
        (
            ["/opt/trident/bin/python", "/opt/trident/bin/trident", "serve", "--id=a b", "--id", "é"],
            ["--id=a b", "--id", "é"],
        ),
        (["/opt/trident/bin/python", "/opt/trident/bin/trident", "--http-port=1"], ["--http-port=1"]),
        (["/sbin/docker-init", "--", "trident", "serve", "--http-port=1"], ["--http-port=1"]),
        (["python", "/opt/trident/bin/trident", "validate", "/models"], None),
        (["python", "/opt/trident/bin/trident"], None),
        (["sleep", "60"], None),
    ],
)
def test_server_arguments_are_read_from_the_command_line(words: list[str], arguments: list[str] | None) -> None:
    assert server_arguments("".join(f"{word}\0" for word in words).encode()) == arguments


@pytest.mark.parametrize(
    ("arguments", "variables", "asked"),
    [
        (["--http-port=7000"], {}, Question("127.0.0.1", 7000, "/v2/health/ready")),
        (["--http-address=::", "--http-port=7000"], {}, Question("::1", 7000, "/v2/health/ready")),
        (["--http-address=10.0.0.1"], {}, Question("10.0.0.1", 8000, "/v2/health/ready")),
        ([], {"SAGEMAKER_MULTI_MODEL": "true"}, Question("127.0.0.1", 8080, "/ping")),
        ([], {"SAGEMAKER_MULTI_MODEL": "true", "SAGEMAKER_BIND_TO_PORT": "9000"}, Question("127.0.0.1", 9000, "/ping")),
        (
            [],
            {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "9000", "AIP_HEALTH_ROUTE": "/h", "AIP_PREDICT_ROUTE": "/p"},
            Question("127.0.0.1", 9000, "/h"),
        ),
    ],
)
def test_probe_has_the_address_and_path_of_the_role(
    arguments: list[str], variables: dict[str, str], asked: Question
) -> None:
    assert question(read_settings(["--model-repository=/models", *arguments], variables)) == asked
