"""The verification of a download against the storage's checksum, computed while parts are still arriving."""

from __future__ import annotations

import threading
from collections.abc import Callable

from core.repository.download.backoff import GivenUp
from core.repository.download.content_hash import ContentHash, digest_checksum
from core.repository.download.partial_file import PartialFile
from core.repository.stores.object_store import Checksum, StoredObject


class Damaged(Exception):
    """The downloaded content differs from the storage's checksum."""


class Verification:
    """Hashes a partial file in order, on the thread that has just finished a part.

    `ask` gets the checksum from the storage. It is called only if the listing had no digest, or if the digest differs
    from the content: for objects encrypted by KMS, S3 lists an etag that looks like an MD5 but is not. Receiving does
    not wait for the hash, which on a fast network is slower. Methods raise GivenUp after `stop` is set.
    """

    def __init__(
        self, wanted: StoredObject, partial: PartialFile, ask: Callable[[], Checksum | None], stop: threading.Event
    ) -> None:
        self._partial = partial
        self._ask = ask
        self._stop = stop
        self._digest = digest_checksum(wanted.digest)
        self._checksum: Checksum | None = self._digest
        self._hash: ContentHash | None = None
        self._asked = False
        self._next_part = 0
        self._lock = threading.Lock()

    def advance(self) -> None:
        """Hash the parts that have arrived in order; does nothing while another thread is hashing."""
        if self._lock.acquire(blocking=False):
            try:
                self._hash_finished()
            finally:
                self._lock.release()

    def conclude(self) -> bool:
        """Verify the content after all parts are finished: True if it matches the digest of the listing.

        False if it only matches the storage's checksum, or if there is no checksum. Raises Damaged otherwise.
        """
        with self._lock:
            self._hash_finished()
            if self._checksum is None or self._hash is None:
                return False
            damage = _difference(self._checksum, self._hash)
            if self._digest is None:
                if damage:
                    raise Damaged(damage)
                return False
            if damage:
                self._conclude_otherwise(damage)
            return not damage

    def _conclude_otherwise(self, damage: str) -> None:
        checksum = self._ask()
        if checksum is None:
            return
        if self._digest is not None and checksum.value.lower() == self._digest.value:
            raise Damaged(damage)
        second = ContentHash(checksum)
        for piece in self._partial.pieces(0, self._partial.size):
            self._go_on()
            second.update(piece)
        difference = _difference(checksum, second)
        if difference:
            raise Damaged(difference)

    def _hash_finished(self) -> None:
        if not self._asked:
            if self._digest is None:
                self._checksum = self._ask()
            self._asked = True
            if self._checksum is not None:
                self._hash = ContentHash(self._checksum)
        while self._partial.is_finished(self._next_part):
            self._go_on()
            if self._hash is not None:
                for piece in self._partial.pieces(*self._partial.range_of(self._next_part)):
                    self._hash.update(piece)
            self._next_part += 1

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise GivenUp


def _difference(checksum: Checksum, made: ContentHash) -> str:
    """The difference in words; empty without one."""
    value = made.value()
    if value == checksum.value.lower():
        return ""
    return f"checksum {checksum.name} expected {checksum.value}, got {value}"
