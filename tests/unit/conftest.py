"""Fixtures of the unit tests."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator

import pytest

from tests.unit.core.scheduling.scheduler_bench import MakeBench, benches
from trident.core.observability.log import LogOptions, close_log, configure_logging, flush_log
from trident.core.observability.switches import SWITCHES


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call() -> Generator[None]:
    """Write a test's log lines before its streams are closed: a thread would do so a moment later."""
    try:
        yield
    finally:
        flush_log()


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Undo what a test configures of the log, often with a command: its streams are closed when it has ended."""
    root, ours = logging.getLogger(), logging.getLogger("trident")
    sinks, levels = len(root.handlers), (root.level, ours.level)
    yield
    SWITCHES.set()
    if (len(root.handlers), (root.level, ours.level)) != (sinks, levels):
        configure_logging(LogOptions())
        close_log()
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    """Makes schedulers, which are closed when the test has ended and leave nothing running."""
    with benches() as make:
        yield make
