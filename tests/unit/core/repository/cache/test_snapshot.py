"""A snapshot of a model's files in the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.core.repository.cache import Snapshot, snapshot_id
from trident.core.repository.stores.object_store import StoredObject

CONTENTS = {"1/model.onnx": StoredObject("m/1/model.onnx", 5, "1"), "2/": StoredObject("m/2/", 0, "1")}


def write(folder: Path, content: bytes = b"graph") -> None:
    (folder / "1").mkdir()
    (folder / "2").mkdir()
    (folder / "1" / "model.onnx").write_bytes(content)
    (folder / "1" / "model.onnx").chmod(0o400)


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return Snapshot(tmp_path, "abc", "m")


def test_snapshot_appears_complete(snapshot: Snapshot, tmp_path: Path) -> None:
    assert not snapshot.holds(CONTENTS)
    with snapshot.staged(CONTENTS) as folder:
        write(folder)
        assert not snapshot.path.exists()
    assert snapshot.holds(CONTENTS)
    assert snapshot.path == tmp_path / "abc" / "m"
    snapshot.release()


def test_failed_block_leaves_no_snapshot(snapshot: Snapshot, tmp_path: Path) -> None:
    with pytest.raises(LookupError), snapshot.staged(CONTENTS):
        raise LookupError
    assert [path.name for path in tmp_path.iterdir()] == ["abc.lock"]
    snapshot.release()


def test_second_publisher_keeps_the_first_snapshot(snapshot: Snapshot, tmp_path: Path) -> None:
    with snapshot.staged(CONTENTS) as second:
        with snapshot.staged(CONTENTS) as first:
            write(first)
        inode = snapshot.path.stat().st_ino
        write(second)
    assert snapshot.path.stat().st_ino == inode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["abc", "abc.lock"]
    snapshot.release()


@pytest.mark.parametrize("damage", ["1/model.onnx", "2"])
def test_damaged_snapshot_does_not_hold_its_contents(snapshot: Snapshot, damage: str) -> None:
    with snapshot.staged(CONTENTS) as folder:
        write(folder)
    path = snapshot.path / damage
    path.rmdir() if path.is_dir() else path.write_bytes(b"grap")
    assert not snapshot.holds(CONTENTS)
    snapshot.release()


def test_identity_depends_on_location_model_and_tags() -> None:
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
