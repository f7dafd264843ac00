"""The fixture of the tests of sequences."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.core.scheduling.sequence.sequence_bench import MakeBench, benches


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    with benches() as make:
        yield make
