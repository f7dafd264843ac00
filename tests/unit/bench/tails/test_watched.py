"""bench/tails/watched.py: the collections of a server are written to a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.tails import watched
from tests.project import ROOT


def test_each_collection_of_the_program_is_written(tmp_path: Path) -> None:
    file = tmp_path / "pauses"
    done = subprocess.run(
        [sys.executable, watched.__file__, str(file), "serve", "--help"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--model-repository" in done.stdout
    found = watched.collections(file)
    assert {each.generation for each in found} <= {0, 1, 2}
    assert all(each.process > 0 and each.took_us > 0 for each in found)
    assert found
