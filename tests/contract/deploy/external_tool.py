"""Programs that some tests need and that no Python package brings."""

from __future__ import annotations

import os
import shutil

import pytest


def external_tool(name: str, package: str) -> str:
    """The path of the program. Where it is missing the test is skipped, in the CI (the variable CI is set) it fails."""
    path = shutil.which(name)
    if path is not None:
        return path
    reason = f"{name} is not installed: apt install {package}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
