"""The real server's application under one of gunicorn's own workers."""

from __future__ import annotations

import sys

from tests.contract.servers.server import ServerProcess
from tests.project import ROOT


class StockServer(ServerProcess):
    """Under gunicorn's thread worker. The caller sets PYTHONPATH to the root of the project."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(ROOT / "tests/contract/servers/served_models.py"), "gthread", *super().command[2:]]
