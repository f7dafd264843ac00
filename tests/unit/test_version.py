from __future__ import annotations

import tomllib
from pathlib import Path

from app.version import VERSION


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
    assert project["project"]["version"] == VERSION
