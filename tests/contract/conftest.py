"""The shape of the servers that contract tests start, and the server that several test files share.

A server answers HTTP in one process with its engine, or in front ends before an engine process. Tests of what clients
see take the fixture `http_workers`, directly or through the fixture of their server, and run in one process. The marker
`shapes` chooses otherwise, for a file or for one test:

    @pytest.mark.shapes("one-process", "front-ends")

A test that does not take the fixture leaves the choice to the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.servers.server import HTTP_WORKERS, ServerProcess

# What --http-workers is in each shape.
SHAPES = {"one-process": "0", "front-ends": "2"}


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
    number: str = request.param
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(HTTP_WORKERS, number)
        yield number


@pytest.fixture(autouse=True)
def _own_choice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variable for a test that does not take `http_workers`, whatever ran before it in its module."""
    if "http_workers" not in request.fixturenames:
        monkeypatch.delenv(HTTP_WORKERS, raising=False)


@pytest.fixture(scope="module")
def server(
    http_workers: str, shipped_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server of the shipped models, ready; one for each test file, stopped with SIGTERM after the last test."""
    log = tmp_path_factory.mktemp("server") / "log"
    with ServerProcess(shipped_models, log, "--shutdown-grace-secs=0") as running:
        yield running
