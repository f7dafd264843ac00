"""The credential file in TRITON_CLOUD_CREDENTIAL_PATH."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trident.core.errors import ConfigInvalid, RepositoryUnavailable
from trident.core.repository.location import parse_location
from trident.core.repository.stores.object_store import (
    CloudCredentials,
    GcsCredential,
    S3Credential,
    read_cloud_credentials,
)

SECRET = "wJalrXUtnFEMI-example-secret"


def read(folder: Path, document: object) -> CloudCredentials:
    path = folder / "credentials.json"
    path.write_text(json.dumps(document))
    return read_cloud_credentials(str(path))


def s3(**fields: str) -> dict[str, object]:
    return {"s3": {"": fields}}


def test_missing_file_selects_the_default_chain() -> None:
    assert read_cloud_credentials("").credentials_for(parse_location("s3://b")) is None


def test_longest_prefix_wins(tmp_path: Path) -> None:
    names = ["", "s3://b", "s3://b/team", "s3://http://host:9000//b/", "s3://https://host"]
    credentials = read(tmp_path, {"s3": {name: {"profile": name or "all"} for name in names}})
    for text, profile in [
        ("s3://other", "all"),
        ("s3://b", "s3://b"),
        ("s3://b/models", "s3://b"),
        ("s3://b/team/models", "s3://b/team"),
        ("s3://host:9000/b", "s3://http://host:9000//b/"),
        ("s3://host:9000/b2", "all"),
        ("s3://https://host:9000/b", "s3://https://host"),
    ]:
        assert credentials.credentials_for(parse_location(text)) == S3Credential(profile=profile)


def test_prefix_without_a_slash_matches_longer_bucket_names(tmp_path: Path) -> None:
    credentials = read(tmp_path, {"gs": {"": "a", "gs://b/": "b", "gs://c": "c"}})
    found = [credentials.credentials_for(parse_location(text)) for text in ("gs://b", "gs://bb", "gs://cc")]
    assert found == [GcsCredential("b"), GcsCredential("a"), GcsCredential("c")]


def test_uri_without_a_matching_entry_is_refused(tmp_path: Path) -> None:
    credentials = read(tmp_path, {"s3": {"s3://b": {}}, "as": {"": {"account_str": "x"}}})
    with pytest.raises(RepositoryUnavailable) as caught:
        credentials.credentials_for(parse_location("s3://other/models"))
    assert caught.value.message == "Cannot match credential for path  s3://other/models"
    assert credentials.credentials_for(parse_location("gs://b")) is None
    assert credentials.credentials_for(parse_location("/models")) is None


def test_every_string_may_be_missing_or_empty(tmp_path: Path) -> None:
    assert read(tmp_path, s3()).s3[""] == S3Credential()
    empty = s3(secret_key="", key_id="", region="", session_token="", profile="")
    assert read(tmp_path, empty).s3[""] == S3Credential()
    full = read(tmp_path, s3(key_id="k", secret_key="s", region="r", session_token="t", profile="p", other="x"))
    assert full.s3[""] == S3Credential("k", "s", "t", "r", "p")
    assert read(tmp_path, {"gs": {"": ""}}).credentials_for(parse_location("gs://b")) is None


def test_repr_hides_secrets(tmp_path: Path) -> None:
    credentials = read(tmp_path, s3(key_id="AKIAIOSFODNN7EXAMPLE", secret_key=SECRET, session_token=SECRET))
    shown = f"{credentials} {credentials.s3['']!r} {credentials.s3['']}"
    assert SECRET not in shown
    assert "AKIA" not in shown
    assert "…MPLE" in shown


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not JSON"),
        (f'{{"s3": {{"": {{"secret_key": "{SECRET}"'.encode(), "is not JSON (line 1"),
        (SECRET.encode(), "is not JSON"),
        (SECRET.encode() + b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (f'["{SECRET}"]'.encode(), "is not a JSON object"),
        (f'{{"s3": "{SECRET}"}}'.encode(), "section 's3'"),
        (f'{{"s3": {{"": "{SECRET}"}}}}'.encode(), "entry 1 of section 's3'"),
        (f'{{"s3": {{"{SECRET}": {{"key_id": 1}}}}}}'.encode(), "'key_id' is not a string"),
        (f'{{"s3": {{"": {{"secret_key": ["{SECRET}"]}}}}}}'.encode(), "'secret_key' is not a string"),
        (f'{{"s3": {{"": {{"secret_key": "{SECRET}"}}}}}}'.encode(), "'secret_key' but no 'key_id'"),
        (b'{"s3": {"": {}, "x": {"key_id": "k"}}}', "entry 2 of section 's3'"),
        (f'{{"gs": {{"": {{"x": "{SECRET}"}}}}}}'.encode(), "entry 1 of section 'gs'"),
        (b" " * ((1 << 20) + 1), "more than 1048576 bytes"),
    ],
)
def test_malformed_file_is_named_and_not_quoted(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "credentials.json"
    path.write_bytes(content)
    with pytest.raises(ConfigInvalid) as caught:
        read_cloud_credentials(str(path))
    assert says in caught.value.message
    assert str(path) in caught.value.message
    assert SECRET not in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.__cause__ is None


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="No such file"):
        read_cloud_credentials(str(tmp_path / "none.json"))
