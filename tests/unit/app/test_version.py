from __future__ import annotations

import tomllib

from tests.project import ROOT
from trident.app.version import VERSION


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["version"] == VERSION
