"""Mixed load while every model is reloaded again and again: no request fails, and no answer is wrong.

Clients ask plain, cached, Python, decoupled, iterative and ensemble models and sequences over HTTP and gRPC, compute
each answer themselves, and know which weights were served when. SOAK_SECONDS in the environment is the time for each
shape of the server.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import load
from tests.contract.servers.server import ServerProcess
from tests.contract.soak.soak_clients import WAYS, SoakClient, Weights
from tests.contract.soak.soak_models import QUICK, SLOW, WEIGHTED, write_models, write_weight
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("one-process", "front-ends")]

SECONDS = float(os.environ.get("SOAK_SECONDS", "2"))
CLIENTS = 6


@pytest.fixture
def server(http_workers: str, tmp_path: Path) -> Iterator[ServerProcess]:
    repository = tmp_path / "models"
    write_models(repository)
    options = ["--model-control-mode=explicit", "--load-model=*", "--shutdown-grace-secs=0"]
    options += ["--rate-limit=execution_count", "--cache-config=local,size=1048576"]
    with ServerProcess(repository, tmp_path / "log", *options) as running:
        yield running


class Reloader(threading.Thread):
    """Reloads models in turn, with a larger weight each, until `ending` is set. `reloads` counts them."""

    def __init__(self, soak: Soak, names: Sequence[str]) -> None:
        super().__init__(name=f"soak-reloads-{names[0]}")
        self.reloads: Counter[str] = Counter()
        self.failure = ""
        self._soak = soak
        self._names = names

    def run(self) -> None:
        try:
            for name in itertools.cycle(self._names):
                self._soak.go_on()
                if self._soak.ending.is_set():
                    return
                self._reload(name)
                self.reloads[name] += 1
        except Exception as error:
            self.failure = f"reload of {name}: {error!r}"
            self._soak.ending.set()

    @property
    def was_everywhere(self) -> bool:
        return len(self.reloads) == len(self._names)

    def _reload(self, name: str) -> None:
        server, weights = self._soak.server, self._soak.weights
        if name in WEIGHTED:
            weights.most[name] += 1
            write_weight(server.repository, name, weights.most[name])
        assert load(server, name) == (200, "")
        if name in WEIGHTED:
            weights.least[name] = weights.most[name]


class Soak:
    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.weights = Weights()
        self.ending = threading.Event()
        self.clients = [SoakClient(server, self.weights, self.ending, seed) for seed in range(CLIENTS)]
        self.reloaders = [Reloader(self, QUICK), Reloader(self, SLOW)]

    @property
    def answers(self) -> int:
        return sum(client.asked.total() for client in self.clients)

    def go_on(self) -> None:
        """Wait for some more answers, or for the end."""
        before = self.answers
        until(lambda: self.ending.is_set() or self.answers >= before + 10 * CLIENTS)

    def run(self) -> None:
        """For at least SECONDS, and until every model was reloaded."""
        end = time.monotonic() + SECONDS
        threads = [*self.clients, *self.reloaders]
        for thread in threads:
            thread.start()
        while not self.ending.is_set():
            self.go_on()
            if time.monotonic() >= end and all(each.was_everywhere for each in self.reloaders):
                break
        self.ending.set()
        for thread in threads:
            thread.join(90)


def test_no_answer_is_wrong_while_every_model_is_reloaded(server: ServerProcess) -> None:
    soak = Soak(server)
    soak.run()
    failures = [client.failure for client in soak.clients] + [reloader.failure for reloader in soak.reloaders]
    assert [failure for failure in failures if failure] == []
    asked = sum((client.asked for client in soak.clients), Counter[str]())
    reloads = sum((each.reloads for each in soak.reloaders), Counter[str]())
    print(f"{asked.total()} answers, {reloads.total()} reloads: {dict(sorted(asked.items()))}, {dict(reloads)}")
    wanted = {f"{model} by {way}" for model, ways in WAYS.items() for way in ways}
    assert wanted <= asked.keys(), "not every model was asked in every way"
    assert "Traceback" not in server.log_text()
    index = server.json("POST", "/v2/repository/index")
    assert {entry["name"]: entry.get("state") for entry in index} == dict.fromkeys((*QUICK, *SLOW), "READY")
