"""The pieces of what a lent machine needs: what was split is joined again, and damage is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gpu import Damaged, join, split

CONTENTS = {"a.whl": b"a" * 25, "empty": b"", "b.whl": bytes(range(256)), "c": b"c"}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "files"
    folder.mkdir()
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in CONTENTS]


@pytest.mark.parametrize(("piece_bytes", "pieces"), [(1, 282), (10, 29), (141, 2), (1000, 1)])
def test_files_are_joined_as_they_were(files: list[Path], tmp_path: Path, piece_bytes: int, pieces: int) -> None:
    packed = tmp_path / "packed"
    assert split(files, packed, piece_bytes) == pieces
    sizes = [piece.stat().st_size for piece in sorted(packed.glob("piece-*"))]
    assert (len(sizes), max(sizes), sum(sizes)) == (pieces, min(piece_bytes, 282), 282)
    joined = join(packed, tmp_path / "joined")
    assert {file.name: file.read_bytes() for file in joined} == CONTENTS


def test_damage_is_found(files: list[Path], tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    split(files, packed, 100)
    piece = packed / "piece-001"
    content = piece.read_bytes()
    for damaged in (content[:-1], b"?" + content[1:]):
        piece.write_bytes(damaged)
        with pytest.raises(Damaged, match=r"b\.whl is not what was packed"):
            join(packed, tmp_path / "joined")
    piece.unlink()
    with pytest.raises(Damaged, match="lacks piece-001"):
        join(packed, tmp_path / "joined")
