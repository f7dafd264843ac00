"""All repositories of a server as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.core.errors import RepositoryUnavailable
from trident.core.repository.repositories import NOT_UNIQUE, ModelKey, Repositories
from trident.core.repository.sources import LocalSource


def folder(path: Path, *models: str) -> LocalSource:
    for model in models:
        (path / model / "1").mkdir(parents=True)
    return LocalSource(path)


@pytest.fixture
def two(tmp_path: Path) -> list[LocalSource]:
    """Two repositories that both have the model `both`."""
    return [folder(tmp_path / "a", "both", "first"), folder(tmp_path / "b", "both", "second")]


def test_scan_leaves_out_duplicate_names(two: list[LocalSource]) -> None:
    scan = Repositories(two).scan()
    assert sorted(scan.models) == [ModelKey("first"), ModelKey("second")]
    assert scan.models[ModelKey("second")].source is two[1]
    assert [file.path for file in scan.models[ModelKey("second")].files] == ["1/"]
    assert scan.duplicates == {"both"}
    assert scan.failures == {}


def test_names_mark_duplicates_as_not_unique(two: list[LocalSource]) -> None:
    assert Repositories(two).names() == {
        ModelKey("both"): NOT_UNIQUE,
        ModelKey("first"): "",
        ModelKey("second"): "",
    }


def test_namespacing_gives_every_model_its_own_key(two: list[LocalSource]) -> None:
    known = Repositories(two, namespacing=True)
    a, b = (source.location for source in two)
    assert sorted(known.scan().models) == [("both", a), ("both", b), ("first", a), ("second", b)]
    assert known.scan().duplicates == frozenset()
    assert set(known.names().values()) == {""}
    assert [located.key for located in known.find("both")] == [("both", a), ("both", b)]


def test_find_returns_every_repository_with_the_model(two: list[LocalSource]) -> None:
    known = Repositories(two)
    assert [located.source for located in known.find("both")] == two
    assert [located.source for located in known.find("second")] == two[1:]
    assert known.find("none") == []


def test_repository_named_twice_counts_once(two: list[LocalSource]) -> None:
    known = Repositories([two[0], LocalSource(two[0].path)])
    assert known.scan().duplicates == frozenset()
    assert len(known.find("both")) == 1


def test_unreadable_repository_does_not_hide_the_others(two: list[LocalSource], tmp_path: Path) -> None:
    known = Repositories(two)
    known.check()
    (tmp_path / "a").rename(tmp_path / "away")
    scan = known.scan()
    assert sorted(scan.models) == [ModelKey("both"), ModelKey("second")]
    assert list(scan.failures) == [two[0].location]
    assert scan.failures[two[0].location].message == "repository path is not a valid directory"
    # The names that it had last remain.
    assert known.names()[ModelKey("first")] == ""
    # The model might be in the unreadable repository, so `find` cannot say where it is.
    for name in ("first", "second"):
        with pytest.raises(RepositoryUnavailable):
            known.find(name)
    with pytest.raises(RepositoryUnavailable):
        known.check()
