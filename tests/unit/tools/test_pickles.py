"""Messages about trusted pickles and about those in a repository."""

from __future__ import annotations

import os
import pickle
import pickletools
import shutil
import sys
import zipfile
import zlib
from pathlib import Path, PosixPath
from types import ModuleType
from typing import Any

import numpy as np
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
        "path.pkl": (False, f"picklescan finds suspicious: {PosixPath.__module__}.PosixPath"),
        "packed.joblib": (True, "picklescan finds nothing that it can read, as of a compressed file"),
        "with.mar": (True, "picklescan finds dangerous: posix.system"),
        "broken.pkl": (True, "picklescan finds nothing that it can read, as of a compressed file"),
    }


def with_arrays(values: list[Any], arrays: list[tuple[Any, bytes]], monkeypatch: pytest.MonkeyPatch) -> bytes:
    """As joblib writes it: a wrapper for each array at the end of a list, each with its bytes behind its BUILD."""
    module: Any = ModuleType("joblib.numpy_pickle")
    module.NumpyArrayWrapper = type("NumpyArrayWrapper", (), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, "joblib", ModuleType("joblib"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    written = b""
    for array, raw in arrays:
        wrapper = module.NumpyArrayWrapper()
        vars(wrapper).update(subclass=np.ndarray, shape=array.shape, order="C", dtype=array.dtype, allow_mmap=True)
        if not array.dtype.hasobject:
            wrapper.numpy_array_alignment_bytes = 16
            raw = b"\x03pad" + raw
        one = pickle.dumps(wrapper, 2)
        (*_, (_, _, build), _) = pickletools.genops(one)
        written += one[2 : build + 1] + raw + b"0"  # without PROTO and STOP, and off the stack again
    return b"\x80\x02" + written + pickle.dumps(values, 2)[2:]


def test_opcodes_around_the_arrays_of_joblib_are_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.frombuffer(b".c\xff(0" * 16, "f8")
    nodes = np.zeros(3, [("left", "i8"), ("value", "f8"), ("flag", "u1")])
    plain = [(numbers, numbers.tobytes()), (nodes, nodes.tobytes()), (np.zeros(0, "U5"), b"")]
    hidden = (np.array([None], object), pickle.dumps(Hostile()))
    written = {
        "plain": with_arrays([{"a": 1}], plain, monkeypatch),
        "after": with_arrays([Hostile()], plain, monkeypatch),
        "inside": with_arrays([1], [*plain, hidden, *plain], monkeypatch),
        "lying": with_arrays([Hostile()], [(numbers, numbers.tobytes() + b"\xff")], monkeypatch),
    }
    for name, content in written.items():
        (tmp_path / f"{name}.joblib").write_bytes(content)
    found = {each.path.stem: each for each in scan_pickles(tmp_path)}
    assert {name: (each.is_dangerous, "posix.system" in each.found) for name, each in found.items()} == {
        "plain": (False, False),
        "after": (True, True),
        "inside": (True, True),
        "lying": (True, False),
    }
    assert "suspicious: joblib.numpy_pickle.NumpyArrayWrapper" in found["plain"].found
    place = len(written["lying"]) - len(pickle.dumps([Hostile()], 2)[2:]) - 2
    assert found["lying"].found.endswith(f"what follows byte {place} is not scanned")


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
