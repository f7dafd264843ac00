"""Messages about trusted pickles and about those in a repository."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
import zlib
from pathlib import Path

import pytest

from tests import needed
from trident.app.cli import main
from trident.tools.pickles import scan_pickles


class Hostile:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("true",)


@pytest.fixture(autouse=True)
def scanner() -> None:
    needed.package("picklescan")


def test_pickles_are_found_in_files_and_archives(tmp_path: Path) -> None:
    evil = pickle.dumps({"model": Hostile()})
    (tmp_path / "evil.bin").write_bytes(evil)
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"a": 1}))
    (tmp_path / "path.pkl").write_bytes(pickle.dumps(Path("x")))
    (tmp_path / "broken.pkl").write_bytes(pickle.dumps(1)[:-1] + b"\xff" + evil)
    (tmp_path / "packed.joblib").write_bytes(zlib.compress(evil))
    for name, member in (("with.mar", "inner/model.pkl"), ("without.zip", "model.txt")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(member, evil if member.endswith(".pkl") else "text")
    assert {each.path.name: (each.is_dangerous, each.found) for each in scan_pickles(tmp_path)} == {
        "evil.bin": (True, "picklescan finds dangerous: posix.system"),
        "path.pkl": (False, "picklescan finds suspicious: pathlib.PosixPath"),
        "packed.joblib": (True, "picklescan finds nothing that it can read, as of a compressed file"),
        "with.mar": (True, "picklescan finds dangerous: posix.system"),
        "broken.pkl": (True, "picklescan finds nothing that it can read, as of a compressed file"),
    }


def test_import_lists_the_content_of_a_trusted_pickle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"model": Hostile()}))
    main(["import", str(tmp_path / "model.pkl"), "--trust-pickle", f"--repository={tmp_path / 'models'}"])
    assert "warning: model.pkl: picklescan finds dangerous: posix.system\n" in capsys.readouterr().out


def test_validate_warns_of_dangerous_pickles(
    shipped_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(shipped_models / "simple", tmp_path / "simple")
    (tmp_path / "simple" / "1" / "model.pkl").write_bytes(pickle.dumps(Hostile()))
    assert main(["validate", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "picklescan finds dangerous: posix.system" in shown
    assert "simple/1/model.pkl" in shown
