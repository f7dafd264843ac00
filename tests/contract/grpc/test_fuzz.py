"""Any connection is served or ended in time. Afterwards the server has all its processes, no more memory, threads and
files than before, and no traceback in its log.

The recorded connections are those of `tritonclient.grpc` and grpcio.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from tests.contract.servers.ports import HOST
from tests.contract.servers.processes import Held, workers_of
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import assert_still_serves, link_models
from tests.fuzzing import examples
from tests.unit.app.worker.http2.test_fuzz import changed
from tests.waiting import until

pytestmark = pytest.mark.slow

PATIENCE_S = 30.0
# Connections until what the server remembers of clients and requests is full.
WARM_UP = 500
GROWTH_MB = 8
RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.bin"))


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("fuzz")
    set_hypothesis_home_dir(folder / "hypothesis")
    repository = link_models(folder / "models", "simple", "identity_fp32", "str_id")
    options = ("--shutdown-grace-secs=0", "--grpc-infer-response-compression-level=low")
    with ServerProcess(repository, folder / "log", *options) as running:
        workers = workers_of(running)
        damage_recorded(running, random.Random(-1), WARM_UP)
        before = Held.by(running)
        yield running
        assert workers_of(running) == workers, "a process was restarted"
        # A worker returns freed memory only when it is idle.
        until(lambda: Held.by(running).is_within(before, GROWTH_MB), lambda: f"{before}, then {Held.by(running)}")


@pytest.fixture(autouse=True)
def _serves_afterwards(server: ServerProcess) -> Iterator[None]:
    yield
    assert_still_serves(server)


@pytest.fixture
def log(server: ServerProcess) -> Iterator[Callable[[], str]]:
    """What the server has logged since the last time."""
    with server.log.open(errors="replace") as file:
        file.seek(0, 2)
        yield file.read


def damage_recorded(server: ServerProcess, random: random.Random, times: int) -> None:
    """Send recorded connections with a few faults. Each must end."""
    for _ in range(times):
        content = changed(random.choice(RECORDED).read_bytes(), random)
        client = socket.create_connection((HOST, server.grpc_port), timeout=PATIENCE_S)
        with client, contextlib.suppress(ConnectionError):
            client.sendall(content)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass


@pytest.mark.parametrize("seed", range(4))
def test_recorded_connections_with_damaged_bytes(server: ServerProcess, log: Callable[[], str], seed: int) -> None:
    damage_recorded(server, random.Random(seed), examples(300))
    assert "Traceback" not in log()
