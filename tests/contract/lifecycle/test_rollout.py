"""A rollout under load: models are loaded, changed and unloaded while clients send requests on open connections.

No request may fail, and every answer must have the old or the new weights.
Source: docs/spec/repository.md section 1.6; docs/architecture.md section 9.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import (
    INDEX,
    JSON,
    add_scaled,
    factor_in,
    factor_of,
    load,
    ones_body,
    unload,
)
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("http_workers")]

CLIENTS = 6
SERVED = "served"
POLLING = ("--model-control-mode=poll", "--repository-poll-secs=1")
NOT_EXPLICIT = (503, "explicit model load / unload is not allowed if polling is enabled")


class Client(threading.Thread):
    """Sends requests for `served` in a loop on one connection, which must never end. `seen` are the answers."""

    def __init__(self, port: int, allowed: set[float]) -> None:
        super().__init__(name="rollout-client")
        self.seen: list[float] = []
        self.failure = ""
        self._allowed = allowed
        self._connection = http.client.HTTPConnection(HOST, port, timeout=30)
        self._ending = threading.Event()

    def run(self) -> None:
        body = ones_body()
        self._connection.connect()
        sock = self._connection.sock
        try:
            while not self._ending.is_set() and not self.failure:
                self._connection.request("POST", f"/v2/models/{SERVED}/infer", body, JSON)
                response = self._connection.getresponse()
                answer = response.read()
                if response.status != 200:
                    self.failure = f"{response.status} {answer.decode()}"
                elif factor_in(answer) not in self._allowed:
                    self.failure = f"{factor_in(answer)} is not among {self._allowed}"
                elif self._connection.sock is not sock:
                    self.failure = "the server closed the connection"
                else:
                    self.seen.append(factor_in(answer))
        except (OSError, http.client.HTTPException) as error:
            self.failure = repr(error)
        finally:
            self._connection.close()

    def end(self) -> None:
        self._ending.set()
        self.join()


class Load:
    """The clients of a rollout, and the factors that their answers may have."""

    def __init__(self, port: int, first: float) -> None:
        self._allowed = {first}
        self.clients = [Client(port, self._allowed) for _ in range(CLIENTS)]

    def allow(self, factor: float) -> None:
        self._allowed.add(factor)

    def settle(self, factor: float) -> None:
        """Wait until every client gets `factor`, and allow no other from then on."""
        self.go_on()
        self._allowed.intersection_update({factor})
        self.go_on()
        assert all(client.seen[-1] == factor for client in self.clients), [client.seen[-1] for client in self.clients]

    def go_on(self) -> None:
        """Wait for a few more answers to every client."""
        before = [len(client.seen) for client in self.clients]

        def moved() -> bool:
            assert self.failures() == []
            return all(len(c.seen) >= b + 3 for c, b in zip(self.clients, before, strict=True))

        until(moved, "the clients get no more answers")

    def failures(self) -> list[str]:
        return [client.failure for client in self.clients if client.failure]


@contextmanager
def under_load(server: ServerProcess, first: float) -> Iterator[Load]:
    load = Load(server.http_port, first)
    for client in load.clients:
        client.start()
    try:
        load.go_on()
        yield load
        load.go_on()
    finally:
        for client in load.clients:
            client.end()
    assert load.failures() == []


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[ServerProcess]:
    repository = link_models(folder / "models", "simple")
    add_scaled(repository, SERVED, 1.0)
    with ServerProcess(repository, folder / "log", *options, "--shutdown-grace-secs=0") as running:
        yield running
        assert "unexpected error in the server" not in running.log_text()


@pytest.fixture(scope="module")
def explicit(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("explicit")
    with serving(folder, "--model-control-mode=explicit", f"--load-model={SERVED}") as server:
        yield server


@pytest.fixture(scope="module")
def polling(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("poll"), *POLLING) as server:
        yield server


def serves(server: ServerProcess, factor: float) -> Callable[[], bool]:
    return lambda: factor_of(server, SERVED) == factor


# --- explicit mode: the new weights serve when the load request is answered


# --- poll mode: the repository decides what serves


def test_models_are_added_and_removed_by_polling_under_load(polling: ServerProcess, tmp_path: Path) -> None:
    assert load(polling, SERVED) == unload(polling, SERVED) == NOT_EXPLICIT
    factor = factor_of(polling, SERVED)
    with under_load(polling, factor) as clients:
        for round_ in range(2):
            made = add_scaled(tmp_path / f"round{round_}", "appearing", 4.0 + round_)
            made.rename(polling.repository / "appearing")
            until(lambda: _ready(polling, "appearing"), "the model is not loaded")
            assert factor_of(polling, "appearing") == 4.0 + round_
            (polling.repository / "appearing").rename(tmp_path / f"gone{round_}")
            until(lambda: not _ready(polling, "appearing"), "the model is not unloaded")
            clients.settle(factor)


def _ready(server: ServerProcess, name: str) -> bool:
    return name in [entry["name"] for entry in server.json("POST", INDEX, {"ready": True})]


@pytest.mark.parametrize("whole_repository", [False, True], ids=["model", "repository"])
def test_swapped_link_of_a_mounted_volume_is_loaded(tmp_path: Path, whole_repository: bool) -> None:
    """`..data` links to the folder of a generation and is replaced; everything else links through it."""
    mount = tmp_path / "volume"
    for generation in range(3):
        content = mount / f"..generation_{generation}"
        add_scaled(content, SERVED, 1.0 + generation)
    (mount / "..data").symlink_to("..generation_0")
    if whole_repository:
        repository = mount / "..data"
    else:
        repository = tmp_path / "models"
        repository.mkdir()
        (repository / SERVED).symlink_to(mount / "..data" / SERVED)
    with (
        ServerProcess(repository, tmp_path / "log", *POLLING, "--shutdown-grace-secs=0") as server,
        under_load(server, 1.0) as clients,
    ):
        for generation in range(1, 3):
            clients.allow(1.0 + generation)
            (mount / "..data_tmp").symlink_to(f"..generation_{generation}")
            (mount / "..data_tmp").replace(mount / "..data")
            until(serves(server, 1.0 + generation), "the new generation does not serve")
            clients.settle(1.0 + generation)
