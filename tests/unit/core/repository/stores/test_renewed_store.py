"""Credentials that are replaced while the server runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from trident.core.errors import ConfigInvalid, RepositoryUnavailable
from trident.core.repository.stores.object_store import (
    Checksum,
    ObjectStore,
    RenewedStore,
    StoredObject,
    TransientError,
)

OBJECT = StoredObject("a", 1, "t")


class Keyed:
    """A store that accepts only the key "good"."""

    def __init__(self, key: str) -> None:
        self.location = "memory"
        self._key = key

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        yield OBJECT
        self._check()

    def folders(self, pages: int | None = None) -> Iterator[str]:
        self._check()
        yield "a"

    def read(self, wanted: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        self._check()
        yield b"x"

    def checksum(self, wanted: StoredObject) -> Checksum | None:
        self._check()
        return None

    def _check(self) -> None:
        if self._key != "good":
            raise RepositoryUnavailable(f"refused {self._key}")


class File:
    """A credential file, and the keys that stores were made with."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.made: list[str] = []

    def read(self) -> str:
        if self.key == "unreadable":
            raise ConfigInvalid("unreadable")
        return self.key

    def make(self, key: str) -> ObjectStore:
        self.made.append(key)
        if key == "unusable":
            raise RepositoryUnavailable("unusable key")
        return Keyed(key)


USES: list[Callable[[ObjectStore], object]] = [
    lambda store: list(store.list()),
    lambda store: list(store.folders()),
    lambda store: list(store.read(OBJECT, 0, 1)),
    lambda store: store.checksum(OBJECT),
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("first", ["old", "unusable"])
def test_failure_is_transient_if_the_credential_has_changed(use: Callable[[ObjectStore], object], first: str) -> None:
    file = File(first)
    store: ObjectStore = RenewedStore("memory", file.read, file.make)
    file.key = "good"
    with pytest.raises(TransientError):
        use(store)
    use(store)
    use(store)
    assert file.made == [first, "good"]


@pytest.mark.parametrize("then", ["old", "unreadable"])
def test_failure_is_final_if_the_credential_has_not_changed(then: str) -> None:
    file = File("old")
    store = RenewedStore("memory", file.read, file.make)
    file.key = then
    for _ in range(2):
        with pytest.raises(RepositoryUnavailable, match="refused old"):
            list(store.folders())
    assert file.made == ["old"]


def test_store_is_made_at_the_first_use() -> None:
    file = File("unusable")
    store = RenewedStore("memory", file.read, file.make)
    assert (store.location, file.made) == ("memory", [])
    with pytest.raises(RepositoryUnavailable, match="unusable key"):
        list(store.list())


def test_unreadable_file_fails_at_once() -> None:
    with pytest.raises(ConfigInvalid):
        RenewedStore("memory", File("unreadable").read, Keyed)


def test_only_the_first_of_several_failures_renews_the_store() -> None:
    """The second failure comes from the replaced store, so its caller must retry with the new store."""
    file = File("old")
    store = RenewedStore("memory", file.read, file.make)
    first, second = store.list(), store.list()
    next(first)
    next(second)
    file.key = "good"
    for listing in (first, second):
        with pytest.raises(TransientError):
            next(listing)
    assert list(store.folders()) == ["a"]
    assert file.made == ["old", "good"]
