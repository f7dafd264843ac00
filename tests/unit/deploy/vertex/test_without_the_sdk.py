"""The command without Google's SDK, which is not installed with Trident."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.project import ROOT

CODE = """
import sys
sys.modules.update(dict.fromkeys(("google.cloud.aiplatform_v1", "google.auth", "google.api_core", "requests")))
from deploy.vertex.__main__ import run
sys.exit(run(sys.argv[1:], sys.stdout, sys.stderr))
"""


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CODE, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_help_lists_the_actions() -> None:
    found = command("--help")
    assert (found.returncode, found.stderr) == (0, "")
    assert "a batch prediction job" in found.stdout


@pytest.mark.parametrize("arguments", [("upload", "--help"), ("batch", "--project=p")])
def test_an_action_names_the_missing_package(arguments: tuple[str, ...]) -> None:
    found = command(*arguments)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "error: Google's SDK is missing: pip install 'google-cloud-aiplatform>=2.7,<3'\n"
