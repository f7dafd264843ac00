from __future__ import annotations

import tomllib

from app.version import VERSION
from tests.project import ROOT


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["version"] == VERSION
