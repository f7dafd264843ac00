"""What several unit tests are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.core.scheduling.scheduler_bench import MakeBench, benches


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    """Makes schedulers, which are closed when the test has ended and leave nothing running."""
    with benches() as make:
        yield make
