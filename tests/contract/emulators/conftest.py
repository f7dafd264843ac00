"""The folder by which tests of emulators find the processes of a container."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A container's folder for temporary files. It is not in `tmp_path`: the address of a socket is short."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
