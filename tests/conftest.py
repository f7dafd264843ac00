"""Fixtures that more than one test file uses."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shipped_models() -> Path:
    """The model repository that comes with the project."""
    return ROOT / "deploy" / "models"
