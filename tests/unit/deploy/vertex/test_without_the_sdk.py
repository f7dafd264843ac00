"""The command without Google's SDK, which is not installed with Trident."""

from __future__ import annotations

import subprocess
import sys

from tests.project import ROOT

CODE = """
import sys
sys.modules.update(dict.fromkeys(("google.cloud.aiplatform_v1", "google.auth", "google.api_core", "requests")))
import deploy.vertex.__main__
"""


def test_the_missing_package_is_named() -> None:
    found = subprocess.run([sys.executable, "-c", CODE, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == "error: Google's SDK is missing: pip install 'google-cloud-aiplatform>=2.7,<3'\n"
