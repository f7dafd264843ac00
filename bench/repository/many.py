"""A thousand small models in a local repository: the index, and whether the other models slow the load of one."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from bench.repository.models import build_many
from bench.repository.servers import RepositoryServer
from bench.results import Figures

FEW = 10
CASE = "many models"


def measure_many(results: Figures, build: Path, *, models: int, loaded: int, repeats: int) -> None:
    """Measure `repeats` of each request, the servers in turn.

    The last of the first ten models is loaded again and again: in a repository of ten models, then in one of `models`
    with the same nine others loaded, then in that one with `loaded` others.
    """
    names = _build(build, models)
    measured, beside = names[FEW - 1], names[: FEW - 1]
    crowd = [name for name in names if name != measured][:loaded]
    few, many = (build / "few", beside), (build / "many", beside)
    with contextlib.ExitStack() as stack:
        servers = {
            title: stack.enter_context(_server(title, folder, initial))
            for title, (folder, initial) in {
                f"{FEW} models, {len(beside)} loaded": few,
                f"{models:,} models, {len(beside)} loaded": many,
                f"{models:,} models, {len(crowd)} loaded": (build / "many", crowd),
            }.items()
        }
        for server in servers.values():
            _load_once(server, measured)
        index_ms: dict[str, list[float]] = {title: [] for title in servers}
        load_ms: dict[str, list[float]] = {title: [] for title in servers}
        for _ in range(repeats):
            for title, server in servers.items():
                index_ms[title].append(_milliseconds(server.index))
                load_ms[title].append(_load_once(server, measured))
    _note(results, index_ms, load_ms)


def _build(build: Path, models: int) -> list[str]:
    for folder in ("few", "many"):
        shutil.rmtree(build / folder, ignore_errors=True)
    build_many(build / "few", FEW)
    return build_many(build / "many", max(models, FEW))


def _server(title: str, folder: Path, initial: list[str]) -> RepositoryServer:
    log = folder.with_name(f"{folder.name}-{len(initial)}.log")
    load = [f"--load-model={name}" for name in initial]
    return RepositoryServer(title, str(folder), log, "--model-control-mode=explicit", *load)


def _load_once(server: RepositoryServer, model: str) -> float:
    """The milliseconds of one load; the model is unloaded afterwards."""
    took = _milliseconds(lambda: server.load(model))
    server.unload(model)
    return took


def _milliseconds(ask: Callable[[], object]) -> float:
    start = time.perf_counter()
    ask()
    return (time.perf_counter() - start) * 1e3


def _note(results: Figures, index_ms: dict[str, list[float]], load_ms: dict[str, list[float]]) -> None:
    indices = {title: results.note(CASE, f"index; {title}", "ms", values) for title, values in index_ms.items()}
    loads = {title: results.note(CASE, f"load of one; {title}", "ms", values) for title, values in load_ms.items()}
    few, *others = loads
    for title in others:
        results.at_most(CASE, f"ms of the index; {title}", 50, indices[title].median)
    for title in others:
        results.at_most(CASE, f"load over that with {FEW}; {title}", 1.2, loads[title].median / loads[few].median)
