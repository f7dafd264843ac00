"""Opening the Source that a value of --model-repository names; no test uses the network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trident.core.errors import ConfigInvalid, RepositoryUnavailable, Unsupported
from trident.core.repository.cloud_sources import ObjectStoreSource
from trident.core.repository.sources import LocalSource, SourceOpener, SourceOptions


def opener(folder: Path, credential_path: str = "") -> SourceOpener:
    options = SourceOptions(cache_directory=folder / "cache", cache_bytes=1 << 20, credential_path=credential_path)
    return SourceOpener(options)


def test_local_repository_needs_no_cache(tmp_path: Path) -> None:
    source = opener(tmp_path).open(str(tmp_path / "models"))
    assert isinstance(source, LocalSource)
    assert source.location == str(tmp_path / "models")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("text", "location"), [("s3://host:9000//b/m/", "s3://host:9000/b/m"), ("gs://bucket/m", "gs://bucket/m")]
)
def test_object_store_uri_opens_an_object_store_source(tmp_path: Path, text: str, location: str) -> None:
    source = opener(tmp_path).open(text)
    assert isinstance(source, ObjectStoreSource)
    assert source.location == location


def test_opening_downloads_nothing(tmp_path: Path) -> None:
    several = opener(tmp_path)
    several.open("s3://bucket/a")
    several.open("gs://bucket/b")
    assert (tmp_path / "cache").is_dir()
    assert not several.progress.snapshot().active


def test_unknown_storages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported):
        opener(tmp_path).open("as://account/container")
    with pytest.raises(ConfigInvalid):
        opener(tmp_path).open("http://host/b")


def test_wrong_credential_file_fails_only_repositories_that_need_it(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({"s3": {"s3://one": {}}}))
    one = opener(tmp_path, str(file))
    one.open("s3://one/models")
    one.open("gs://bucket")
    with pytest.raises(RepositoryUnavailable, match="Cannot match credential for path  s3://other"):
        one.open("s3://other")
    file.write_text("not JSON")
    one.open(str(tmp_path))
    with pytest.raises(ConfigInvalid):
        one.open("s3://one/models")


def test_unusable_cache_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(RepositoryUnavailable):
        opener(tmp_path).open("s3://bucket")
