"""`trident doctor` on model repositories, and on the cloud storages that have them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trident.app.commands.doctor_repositories import (
    CacheReading,
    CallReading,
    Level,
    Line,
    RepositoryReading,
    StorageReading,
    proxy_of,
    read_cache,
    read_repository,
    repository_lines,
    room_lines,
    s3_statement,
    storage_lines,
)
from trident.app.settings.reading import read_settings
from trident.app.settings.server import ServerSettings
from trident.core.repository.location import parse_location
from trident.core.repository.sources import SourceFile
from trident.core.repository.stores.object_store import RegionOrigin, StorageAccess

S3, GCS = parse_location("s3://bucket/models"), parse_location("gs://bucket/models")

# --- repositories

SIZES = {"config.pbtxt": 10, "1/model.onnx": 100, "2/model.onnx": 1000, "old/model.onnx": 5}
FILES = [SourceFile(path, size, "etag") for path, size in SIZES.items()]
READING = RepositoryReading(location=S3, models={"m": FILES})


def settings(folder: Path, *options: str) -> ServerSettings:
    return read_settings([f"--model-repository={folder}", f"--model-cache-directory={folder}-cache", *options], {})


def read(folder: Path, *options: str) -> RepositoryReading:
    return read_repository(parse_location(str(folder)), settings(folder, *options))


@pytest.mark.parametrize(
    ("changes", "check", "level", "text", "cure"),
    [
        ({}, "models", Level.OK, "1 model, 2 versions, 1.09 KiB", ""),
        ({}, "no versions", Level.WARNING, "m/old: ", "1, 2, 3"),
        ({"models": {}}, "models", Level.WARNING, "there is no model", "expected MODEL/1/model.onnx"),
        ({"failure": "no such folder", "hint": "make it"}, "models", Level.FAILED, "no such folder", "make it"),
        ({"ignored": ["code"]}, "ignored", Level.WARNING, "code: ", "rename"),
        ({"models": {"docs": [SourceFile("README", 1, "a")]}}, "no models", Level.WARNING, "docs: ", "move them"),
        ({"refused": 0}, "validation", Level.OK, "every model would load", ""),
        ({"refused": 1}, "validation", Level.FAILED, "1 model of 1 would", "trident validate s3://bucket/models"),
        ({"refused": 1, "must_load": False}, "validation", Level.WARNING, "1 model of 1", "trident validate"),
    ],
)
def test_a_repository_is_told(changes: dict[str, Any], check: str, level: Level, text: str, cure: str) -> None:
    (line,) = [each for each in repository_lines(replace(READING, **changes)) if each.check == check]
    assert (line.level, line.text[: len(text)], cure in line.cure) == (level, text, True)


CACHE = CacheReading(directory="/cache", max_bytes=0, used=0, free=1 << 20)


def test_models_are_compared_with_memory_and_with_the_disk_of_the_cache(tmp_path: Path) -> None:
    def level(free_memory: int | None, cache: CacheReading | None = None) -> Level:
        (line,) = room_lines([READING], free_memory, cache)
        return line.level

    # The newest version and the files beside it.
    assert (level(1015), level(1014)) == (Level.OK, Level.WARNING)
    assert room_lines([READING], None, None) == []
    assert level(None, CACHE) is Level.OK
    assert level(None, replace(CACHE, free=1000)) is Level.FAILED
    assert level(None, replace(CACHE, free=1000, used=15)) is Level.OK
    assert level(None, replace(CACHE, max_bytes=1000)) is Level.WARNING
    found = read_cache(settings(tmp_path / "models"))
    assert (found.used, found.free > 0, Path(found.directory).exists()) == (0, True, False)


def test_a_local_repository_is_scanned_and_validated(shipped_models: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    shutil.copytree(shipped_models, repository)
    good = read(repository)
    assert (good.refused, good.ignored, good.must_load) == (0, [], True)
    (repository / "asks").mkdir()
    (repository / "asks" / "config.pbtxt").write_text("instance_group [{ kind: KIND_GPU }]")
    bad = read(repository, "--exit-on-error=false")
    assert (bad.refused, bad.asking_for_gpu, bad.must_load) == (1, ["asks"], False)
    assert len(bad.models) == len(good.models) + 1
    # A model that is served by itself is no repository.
    one = read(repository / "simple", "--single-model=other")
    assert (list(one.models), one.is_single, one.ignored, one.refused) == (["other"], True, [], None)
    assert "without a repository around it" in repository_lines(one)[0].text
    assert read(tmp_path / "missing").failure == "repository path is not a valid directory"


# --- storages

AWS = StorageAccess(
    "access key …MPLE from env", "env", "https://s3.eu-west-1.amazonaws.com", "eu-west-1", RegionOrigin.CONFIGURATION
)
GOOGLE = StorageAccess("service account a@p.iam", "google.oauth2.service_account", "https://storage.googleapis.com")
LISTING = CallReading("ListObjectsV2", "s3:ListBucket", S3.text)
GOOD = StorageReading(S3, AWS, calls=[LISTING], skew_s=0.4)


def line(reading: StorageReading, check: str, environ: Mapping[str, str]) -> Line:
    return next(each for each in storage_lines(reading, environ) if each.check == check)


def test_a_storage_that_answers_is_ok_and_unusable_credentials_are_the_only_line() -> None:
    lines = storage_lines(GOOD, {"AWS_DEFAULT_REGION": "eu-west-1"})
    assert {each.level for each in lines} == {Level.OK}
    assert [each.check for each in lines] == ["credentials", "region", "endpoint", "clock", "ListObjectsV2"]
    (found,) = storage_lines(StorageReading(S3, None, "the profile does not exist", "name another"), {})
    assert (found.level, found.text, found.cure) == (Level.FAILED, "the profile does not exist", "name another")


@pytest.mark.parametrize(
    ("access", "credentials", "environ", "text"),
    [
        (AWS, "env", {}, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (AWS, "shared-credentials-file", {"AWS_PROFILE": "team"}, "shared credentials file, profile 'team'"),
        (AWS, "shared-credentials-file", {}, "profile 'default'"),
        (AWS, "a-new-method", {}, "from a-new-method"),
        (AWS, "", {}, "anonymous"),
        (GOOGLE, "google.oauth2.service_account", {}, "a service account's key file"),
        (GOOGLE, "google.auth.identity_pool", {"GOOGLE_APPLICATION_CREDENTIALS": "/k.json"}, "CREDENTIALS=/k.json"),
        (GOOGLE, "", {"STORAGE_EMULATOR_HOST": "localhost:9023"}, "names an emulator"),
    ],
)
def test_the_origin_of_credentials_is_named(
    access: StorageAccess, credentials: str, environ: dict[str, str], text: str
) -> None:
    reading = StorageReading(S3 if access is AWS else GCS, replace(access, credentials=credentials), skew_s=0.0)
    assert text in line(reading, "credentials", environ).text


@pytest.mark.parametrize(
    ("origin", "environ", "text"),
    [
        (RegionOrigin.CREDENTIAL_FILE, {}, "from the credential file"),
        (RegionOrigin.CONFIGURATION, {"AWS_DEFAULT_REGION": "eu-west-1"}, "from AWS_DEFAULT_REGION"),
        (RegionOrigin.CONFIGURATION, {}, "from the AWS configuration file"),
        (RegionOrigin.DEFAULT, {}, "the default: nothing names another"),
        # boto3 does not read it.
        (RegionOrigin.DEFAULT, {"AWS_REGION": "a"}, "the default: nothing names another; AWS_REGION is a"),
    ],
)
def test_the_origin_of_the_region_is_named(origin: RegionOrigin, environ: dict[str, str], text: str) -> None:
    found = line(replace(GOOD, access=replace(AWS, region_origin=origin)), "region", environ)
    assert found.text == f"eu-west-1, {text}"
    assert found.level is (Level.WARNING if "AWS_REGION" in environ else Level.OK)


@pytest.mark.parametrize(
    ("environ", "proxy"),
    [
        ({}, ""),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128 (HTTPS_PROXY)"),
        ({"https_proxy": "http://me:secret@proxy:3128/"}, "http://***@proxy:3128/ (https_proxy)"),
        ({"HTTPS_PROXY": "me:secret@proxy:3128"}, "***@proxy:3128 (HTTPS_PROXY)"),
        ({"HTTP_PROXY": "http://proxy:3128"}, ""),
        ({"ALL_PROXY": "http://proxy:3128"}, "http://proxy:3128 (ALL_PROXY)"),
        ({"HTTPS_PROXY": "http://proxy", "NO_PROXY": "localhost, .amazonaws.com"}, ""),
        ({"HTTPS_PROXY": "http://proxy", "NO_PROXY": "aws.com"}, "http://proxy (HTTPS_PROXY)"),
        ({"HTTPS_PROXY": "http://proxy", "no_proxy": "*"}, ""),
    ],
)
def test_the_proxy_is_the_one_that_applies_to_the_endpoint(environ: dict[str, str], proxy: str) -> None:
    assert proxy_of(AWS.endpoint, environ) == proxy
    secret = replace(GOOD, access=replace(AWS, endpoint="https://me:secret@minio:9000"))
    assert line(secret, "endpoint", {}).text == "https://***@minio:9000, without a proxy"


@pytest.mark.parametrize(
    ("skew_s", "level", "text"),
    [
        (-59.0, Level.OK, "agrees"),
        (61.0, Level.WARNING, "61 s ahead of"),
        (-901.0, Level.FAILED, "901 s behind"),
        (None, Level.WARNING, "told no time: no route"),
    ],
)
def test_a_clock_beyond_15_minutes_fails(skew_s: float | None, level: Level, text: str) -> None:
    found = line(replace(GOOD, skew_s=skew_s, skew_unknown="no route"), "clock", {})
    assert (found.level, text in found.text) == (level, True)


def test_a_refused_call_shows_what_is_missing() -> None:
    refused = CallReading("GetObject", "s3:GetObject", "s3://bucket/models/x", "AccessDenied", "grant it", refused=True)
    found = line(replace(GOOD, calls=[refused]), "GetObject", {})
    assert (found.level, found.text) == (Level.FAILED, "AccessDenied")
    assert found.cure == f"grant it. The statement for a policy: {s3_statement(S3, 's3:GetObject')}"
    refused = CallReading("objects.list", "storage.objects.list", GCS.text, "refused", "grant the role", refused=True)
    found = line(StorageReading(GCS, GOOGLE, calls=[refused], skew_s=0.0), "objects.list", {})
    assert found.cure.startswith("grant the role: gcloud storage buckets")
    missing = replace(LISTING, failure="NoSuchBucket")
    assert "the name of the bucket" in line(replace(GOOD, calls=[missing]), "ListObjectsV2", {}).cure
