"""A model's files under the place that belongs to their listing."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.repository.cache.snapshot import Snapshot, snapshot_id
from core.repository.stores.object_store import StoredObject

CONTENTS = {"1/model.onnx": StoredObject("m/1/model.onnx", 5, "1"), "2/": StoredObject("m/2/", 0, "1")}


def write(folder: Path, content: bytes = b"graph") -> None:
    (folder / "1").mkdir()
    (folder / "2").mkdir()
    (folder / "1" / "model.onnx").write_bytes(content)


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return Snapshot(tmp_path, "abc", "m")


def test_it_appears_whole(snapshot: Snapshot, tmp_path: Path) -> None:
    assert not snapshot.holds(CONTENTS)
    with snapshot.staged(CONTENTS) as folder:
        write(folder)
        assert not snapshot.path.exists()
    assert snapshot.holds(CONTENTS)
    assert snapshot.path == tmp_path / "abc" / "m"
    snapshot.release()


def test_it_does_not_appear_if_the_block_fails(snapshot: Snapshot, tmp_path: Path) -> None:
    with pytest.raises(LookupError), snapshot.staged(CONTENTS):
        raise LookupError
    assert [path.name for path in tmp_path.iterdir()] == ["abc.lock"]
    snapshot.release()


def test_who_comes_second_leaves_what_is_there(snapshot: Snapshot, tmp_path: Path) -> None:
    with snapshot.staged(CONTENTS) as second:
        with snapshot.staged(CONTENTS) as first:
            write(first)
        inode = snapshot.path.stat().st_ino
        write(second)
    assert snapshot.path.stat().st_ino == inode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["abc", "abc.lock"]
    snapshot.release()


@pytest.mark.parametrize("damage", ["1/model.onnx", "2"])
def test_what_is_not_whole_is_not_held(snapshot: Snapshot, damage: str) -> None:
    with snapshot.staged(CONTENTS) as folder:
        write(folder)
    path = snapshot.path / damage
    path.rmdir() if path.is_dir() else path.write_bytes(b"grap")
    assert not snapshot.holds(CONTENTS)
    snapshot.release()


def test_the_identity() -> None:
    same = snapshot_id("s3://a", "m", CONTENTS)
    assert same == snapshot_id("s3://a", "m", dict(reversed(CONTENTS.items())))
    changed = {**CONTENTS, "2/": StoredObject("m/2/", 0, "2")}
    assert (
        len(
            {
                same,
                snapshot_id("s3://b", "m", CONTENTS),
                snapshot_id("s3://a", "n", CONTENTS),
                snapshot_id("s3://a", "m", changed),
            }
        )
        == 4
    )
