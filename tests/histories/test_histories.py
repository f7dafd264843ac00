"""Every answer is somebody's own, comes once, and is of a version that served: under load, changes and faults.

`python -m tests.histories --help` runs it for longer, in other shapes, with one seed.
"""

from __future__ import annotations

import os

import pytest

from tests.histories.run import Setting, run

pytestmark = pytest.mark.slow
SECONDS = float(os.environ.get("HISTORIES_SECONDS", "30"))


@pytest.mark.parametrize("shape", ["one-process", "front-ends", "engines", "demand", "demand-front-ends"])
def test_every_answer_is_correct_and_sent_once(shape: str) -> None:
    result = run(Setting(seed=1, shape=shape, seconds=SECONDS))
    print(result)
    assert not result.failure, str(result)
