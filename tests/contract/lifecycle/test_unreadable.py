"""Models whose files or folders the server may not read are bad models like others, and the rest is served."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import add_scaled, index, load, state
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import TRIDENT
from tests.waiting import until

# Root reads everything, unless it starts without these.
_UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
# What is not readable in each model.
FORBIDDEN = {
    "folder": ("", 0o000),
    "without_entry": ("", 0o644),
    "version": ("1", 0o000),
    "configuration": ("config.pbtxt", 0o000),
    "graph": ("1/model.onnx", 0o000),
}


class UnprivilegedServer(ServerProcess):
    @property
    def command(self) -> list[str]:
        trident, serve, _, *options = super().command
        return [*_UNPRIVILEGED, trident, serve, self.location, *options]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("readable", *FORBIDDEN):
        add_scaled(tmp_path / "models", name, 2.0)
    for name, (path, mode) in FORBIDDEN.items():
        (tmp_path / "models" / name / path).chmod(mode)
    return tmp_path / "models"


@pytest.fixture
def permit(repository: Path) -> Callable[[], None]:
    def permit() -> None:
        for name, (path, _) in FORBIDDEN.items():
            (repository / name / path).chmod(0o755)

    return permit


def assert_reported(server: ServerProcess) -> None:
    until(lambda: state(server, "readable") == "READY", server.log_text)
    for name in FORBIDDEN:
        (entry,) = index(server, name)
        assert entry["state"] == "UNAVAILABLE"
        assert "Permission denied" in entry["reason"] or "error number 13" in entry["reason"]


def test_unreadable_models_are_reported_and_served_once_readable(
    repository: Path, permit: Callable[[], None], tmp_path: Path
) -> None:
    options = ("--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false")
    with UnprivilegedServer(repository, tmp_path / "log", *options, ready=False) as server:
        # Models are loaded several at a time.
        until(lambda: all(f"failed to load '{name}'" in server.log_text() for name in FORBIDDEN), server.log_text)
        assert_reported(server)
        assert server.log_text().count(f"chmod -R a+rX {repository}") >= len(FORBIDDEN)
        permit()
        until(lambda: {state(server, name) for name in FORBIDDEN} == {"READY"}, server.log_text)


def test_load_of_an_unreadable_model_names_the_reason(
    repository: Path, permit: Callable[[], None], tmp_path: Path
) -> None:
    options = ("--model-control-mode=explicit", "--load-model=readable")
    with UnprivilegedServer(repository, tmp_path / "log", *options) as server:
        for name in FORBIDDEN:
            assert load(server, name)[0] in (400, 500)
        assert_reported(server)
        permit()
        assert {load(server, name) for name in FORBIDDEN} == {(200, "")}


def test_commands_name_the_cure_for_unreadable_models(repository: Path) -> None:
    for command in ("doctor", "validate", "import"):
        run = [*_UNPRIVILEGED, TRIDENT, command, str(repository)]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        output = " ".join((done.stdout + done.stderr).split())
        assert f"chmod -R a+rX {repository}" in output
        assert "Traceback" not in output
