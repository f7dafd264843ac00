from __future__ import annotations

from dataclasses import replace

import pytest

from trident.app.commands.doctor.report import Level, Line
from trident.app.commands.doctor.storage import (
    CallReading,
    StorageReading,
    proxy_of,
    s3_statement,
    storage_lines,
)
from trident.core.repository.location import parse_location
from trident.core.repository.stores.object_store import RegionOrigin, StorageAccess

S3 = parse_location("s3://bucket/models")
GCS = parse_location("gs://bucket/models")
AWS_ACCESS = StorageAccess(
    "access key …MPLE from env", "env", "https://s3.eu-west-1.amazonaws.com", "eu-west-1", RegionOrigin.CONFIGURATION
)
GCS_ACCESS = StorageAccess(
    "service account loader@p.iam.gserviceaccount.com",
    "google.oauth2.service_account",
    "https://storage.googleapis.com",
)
GOOD = StorageReading(S3, AWS_ACCESS, calls=[CallReading("ListObjectsV2", "s3:ListBucket", S3.text)], skew_s=0.4)


def line(reading: StorageReading, check: str, **environ: str) -> Line:
    return next(each for each in storage_lines(reading, environ) if each.check == check)


def test_a_storage_that_answers_is_ok() -> None:
    lines = storage_lines(GOOD, {"AWS_DEFAULT_REGION": "eu-west-1"})
    assert {each.level for each in lines} == {Level.OK}
    assert [each.check for each in lines] == ["credentials", "region", "endpoint", "clock", "ListObjectsV2"]


@pytest.mark.parametrize(
    ("credentials", "environ", "text"),
    [
        ("env", {}, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("shared-credentials-file", {"AWS_PROFILE": "team"}, "shared credentials file, profile 'team'"),
        ("shared-credentials-file", {}, "profile 'default'"),
        ("iam-role", {}, "the instance's role"),
        ("assume-role-with-web-identity", {}, "web identity"),
        ("explicit", {}, "TRITON_CLOUD_CREDENTIAL_PATH"),
        ("a-new-method", {}, "from a-new-method"),
        ("", {}, "anonymous"),
    ],
)
def test_the_origin_of_aws_credentials_is_named(credentials: str, environ: dict[str, str], text: str) -> None:
    reading = replace(GOOD, access=replace(AWS_ACCESS, credentials=credentials))
    assert text in line(reading, "credentials", **environ).text


@pytest.mark.parametrize(
    ("credentials", "environ", "text"),
    [
        ("google.oauth2.service_account", {}, "a service account's key file"),
        ("google.auth.compute_engine.credentials", {}, "the metadata server"),
        ("google.auth.identity_pool", {"GOOGLE_APPLICATION_CREDENTIALS": "/k.json"}, "CREDENTIALS=/k.json"),
        ("", {"STORAGE_EMULATOR_HOST": "localhost:9023"}, "names an emulator"),
    ],
)
def test_the_origin_of_google_credentials_is_named(credentials: str, environ: dict[str, str], text: str) -> None:
    reading = StorageReading(GCS, replace(GCS_ACCESS, credentials=credentials), skew_s=0.0)
    assert text in line(reading, "credentials", **environ).text


def test_unusable_credentials_are_the_only_line() -> None:
    (found,) = storage_lines(StorageReading(S3, None, "the profile does not exist", "name another"), {})
    assert (found.level, found.text, found.cure) == (Level.FAILED, "the profile does not exist", "name another")


@pytest.mark.parametrize(
    ("origin", "environ", "text"),
    [
        (RegionOrigin.CREDENTIAL_FILE, {}, "from the credential file"),
        (RegionOrigin.CONFIGURATION, {"AWS_DEFAULT_REGION": "eu-west-1"}, "from AWS_DEFAULT_REGION"),
        (RegionOrigin.CONFIGURATION, {}, "from the AWS configuration file"),
        (RegionOrigin.DEFAULT, {}, "the default"),
    ],
)
def test_the_origin_of_the_region_is_named(origin: RegionOrigin, environ: dict[str, str], text: str) -> None:
    found = line(replace(GOOD, access=replace(AWS_ACCESS, region_origin=origin)), "region", **environ)
    assert found.level is Level.OK
    assert found.text.startswith("eu-west-1, ")
    assert text in found.text


def test_aws_region_is_a_warning_because_boto3_does_not_read_it() -> None:
    found = line(GOOD, "region", AWS_REGION="us-west-2")
    assert found.level is Level.WARNING
    assert "AWS_DEFAULT_REGION=us-west-2" in found.cure


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
    assert proxy_of(AWS_ACCESS.endpoint, environ) == proxy


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
    found = line(replace(GOOD, skew_s=skew_s, skew_unknown="no route"), "clock")
    assert found.level is level
    assert text in found.text


def test_a_refused_call_shows_what_is_missing() -> None:
    call = CallReading("GetObject", "s3:GetObject", "s3://bucket/models/x", "AccessDenied", "grant it", refused=True)
    found = line(replace(GOOD, calls=[call]), "GetObject")
    assert (found.level, found.text) == (Level.FAILED, "AccessDenied")
    assert found.cure == f"grant it. The statement for a policy: {s3_statement(S3, 's3:GetObject')}"
    call = CallReading("objects.list", "storage.objects.list", GCS.text, "refused", "grant the role", refused=True)
    found = line(StorageReading(GCS, GCS_ACCESS, calls=[call], skew_s=0.0), "objects.list")
    assert found.cure.startswith("grant the role: gcloud storage buckets")
    call = CallReading("ListObjectsV2", "s3:ListBucket", S3.text, "NoSuchBucket")
    assert "the name of the bucket" in line(replace(GOOD, calls=[call]), "ListObjectsV2").cure


def test_a_password_in_the_endpoint_is_masked() -> None:
    reading = replace(GOOD, access=replace(AWS_ACCESS, endpoint="https://me:secret@minio:9000"))
    assert line(reading, "endpoint").text == "https://***@minio:9000, without a proxy"
