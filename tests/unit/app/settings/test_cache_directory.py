from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from trident.app.settings.server import cache_directory


def test_the_cache_is_in_the_directory_that_is_mounted_for_triton() -> None:
    assert cache_directory("/mnt/models") == "/mnt/models/trident"


def test_the_cache_is_in_the_home_of_the_user_and_is_not_made_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory("") == str(tmp_path / ".cache" / "trident")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("home", ["/nowhere/at/all", "relative", "/dev/null"])
def test_the_cache_is_among_the_temporary_files_without_a_home(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    assert cache_directory("") == str(Path(tempfile.gettempdir(), f"trident-{os.getuid()}"))


@pytest.mark.skipif(os.getuid() == 0, reason="root can write in every folder")
def test_the_cache_is_among_the_temporary_files_when_the_home_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory("") == str(Path(tempfile.gettempdir(), f"trident-{os.getuid()}"))
