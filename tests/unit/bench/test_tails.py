"""The collections of a server are written to a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.servers import watched
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
    pauses = watched.pauses_us(file)
    assert pauses
    assert all(pause > 0 for pause in pauses)
