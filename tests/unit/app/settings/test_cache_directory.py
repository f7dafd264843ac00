from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from app.settings.cache_directory import default_cache_directory


def test_in_the_cache_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_directory() == str(tmp_path / ".cache" / "trident")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("home", ["/nowhere/at/all", "relative", "/dev/null"])
def test_without_a_home_to_write_in_it_is_a_temporary_folder_of_the_user(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", home)
    assert default_cache_directory() == str(Path(tempfile.gettempdir(), f"trident-{os.getuid()}"))


@pytest.mark.skipif(os.getuid() == 0, reason="root can write in every folder")
def test_a_home_that_is_read_only_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_directory() == str(Path(tempfile.gettempdir(), f"trident-{os.getuid()}"))
