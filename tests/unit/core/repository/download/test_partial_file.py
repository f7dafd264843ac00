"""A partial file and its journal, across starts."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trident.core.errors import RepositoryUnavailable
from trident.core.repository.disk import try_lock_exclusive
from trident.core.repository.partial_file import PartialFile, journal_path

CONTENT = bytes(range(95))


@contextmanager
def opened(folder: Path, size: int = len(CONTENT), part_bytes: int = 10) -> Iterator[PartialFile]:
    parts = folder / "parts"
    parts.mkdir(exist_ok=True)
    lock = try_lock_exclusive(parts / "x.part")
    assert lock is not None
    partial = PartialFile(lock, size, part_bytes)
    try:
        yield partial
    finally:
        partial.close()


def fetch(partial: PartialFile, *parts: int) -> None:
    for part in parts:
        start, stop = partial.range_of(part)
        partial.write(start, CONTENT[start:stop])
        partial.finish(part)


def test_reopened_file_knows_its_complete_parts(tmp_path: Path) -> None:
    with opened(tmp_path) as partial:
        assert partial.unfinished() == list(range(10))
        fetch(partial, 9, 0, 4)
    with opened(tmp_path) as partial:
        assert partial.unfinished() == [1, 2, 3, 5, 6, 7, 8]
        assert partial.finished_bytes() == 25
        assert b"".join(partial.pieces(90, 95)) == CONTENT[90:]
        fetch(partial, *partial.unfinished())
        partial.move_to(tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == CONTENT
    assert (tmp_path / "blob").stat().st_mode & 0o777 == 0o400
    assert list((tmp_path / "parts").iterdir()) == []


def test_incomplete_journal_line_is_ignored(tmp_path: Path) -> None:
    """`1` may be the beginning of `12`. A line written after it must not be joined to it."""
    with opened(tmp_path) as partial:
        fetch(partial, 3)
    journal = journal_path(tmp_path / "parts" / "x.part")
    with journal.open("ab") as torn:
        torn.write(b"1")
    with opened(tmp_path) as partial:
        assert partial.finished_bytes() == 10
        fetch(partial, 5)
    with opened(tmp_path) as partial:
        assert partial.unfinished() == [0, 1, 2, 4, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "journal", [b"", b"95", b"95 10\n10\n", b"95 10\n-1\n", b"\xff\n1\n", b"96 10\n1\n", b"95 9\n1\n"]
)
def test_invalid_journal_is_ignored(tmp_path: Path, journal: bytes) -> None:
    with opened(tmp_path):
        pass
    journal_path(tmp_path / "parts" / "x.part").write_bytes(journal)
    with opened(tmp_path) as partial:
        assert partial.finished_bytes() == 0


def test_journal_without_its_file_is_ignored(tmp_path: Path) -> None:
    with opened(tmp_path) as partial:
        fetch(partial, 1)
    (tmp_path / "parts" / "x.part").unlink()
    with opened(tmp_path) as partial:
        assert partial.finished_bytes() == 0


@pytest.mark.parametrize(("size", "parts"), [(0, 1), (1, 1), (10, 1), (11, 2)])
def test_size_determines_the_number_of_parts(tmp_path: Path, size: int, parts: int) -> None:
    with opened(tmp_path, size) as partial:
        assert partial.parts == parts


def test_full_disk_is_reported_and_frees_the_space(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(tmp_path) as partial:
        fetch(partial, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
        try:
            with pytest.raises(RepositoryUnavailable, match=r"no room: .*; 85 bytes are needed, \d+ bytes are free"):
                fetch(partial, 3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "parts").iterdir()) == []


def test_discard_removes_file_and_journal(tmp_path: Path) -> None:
    with opened(tmp_path) as partial:
        fetch(partial, 0, 1)
        partial.discard()
    assert list((tmp_path / "parts").iterdir()) == []
