"""The two shapes of the server, and the server that more than one test file uses.

A test of what clients see takes the fixture `http_workers`, itself or through the fixture of its server, and is then
run once for each shape. A fixture of a module that starts a server must take it too: else the server of the first shape
would be the second one's as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.servers.server import HTTP_WORKERS, ServerProcess


@pytest.fixture(scope="module", params=["0", "2"], ids=["one-process", "front-ends"])
def http_workers(request: pytest.FixtureRequest) -> Iterator[str]:
    """What --http-workers is for the servers that start meanwhile, whoever starts them: 0 or 2."""
    number: str = request.param
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(HTTP_WORKERS, number)
        yield number


@pytest.fixture(autouse=True)
def _own_choice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that takes no `http_workers` leaves the choice to the server, whatever ran before it in its module."""
    if "http_workers" not in request.fixturenames:
        monkeypatch.delenv(HTTP_WORKERS, raising=False)


@pytest.fixture(scope="module")
def server(
    http_workers: str, shipped_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """The real server over the shipped models, ready; one per test file, stopped with SIGTERM after its last test."""
    with ServerProcess(shipped_models, tmp_path_factory.mktemp("server") / "log") as running:
        yield running
