from __future__ import annotations

from pathlib import Path

from trident.app.emulators.container import make_read_only, remove_folder


def made(folder: Path) -> Path:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("x")
    return folder


def test_make_read_only_removes_write_permission(tmp_path: Path) -> None:
    tree = made(tmp_path / "tree")
    make_read_only(tree)
    modes = [path.stat().st_mode for path in (tree, *tree.rglob("*"))]
    assert len(modes) == 4
    assert not any(mode & 0o222 for mode in modes)
    assert (tree / "a" / "b" / "file").read_text() == "x"


def test_a_read_only_folder_can_be_removed(tmp_path: Path) -> None:
    tree = made(tmp_path / "tree")
    make_read_only(tree)
    remove_folder(tree)
    assert not tree.exists()
    remove_folder(tree)  # a missing folder is not an error
