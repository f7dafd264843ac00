"""Checksums of a file whose parts arrive in any order, on many threads."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.core.repository.memory_store import md5
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.disk import try_lock_exclusive
from trident.core.repository.download import Damaged, Verification
from trident.core.repository.partial_file import PartialFile
from trident.core.repository.stores.object_store import Checksum, StoredObject

CONTENT = random.Random(5).randbytes(100_003)


@pytest.fixture
def partial(tmp_path: Path) -> Iterator[PartialFile]:
    (tmp_path / "parts").mkdir()
    lock = try_lock_exclusive(tmp_path / "parts" / "x.part")
    assert lock is not None
    partial = PartialFile(lock, len(CONTENT), 1000)
    yield partial
    partial.close()


def verification(
    partial: PartialFile, digest: str = "", ask: Callable[[], Checksum | None] = lambda: None
) -> Verification:
    return Verification(StoredObject("m/x", len(CONTENT), "1", digest), partial, ask, threading.Event())


def bring(partial: PartialFile, verification: Verification) -> None:
    """Write all parts in random order, on several threads."""

    def part(index: int) -> None:
        start, stop = partial.range_of(index)
        partial.write(start, CONTENT[start:stop])
        partial.finish(index)
        verification.advance()

    order = list(range(partial.parts))
    random.Random(7).shuffle(order)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(part, order))


def never() -> Checksum | None:
    raise AssertionError("the storage was asked")


def test_matching_digest_needs_no_request(partial: PartialFile) -> None:
    checked = verification(partial, f"md5:{md5(CONTENT)}", never)
    bring(partial, checked)
    assert checked.conclude()


@pytest.mark.parametrize("part_size", [0, 999, 1000, 64_000, 200_000])
def test_missing_digest_makes_it_ask_the_storage(partial: PartialFile, part_size: int) -> None:
    """Including the checksum of a multi-part upload, whose parts differ from ours. It does not identify the content."""
    parts = [CONTENT[at : at + part_size] for at in range(0, len(CONTENT), part_size)] if part_size else []
    digests = b"".join(hashlib.md5(part, usedforsecurity=False).digest() for part in parts)
    value = md5(digests) if parts else md5(CONTENT)
    checked = verification(partial, ask=lambda: Checksum("md5", value.upper(), hashlib.md5, part_size))
    bring(partial, checked)
    assert not checked.conclude()


@pytest.mark.parametrize("digest", ["", f"md5:{'0' * 32}"])
def test_wrong_content_is_damaged(partial: PartialFile, digest: str) -> None:
    checked = verification(partial, digest, lambda: Checksum("md5", "0" * 32, hashlib.md5))
    bring(partial, checked)
    with pytest.raises(Damaged, match=f"checksum md5 expected {'0' * 32}, got {md5(CONTENT)}"):
        checked.conclude()


def test_checksum_of_the_storage_overrides_a_wrong_digest(partial: PartialFile) -> None:
    value = hashlib.sha256(CONTENT).hexdigest()
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
