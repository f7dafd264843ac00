"""The running checksum of an object's content, including checksums of parts' checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from core.repository.stores.object_store import Checksum, Hash

# Hashes that identify a content; a CRC does not.
_NAMING = frozenset({"md5", "sha1", "sha256", "sha384", "sha512"})


class ContentHash:
    """A checksum that takes the content from beginning to end, in pieces of any size."""

    def __init__(self, checksum: Checksum) -> None:
        self._checksum = checksum
        self._current = checksum.make()
        self._in_part = 0
        self._digests: list[str] = []

    def update(self, content: bytes | memoryview) -> None:
        size = self._checksum.part_size
        while size and self._in_part + len(content) > size:
            room = size - self._in_part
            self._current.update(content[:room])
            content = content[room:]
            self._end_part()
        self._current.update(content)
        self._in_part += len(content)

    def value(self) -> str:
        """The checksum of the content so far, in hex as the storage writes it."""
        if not self._checksum.part_size:
            return self._current.hexdigest().lower()
        if self._in_part or not self._digests:
            self._end_part()
        whole = self._checksum.make()
        whole.update(bytes.fromhex("".join(self._digests)))
        return whole.hexdigest().lower()

    def _end_part(self) -> None:
        self._digests.append(self._current.hexdigest())
        self._current = self._checksum.make()
        self._in_part = 0


def digest_checksum(digest: str) -> Checksum | None:
    """The Checksum of a listing's digest, such as `md5:<hex>`; None for a digest that does not identify a content."""
    name, _, value = digest.partition(":")
    if name not in _NAMING or not value:
        return None
    return Checksum(name, value.lower(), _maker(name))


def _maker(name: str) -> Callable[[], Hash]:
    return lambda: hashlib.new(name, usedforsecurity=False)
