"""Fixtures that more than one test file uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.server import ServerProcess

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shipped_models() -> Path:
    """The model repository that comes with the project."""
    return ROOT / "deploy" / "models"


@pytest.fixture(scope="module")
def server(shipped_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The real server over the shipped models, ready; one per test file, stopped with SIGTERM after its last test."""
    with ServerProcess(shipped_models, tmp_path_factory.mktemp("server") / "log") as running:
        yield running
