"""Replacements in the core for a simulation, and the search for a schedule in which something fails."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tests.simulation import connections, threads
from tests.simulation.schedule import Schedule
from trident.core import waiting
from trident.core.inference import pending_request
from trident.core.interprocess import frames
from trident.core.lifecycle import state, version
from trident.core.observability import model_statistics
from trident.core.remote import connection, engine_client, engine_server
from trident.core.scheduling import (
    dynamic_batcher,
    ensemble,
    inline_execution,
    instance,
    latency_target,
    open_requests,
    queue,
    rate_limiter,
    response_cache,
    sequence_batcher,
)

_THREADED = (
    dynamic_batcher,
    ensemble,
    inline_execution,
    instance,
    latency_target,
    open_requests,
    pending_request,
    queue,
    rate_limiter,
    response_cache,
    sequence_batcher,
    state,
    version,
    waiting,
    # Those of the remote engine.
    connection,
    engine_client,
    engine_server,
    frames,
)

Change = tuple[ModuleType | type, str, Any]


def changes() -> Iterator[Change]:
    for module in _THREADED:
        if "threading" in vars(module):
            yield module, "threading", threads.THREADING
        if "time" in vars(module):
            yield module, "time", threads.TIME
    yield pending_request, "_of_thread", threads.Local()
    yield open_requests, "SimpleQueue", threads.SimpleQueue
    yield waiting, "SimpleQueue", threads.SimpleQueue
    for module in (response_cache, engine_server):
        yield module, "ThreadPoolExecutor", threads.Executor
    for module in (connection, engine_server):
        yield module, "socket", connections.SOCKET
        yield module, "SharedMemory", connections.Memory
    yield engine_server, "select", connections.SELECT
    yield model_statistics, "time", threads.TIME
    # A schedule has few requests: so many short executions in a row are enough for the submitting thread to execute.
    yield inline_execution, "_IN_A_ROW", 2
    yield response_cache, "LARGE", 12


@contextmanager
def simulated(more: Iterable[Change] = ()) -> Iterator[None]:
    """Schedules can run inside."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.disable()
    try:
        with threads.replaced([*changes(), *more]):
            yield
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)


SIZE = 8
"""The greatest number of requests of a schedule."""


def run(seed: int, size: int = SIZE, shape: str = "") -> Schedule:
    return Schedule(seed, size, shape).run()


def search(first: int, count: int, shape: str = "") -> Schedule | None:
    """The first schedule of those seeds in which something fails."""
    for seed in range(first, first + count):
        schedule = run(seed, shape=shape)
        if schedule.problems:
            return schedule
        if seed % 200 == 0:
            gc.collect()
    return None


def shortest(failed: Schedule, tries: int = 300) -> Schedule:
    """The schedule with the shortest trace of those in which the same fails, among smaller ones."""
    name = failed.problems[0][0]
    for size in range(1, failed.size):
        for seed in (failed.seed, *range(tries)):
            schedule = run(seed, size, failed.shape)
            fails = schedule.problems and schedule.problems[0][0] == name
            if fails and len(schedule.world.trace) < len(failed.world.trace):
                failed = schedule
        if failed.size <= size:
            break
    return failed
