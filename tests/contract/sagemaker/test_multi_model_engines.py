"""A multi-model container with two engines behind two front ends: each model lives on one engine.

Source: docs/processes.md "Several engines", docs/spec/sagemaker.md section A5.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.platforms.container import LIMIT_S
from tests.contract.sagemaker.sagemaker_archives import MultiModelContainer
from tests.contract.servers.processes import engines_of, front_ends_of, only, workers_of
from tests.waiting import until
from trident.tools.emulators.container import ContainerFault

pytestmark = pytest.mark.slow

# Names as the platform gives them: hashes; a name may contain whatever a folder's name may.
NAMES = ("0f1e2d", "a b", "c.tar.gz", "d%2Fe")
HEAVY_MB = 40


class Container(MultiModelContainer):
    """With the models of NAMES, each of which scales by its number from 1."""

    def __init__(self, folder: Path, engines: int = 2) -> None:
        super().__init__(folder, TRIDENT_ENGINES=str(engines), TRIDENT_HTTP_WORKERS="2")
        self._engines = engines

    def load_all(self, megabytes: int = 0) -> None:
        for number, name in enumerate(NAMES, 1):
            self.put(name, number, megabytes)
            assert self.load_status(name) == 200

    def status_of(self, name: str) -> int:
        return self.status(name, NAMES.index(name) + 1)

    def all(self) -> dict[str, str]:
        return {name: self.url(name) for name in NAMES}

    def serves_all(self) -> bool:
        return all(self.status_of(name) == 200 for name in NAMES)

    def end_engine(self, number: int) -> None:
        """Kill an engine, and wait until another one is in its place."""
        engine = engines_of(self)[number]
        os.kill(engine, signal.SIGKILL)
        # Two front ends. A worker that another test has killed may still be one of them for a moment.
        until(lambda: len(set(workers_of(self)) - {engine}) == self._engines + 2, self.log_text)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    made = Container(tmp_path_factory.mktemp("engines"))
    with made:
        made.load_all()  # an engine that had no model yet has not imported its backend
        yield made
    assert "Traceback" not in made.log.read_text()


@pytest.fixture
def container(running: Container) -> Iterator[Container]:
    for name in running.models():
        assert running.unload(name) == 200
    yield running
    for name in running.models():
        assert running.unload(name) == 200
    assert running.models() == {}


def resident_mb(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20


def test_each_model_takes_memory_in_one_engine(container: Container) -> None:
    engines = engines_of(container)
    assert len(engines) == 2
    before = [resident_mb(engine) for engine in engines]
    container.load_all(HEAVY_MB)
    grown = [resident_mb(engine) - least for engine, least in zip(engines, before, strict=True)]
    assert container.serves_all()
    # Two of the four on each.
    assert all(1.5 * HEAVY_MB < size < 3 * HEAVY_MB for size in grown), grown
    for name in NAMES:
        assert container.unload(name) == 200
        assert container.status_of(name) == 404

    def left() -> list[int]:
        return [resident_mb(engine) - least for engine, least in zip(engines, before, strict=True)]

    until(lambda: all(size < 0.5 * HEAVY_MB for size in left()), lambda: str(left()))


def test_changes_by_one_front_end_reach_the_others(container: Container) -> None:
    first, second = front_ends_of(container)
    with only(container, first):
        container.load_all()
    with only(container, second):
        assert container.models() == container.all()
        assert container.serves_all()
        assert container.load_status(NAMES[0]) == 409
        assert container.unload(NAMES[0]) == 200
    with only(container, first):
        assert container.status_of(NAMES[0]) == 404
        assert container.models() == {name: container.url(name) for name in NAMES[1:]}


def test_models_of_a_killed_engine_are_reloaded(container: Container) -> None:
    container.load_all()
    over = threading.Event()
    statuses: dict[str, Counter[int]] = {name: Counter() for name in NAMES}

    def ask(name: str) -> None:
        while not over.is_set():
            try:
                statuses[name][container.status_of(name)] += 1
            except ContainerFault:
                statuses[name][0] += 1

    with ThreadPoolExecutor(len(NAMES)) as callers:
        asked = [callers.submit(ask, name) for name in NAMES]
        try:
            until(lambda: all(statuses[name][200] for name in NAMES))
            container.end_engine(0)
            assert container.models() == container.all()  # also before they are loaded again
            until(container.serves_all, container.log_text)
        finally:
            over.set()
        for each in asked:
            each.result(LIMIT_S)
    assert all(counts.keys() <= {200, 503} for counts in statuses.values()), statuses
    # The models of the other engine were there all the time.
    assert sum(counts.keys() == {200} for counts in statuses.values()) >= 2, statuses
    assert container.models() == container.all()
