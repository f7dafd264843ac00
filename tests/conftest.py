"""Fixtures that more than one test file uses, and what holds for all tests."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.project import ROOT


@pytest.fixture(scope="session")
def shipped_models() -> Path:
    """The model repository that comes with the project."""
    return ROOT / "deploy" / "models"


def pytest_collection_finish() -> None:
    """What the collection of the tests has made is for good: the many tests that call the collector of cycles would
    each look at all of it again, half a second long."""
    gc.collect()
    gc.freeze()
