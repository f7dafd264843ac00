from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import trident.app.process.files
from tests.project import ROOT
from trident.app.process.files import NoTemporaryDirectory, temporary_directory

# Every directory that the library would try is missing.
NOWHERE = "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/nowhere/at/all']; "


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere/at/all"])
    return monkeypatch


def test_the_systems_directory_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert temporary_directory() == str(tmp_path)


def test_memory_is_used_when_no_disk_is_writable(nowhere: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere.setattr(trident.app.process.files, "IN_MEMORY", str(tmp_path))
    assert temporary_directory() == str(tmp_path)
    with tempfile.NamedTemporaryFile() as file:
        assert Path(file.name).parent == tmp_path


def test_the_error_names_the_directories_that_were_tried(nowhere: pytest.MonkeyPatch) -> None:
    nowhere.setattr(trident.app.process.files, "IN_MEMORY", "/nowhere/either")
    with pytest.raises(NoTemporaryDirectory, match=r"neither that of TMPDIR, nor /tmp, .* or /nowhere/either"):
        temporary_directory()
    assert tempfile.tempdir is None


@pytest.mark.parametrize("home", ["", "nowhere"])
def test_a_server_without_a_temporary_directory_does_not_start(home: str, tmp_path: Path) -> None:
    """The error has two lines, whatever needs the directory first."""
    program = f"{NOWHERE} import trident.app.process.files as t; t.IN_MEMORY = '/nowhere'; "
    program += "from trident.app.cli import main; "
    run = f"{program} raise SystemExit(main(['serve', '--model-repository=deploy/models']))"
    environment = {**os.environ, "HOME": str(tmp_path / home)}
    ended = subprocess.run(
        [sys.executable, "-c", run], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "no folder for temporary files can be written" in ended.stderr
    assert "hint: set TMPDIR" in ended.stderr
    assert "Traceback" not in ended.stderr
