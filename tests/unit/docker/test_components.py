"""The list of components (SBOM) that is in an image and in a release."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distributions, version
from pathlib import Path
from sysconfig import get_path

import pytest

from tests.project import ROOT

STATUS = """\
Package: libc6
Status: install ok installed
Version: 2.36-9+deb12u10
Description: GNU C Library

Package: removed
Status: deinstall ok config-files
Version: 1
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    status = tmp_path_factory.mktemp("dpkg") / "status"
    status.write_text(STATUS)
    command = [sys.executable, str(ROOT / "docker" / "components.py"), "1.2.3", get_path("purelib"), str(status)]
    made = [subprocess.check_output(command, text=True) for _ in range(2)]
    assert made[0] == made[1]
    return made[0]


def test_components_are_those_that_are_installed(text: str) -> None:
    written = json.loads(text)
    product = written["metadata"]["component"]
    assert (product["name"], product["version"]) == ("trident-inference", "1.2.3")
    found = {each["purl"]: each for each in written["components"]}
    assert {f"pkg:pypi/numpy@{version('numpy')}", "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10"} <= found.keys()
    # Without the project itself, with the interpreter and a package of Debian.
    installed = {each.name for each in distributions(path=[get_path("purelib")])}
    assert len(found) == len(written["components"]) == len(installed) + 1
    assert written["dependencies"] == [{"ref": product["bom-ref"], "dependsOn": sorted(found)}]


def test_components_name_no_path_of_the_machine_that_made_them(text: str) -> None:
    assert str(Path(sys.prefix)) not in text
    assert str(ROOT) not in text
    assert "file:" not in text
