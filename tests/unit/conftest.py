"""What several unit tests are given."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from core.observability.logging import LogOptions, close_log, configure_logging
from tests.unit.core.scheduling.scheduler_bench import MakeBench, benches


@pytest.fixture
def log_as_before() -> Iterator[None]:
    """Undo what the test configures of the log: the streams of a test are closed when it has ended."""
    loggers = [logging.getLogger(), logging.getLogger("trident")]
    levels = [logger.level for logger in loggers]
    yield
    configure_logging(LogOptions())
    close_log()
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    """Makes schedulers, which are closed when the test has ended and leave nothing running."""
    with benches() as make:
        yield make
