"""Files that are downloaded in parts: what is kept of them, and their verification."""

from __future__ import annotations

import hashlib
import random
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.repository.memory_store import md5
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.disk import try_lock_exclusive
from trident.core.repository.download import Damaged, Verification
from trident.core.repository.partial_file import ContentHash, PartialFile, digest_checksum, journal_path
from trident.core.repository.stores.object_store import Checksum, StoredObject

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


def md5_digest(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


@given(st.binary(max_size=60), st.integers(0, 20), st.integers(1, 25))
def test_checksum_does_not_depend_on_the_pieces(content: bytes, part_size: int, piece: int) -> None:
    made = ContentHash(Checksum("md5", "", hashlib.md5, part_size))
    for at in range(0, len(content), piece):
        made.update(content[at : at + piece])
    if part_size:
        parts = [content[at : at + part_size] for at in range(0, len(content), part_size)] or [b""]
        assert made.value() == md5_digest(b"".join(map(md5_digest, parts))).hex()
    else:
        assert made.value() == md5_digest(content).hex()


def test_digest_gives_a_checksum_of_the_content() -> None:
    checksum = digest_checksum("md5:" + md5_digest(b"abc").hex().upper())
    assert checksum is not None
    made = ContentHash(checksum)
    made.update(b"abc")
    assert made.value() == checksum.value


@pytest.mark.parametrize("digest", ["", "md5", "md5:", "crc32c:00000000", "nothing:12"])
def test_digest_that_identifies_no_content_gives_none(digest: str) -> None:
    assert digest_checksum(digest) is None


BODY = random.Random(5).randbytes(100_003)


@pytest.fixture
def partial(tmp_path: Path) -> Iterator[PartialFile]:
    (tmp_path / "parts").mkdir()
    lock = try_lock_exclusive(tmp_path / "parts" / "x.part")
    assert lock is not None
    partial = PartialFile(lock, len(BODY), 1000)
    yield partial
    partial.close()


def verification(
    partial: PartialFile, digest: str = "", ask: Callable[[], Checksum | None] = lambda: None
) -> Verification:
    return Verification(StoredObject("m/x", len(BODY), "1", digest), partial, ask, threading.Event())


def bring(partial: PartialFile, verification: Verification) -> None:
    """Write all parts in random order, on several threads."""

    def part(index: int) -> None:
        start, stop = partial.range_of(index)
        partial.write(start, BODY[start:stop])
        partial.finish(index)
        verification.advance()

    order = list(range(partial.parts))
    random.Random(7).shuffle(order)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(part, order))


def never() -> Checksum | None:
    raise AssertionError("the storage was asked")


def test_matching_digest_needs_no_request(partial: PartialFile) -> None:
    checked = verification(partial, f"md5:{md5(BODY)}", never)
    bring(partial, checked)
    assert checked.conclude()


@pytest.mark.parametrize("part_size", [0, 999, 1000, 64_000, 200_000])
def test_missing_digest_makes_it_ask_the_storage(partial: PartialFile, part_size: int) -> None:
    """Including the checksum of a multi-part upload, whose parts differ from ours. It does not identify the content."""
    parts = [BODY[at : at + part_size] for at in range(0, len(BODY), part_size)] if part_size else []
    digests = b"".join(hashlib.md5(part, usedforsecurity=False).digest() for part in parts)
    value = md5(digests) if parts else md5(BODY)
    checked = verification(partial, ask=lambda: Checksum("md5", value.upper(), hashlib.md5, part_size))
    bring(partial, checked)
    assert not checked.conclude()


@pytest.mark.parametrize("digest", ["", f"md5:{'0' * 32}"])
def test_wrong_content_is_damaged(partial: PartialFile, digest: str) -> None:
    checked = verification(partial, digest, lambda: Checksum("md5", "0" * 32, hashlib.md5))
    bring(partial, checked)
    with pytest.raises(Damaged, match=f"checksum md5 expected {'0' * 32}, got {md5(BODY)}"):
        checked.conclude()


def test_checksum_of_the_storage_overrides_a_wrong_digest(partial: PartialFile) -> None:
    value = hashlib.sha256(BODY).hexdigest()
    checked = verification(partial, f"md5:{'0' * 32}", lambda: Checksum("sha256", value, hashlib.sha256))
    bring(partial, checked)
    assert not checked.conclude()


def test_wrong_digest_and_wrong_checksum_mean_damaged(partial: PartialFile) -> None:
    checked = verification(partial, f"md5:{'0' * 32}", lambda: Checksum("sha256", "0" * 64, hashlib.sha256))
    bring(partial, checked)
    with pytest.raises(Damaged, match="sha256"):
        checked.conclude()


def test_failed_request_is_repeated_before_the_conclusion(partial: PartialFile) -> None:
    answers = iter([RepositoryUnavailable("access refused")])

    def ask() -> Checksum | None:
        for error in answers:
            raise error
        return Checksum("md5", "0" * 32, hashlib.md5)

    checked = verification(partial, ask=ask)
    with pytest.raises(RepositoryUnavailable):
        checked.advance()
    bring(partial, checked)
    with pytest.raises(Damaged):
        checked.conclude()
