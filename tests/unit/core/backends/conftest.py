from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """The directory of a version of the model `model`."""
    folder = tmp_path / "model" / "1"
    folder.mkdir(parents=True)
    return folder
