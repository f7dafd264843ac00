"""`trident doctor` on cloud storages: on emulators, and on storages that refuse a call."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.repository.fake_storage import FakeStorage, Reply, as_json
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.repository.s3_emulator import S3Emulator, leave_aws
from tests.contract.repository.test_s3_refusals import ScriptedS3, refusal
from tests.contract.servers.ports import free_ports
from tests.project import ROOT
from tests.unit.conftest import _log_as_before  # noqa: F401
from trident.app.cli import main
from trident.core.repository.location import parse_location
from trident.tools.doctor_repositories import Line, Severity, clock_skew, read_storage, storage_lines

KEY_ID = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI-example-secret"
SHIPPED = ROOT / "deploy" / "models"
LISTING = (
    200,
    {},
    b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated><Contents><Key>models/m/1/model.onnx</Key>"
    b"<Size>10</Size><ETag>&quot;00000000000000000000000000000000&quot;</ETag></Contents></ListBucketResult>",
)


@pytest.fixture(autouse=True)
def _aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leave_aws(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeStorage]:
    with FakeStorage(lambda request: Reply(404)) as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.endpoint)
        yield running


def lines_of(uri: str, **environ: str) -> dict[str, Line]:
    found = list(storage_lines(read_storage(parse_location(uri), "", environ), environ))
    assert SECRET not in str(found)
    assert KEY_ID not in str(found)
    return {line.check: line for line in found}


def report_of(capsys: pytest.CaptureFixture[str], uri: str, cache: Path) -> tuple[int, dict[str, str]]:
    """The exit status, and the texts of the report by area and check."""
    options = [
        "--http-address=127.0.0.1",
        f"--http-port={free_ports(1)[0]}",
        "--allow-metrics=false",
        "--allow-grpc=false",
    ]
    status = main(["doctor", "--json", f"--model-repository={uri}", f"--model-cache-directory={cache}", *options])
    printed = capsys.readouterr().out
    assert SECRET not in printed
    lines = json.loads(printed)["lines"]
    return status, {f"{line['area'].partition(' ')[0]} {line['check']}": line["text"] for line in lines}


def put_shipped_models(emulator: S3Emulator | GcsEmulator) -> None:
    for path in SHIPPED.rglob("*"):
        if path.is_file():
            emulator.put("doctor", f"models/{path.relative_to(SHIPPED)}", path.read_bytes())


def test_usable_s3_bucket_passes(s3: S3Emulator, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    put_shipped_models(s3)
    uri = f"s3://{s3.address}/doctor/models"
    status, texts = report_of(capsys, uri, tmp_path / "cache")
    assert status == 0
    assert texts["Storage credentials"] == (
        "access key …MPLE, from the environment variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )
    assert texts["Storage region"].startswith("eu-west-3, ")
    assert texts["Storage clock"] == "agrees with the storage's"
    assert texts["Storage ListObjectsV2"] == f"allowed on {uri}"
    assert texts["Storage HeadObject"] == texts["Storage GetObject"]
    assert texts["Storage GetObject"].startswith(f"allowed on {uri}/")
    assert texts["Repository models"].startswith("2 models, 2 versions, ")
    assert f"for {tmp_path / 'cache'}" in texts["Room disk"]


def test_usable_cloud_storage_bucket_passes(
    gcs: GcsEmulator, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_shipped_models(gcs)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.endpoint)
    status, texts = report_of(capsys, "gs://doctor/models", tmp_path / "cache")
    assert status == 0
    assert texts["Storage credentials"] == "anonymous: STORAGE_EMULATOR_HOST names an emulator"
    assert texts["Storage objects.list"] == "allowed on gs://doctor/models"
    assert texts["Storage objects.get"].startswith("allowed on gs://doctor/models/")
    assert "Storage region" not in texts
    assert texts["Repository models"].startswith("2 models, 2 versions, ")


def test_a_refused_listing_of_s3_shows_the_statement() -> None:
    with ScriptedS3(refusal(403, "AccessDenied", f"No {SECRET}")) as server:
        found = lines_of(f"{server.store().location.rpartition('/')[0]}/models")
    assert found["ListObjectsV2"].level is Severity.FAILED
    assert "'AccessDenied'" in found["ListObjectsV2"].text
    statement = found["ListObjectsV2"].cure.partition("The statement for a policy: ")[2]
    expected = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::b"}
    assert json.loads(statement) == expected
    assert "GetObject" not in found


def test_a_refused_listing_of_cloud_storage_shows_the_command(fake: FakeStorage) -> None:
    fake.answer = lambda request: as_json({"error": {"code": 403, "message": "denied"}}, 403)
    found = lines_of("gs://bucket/models", STORAGE_EMULATOR_HOST=fake.endpoint)["objects.list"]
    assert found.level is Severity.FAILED
    assert "it needs the permission storage.objects.list" in found.text
    assert "gcloud storage buckets add-iam-policy-binding gs://bucket" in found.cure


def test_missing_profile_is_the_only_check_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "missing")
    found = lines_of("s3://bucket/models")
    assert list(found) == ["credentials"]
    assert found["credentials"].level is Severity.FAILED
    assert "missing" in found["credentials"].text


def test_unreachable_storage_fails() -> None:
    with ScriptedS3(LISTING) as server:
        uri = server.store().location
    found = lines_of(uri)
    assert found["ListObjectsV2"].level is Severity.FAILED
    assert found["clock"].level is Severity.WARNING


def test_clock_skew_is_read_from_any_response(fake: FakeStorage) -> None:
    assert abs(clock_skew(fake.endpoint)) < 60
    assert 940 < clock_skew(fake.endpoint, now=lambda: time.time() + 1000) < 1060
