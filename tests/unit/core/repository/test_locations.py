"""Repositories by their locations, and models of the same name in several."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.core.errors import ConfigInvalid, RepositoryUnavailable
from trident.core.repository.location import Location, Scheme, parse_location, uri_prefix
from trident.core.repository.sources import LocalSource, ModelKey, Repositories


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://b", Location("s3://b", Scheme.S3, "", "b")),
        ("s3://b/", Location("s3://b", Scheme.S3, "", "b")),
        ("s3://b//models/", Location("s3://b/models", Scheme.S3, "", "b", "models")),
        ("s3://b/a/b c/é@x:1", Location("s3://b/a/b c/é@x:1", Scheme.S3, "", "b", "a/b c/é@x:1")),
        ("S3://b/a", Location("s3://b/a", Scheme.S3, "", "b", "a")),
        ("s3://host:9000/b", Location("s3://host:9000/b", Scheme.S3, "http://host:9000", "b")),
        ("s3://minio_1:9000/b/m/", Location("s3://minio_1:9000/b/m", Scheme.S3, "http://minio_1:9000", "b", "m")),
        (
            "s3://http://10.0.0.1:9000//b/m",
            Location("s3://10.0.0.1:9000/b/m", Scheme.S3, "http://10.0.0.1:9000", "b", "m"),
        ),
        ("s3://https://h.io:443/b", Location("s3://https://h.io:443/b", Scheme.S3, "https://h.io:443", "b")),
        ("s3://https://h.io/b", Location("s3://https://h.io/b", Scheme.S3, "https://h.io", "b")),
        ("s3://[::1]:9000/b/m", Location("s3://[::1]:9000/b/m", Scheme.S3, "http://[::1]:9000", "b", "m")),
        ("s3://https://[::1]/b", Location("s3://https://[::1]/b", Scheme.S3, "https://[::1]", "b")),
        ("gs://b", Location("gs://b", Scheme.GS, "", "b")),
        ("gs://my_b.x//a///b/", Location("gs://my_b.x/a/b", Scheme.GS, "", "my_b.x", "a/b")),
    ],
)
def test_uri_is_parsed_and_normalised(text: str, expected: Location) -> None:
    assert parse_location(text) == expected
    assert parse_location(expected.text) == expected
    assert uri_prefix(text).removesuffix("/") == expected.text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no path"),
        ("a\0b", "has no path"),
        ("s3://", "names no bucket"),
        ("s3:///", "names no bucket"),
        ("gs:///", "names no bucket"),
        ("s3://host:9000", "s3://host:9000 names no bucket"),
        ("s3://https://host", "s3://https://host names no bucket"),
        ("s3://host:/b", "is not a port"),
        ("s3://host:x/b", "'x' in s3://host:x is not a port"),
        ("s3://host:0/b", "is not a port"),
        ("s3://host:65536/b", "is not a port"),
        ("s3://host:" + "9" * 5000 + "/b", "is not a port"),
        ("s3://host:٣/b", "is not a port"),
        ("s3://[::1]/b", "has no port"),
        ("s3://:9000/b", "is not a host"),
        ("s3://ho st:9000/b", "is not a host"),
        ("s3://host:1:2/b", "is not a host"),
        ("s3://b?x/a", "cannot be the name of a bucket"),
        ("s3://host:9000/b#x", "cannot be the name of a bucket"),
        ("s3://" + "b" * 256, "cannot be the name of a bucket"),
        ("s3://b/a/../c", "'..'"),
        ("s3://host:9000/../c", "'..'"),
        ("s3://b/./c", "'..'"),
        ("s3://b/a\nb", "control character"),
        ("gs://host:9000/b", "STORAGE_EMULATOR_HOST"),
        ("gs://http://host/b", "STORAGE_EMULATOR_HOST"),
        ("http://host/b", "unknown storage http://"),
        ("https://host/b", "unknown storage https://"),
        ("as://account", "names no bucket"),
        ("as://host:10000/container", "is not the name of a storage account"),
        ("as://http://account/container", "AZURE_STORAGE_CONNECTION_STRING"),
        ("as://Example.com/container", "is not the name of a storage account"),
        ("azure://c/p", "unknown storage azure://"),
        ("file:///models", "unknown storage file://"),
    ],
)
def test_wrong_form_is_refused_with_a_hint(text: str, says: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse_location(text)
    assert says in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIA:hunter2@b/p",
        "s3://http://AKIA:hunter2@host:9000/b",
        "s3://hunter2@host:9000/b",
        "gs://hunter2@b/p",
        "http://AKIA:hunter2@host/b",
    ],
)
def test_password_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse_location(text)
    assert "hunter2" not in f"{caught.value.message} {caught.value.hint}"


def folder(path: Path, *models: str) -> LocalSource:
    for model in models:
        (path / model / "1").mkdir(parents=True)
    return LocalSource(path)


@pytest.fixture
def two(tmp_path: Path) -> list[LocalSource]:
    """Two repositories that both have the model `both`."""
    return [folder(tmp_path / "a", "both", "first"), folder(tmp_path / "b", "both", "second")]


def test_namespacing_gives_every_model_its_own_key(two: list[LocalSource]) -> None:
    known = Repositories(two, namespacing=True)
    a, b = (source.location for source in two)
    assert sorted(known.scan().models) == [("both", a), ("both", b), ("first", a), ("second", b)]
    assert known.scan().duplicates == frozenset()
    assert set(known.names().values()) == {""}
    assert [located.key for located in known.find("both")] == [("both", a), ("both", b)]


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
