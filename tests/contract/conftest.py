"""The shape of the servers that contract tests start, and the server that several test files share.

A server answers HTTP in one process with its engine, or in front ends before an engine process, or before several.
Tests of what clients see take the fixture `http_workers`, directly or through the fixture of their server, and run in
one process. The marker `shapes` chooses otherwise, for a file or for one test:

    @pytest.mark.shapes("one-process", "front-ends", "two-engines")

A test that does not take the fixture leaves the choice to the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.servers.server import ENGINES, HTTP_WORKERS, ServerProcess

# What --http-workers and --engines are in each shape.
SHAPES = {"one-process": ("0", "1"), "front-ends": ("2", "1"), "two-engines": ("2", "2")}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "http_workers" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("shapes")
        shapes = marker.args if marker else ("one-process",)
        numbers = [SHAPES[shape] for shape in shapes]
        metafunc.parametrize("http_workers", numbers, indirect=True, scope="module", ids=shapes)


@pytest.fixture(scope="module")
def http_workers(request: pytest.FixtureRequest) -> Iterator[str]:
    """The value of --http-workers for every server that is started while the fixture is in use: 0 or 2.

    A module's fixture that starts a server must take it. Otherwise that server would outlive the change of shape.
    """
    workers, engines = request.param
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(HTTP_WORKERS, workers)
        if engines != "1":
            environment.setenv(ENGINES, engines)
        yield workers


@pytest.fixture(autouse=True)
def _own_choice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables for a test that does not take `http_workers`, whatever ran before it in its module."""
    if "http_workers" not in request.fixturenames:
        for name in (HTTP_WORKERS, ENGINES):
            monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def server(
    http_workers: str, shipped_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server of the shipped models, ready; one for each test file, stopped with SIGTERM after the last test."""
    log = tmp_path_factory.mktemp("server") / "log"
    with ServerProcess(shipped_models, log, "--shutdown-grace-secs=0") as running:
        yield running
