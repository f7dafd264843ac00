"""Programs that some tests need and that are not Python packages."""

from __future__ import annotations

import os
import shutil

import pytest


def external_tool(name: str, package: str) -> str:
    """The path of the program. Without it the test is skipped, or fails in the CI (the variable CI is set)."""
    path = shutil.which(name)
    if path is not None:
        return path
    reason = f"{name} is not installed: apt install {package}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
