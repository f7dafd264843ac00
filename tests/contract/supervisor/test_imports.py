"""The processes of a server import nothing of the other commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.contract.servers.server import ServerProcess

pytestmark = pytest.mark.slow

# Runs `trident` with the remaining arguments; each of its processes appends the names of the modules that it imports.
WATCHED = """
import sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("trident."):
            with open(file, "a") as names:
                names.write(name + "\\n")

file = sys.argv.pop(1)
sys.meta_path.insert(0, Watch())
from trident.app.cli import main
sys.exit(main())
"""


class WatchedServer(ServerProcess):
    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", WATCHED, str(self.log.with_name("imported")), *super().command[1:]]


@pytest.mark.parametrize("workers", ["0", "1"])
def test_running_server_imports_no_tools(tmp_path: Path, shipped_models: Path, workers: str) -> None:
    options = (f"--http-workers={workers}", "--shutdown-grace-secs=0")
    with WatchedServer(shipped_models, tmp_path / "log", *options) as server:
        assert server.request("GET", "/v2/models/simple/config")[0] == 200
    imported = set((tmp_path / "imported").read_text().split())
    assert {"trident.app.worker.worker", "trident.core.lifecycle.loader", "trident.core.http.flask_app"} <= imported
    assert [module for module in imported if module.startswith("trident.tools")] == []
