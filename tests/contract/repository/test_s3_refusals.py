"""S3Store with a scripted server: refusals, temporary errors, bad answers, and credentials."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.contract.repository.fake_storage import FakeStorage, Request
from tests.contract.repository.fake_storage import Reply as StorageReply
from tests.contract.repository.s3_emulator import leave_aws
from tests.contract.servers.ports import HOST, free_ports
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.location import parse_location
from trident.core.repository.stores.object_store import ObjectStore, S3Credential, StoredObject, TransientError
from trident.core.repository.stores.s3 import S3Store

KEY_ID = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI-example-secret"
TOKEN = "FwoGZXIvYXdzEXAMPLE-session-token"
CREDENTIAL = S3Credential(KEY_ID, SECRET, TOKEN, "eu-west-3")
OBJECT = StoredObject("m/1/model.onnx", 10, "0" * 32)

Reply = tuple[int, dict[str, str], bytes]
EMPTY_LISTING: Reply = (200, {}, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")


def refusal(status: int, code: str, message: str = "No.") -> Reply:
    return status, {}, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


class ScriptedS3(FakeStorage):
    """Answers each request with the next of `replies`, and further requests with the last."""

    def __init__(self, *replies: Reply) -> None:
        super().__init__(self._next)
        self._replies = list(replies)

    def _next(self, request: Request) -> StorageReply:
        return StorageReply(*(self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]))

    def store(self, credential: S3Credential | None = CREDENTIAL, prefix: str = "/models") -> ObjectStore:
        return S3Store(parse_location(f"s3://{self.endpoint.removeprefix('http://')}/b{prefix}"), credential)

    @property
    def asked(self) -> Mapping[str, str]:
        """The headers of the last request."""
        return self.requests[-1].headers

    @property
    def signer(self) -> str:
        """Who signed the last request, as `KEY/DATE/REGION/…`; empty for an anonymous one."""
        signature = self.asked.get("authorization", "")
        return signature.removeprefix("AWS4-HMAC-SHA256 Credential=").partition(",")[0]


@pytest.fixture(autouse=True)
def _no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leave_aws(monkeypatch, tmp_path)


def listed(store: ObjectStore) -> None:
    list(store.list())


def read(store: ObjectStore) -> bytes:
    return b"".join(store.read(OBJECT, 0, 10))


def refused(use: Callable[[], object]) -> str:
    """The message and the hint, which must contain no secret."""
    with pytest.raises(RepositoryUnavailable) as caught:
        use()
    text = f"{caught.value.message} | {caught.value.hint}"
    assert SECRET not in text
    assert TOKEN not in text
    assert KEY_ID not in text
    return text


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "AccessDenied"),
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (400, "ExpiredToken"),
        (401, "Unauthorized"),
    ],
)
def test_refusal_names_identity_call_object_and_permission(status: int, code: str) -> None:
    with ScriptedS3(refusal(status, code, f"No {SECRET} nor\n{TOKEN}.")) as server:
        store = server.store()
        listing = refused(lambda: listed(store))
        reading = refused(lambda: read(store))
    told = f"Exception: '{code}' Message: 'No [secret] nor [secret].'"
    assert listing.startswith(f"Unable to create S3 filesystem client. Check account credentials. {told}")
    assert f"s3:ListBucket on {store.location} as access key …MPLE from the credential file" in listing
    assert "it needs the permission s3:ListBucket on arn:aws:s3:::b |" in listing
    assert reading.startswith(f"s3:GetObject on {store.location}/m/1/model.onnx as access key …MPLE from")
    assert told in reading
    assert "it needs the permission s3:GetObject on arn:aws:s3:::b/models/m/1/model.onnx |" in reading


def test_only_the_first_listing_fails_with_tritons_text() -> None:
    with ScriptedS3(EMPTY_LISTING, refusal(403, "AccessDenied")) as server:
        store = server.store()
        listed(store)
        assert refused(lambda: listed(store)).startswith("s3:ListBucket on s3://")


def test_debug_log_contains_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with ScriptedS3(refusal(403, "AccessDenied")) as server:
        store = server.store()
        refused(lambda: listed(store))
    assert SECRET not in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    "reply", [refusal(503, "SlowDown"), refusal(429, "TooMany"), refusal(400, "RequestTimeout"), (502, {}, b"<html>")]
)
def test_temporary_error_is_transient(reply: Reply) -> None:
    with ScriptedS3(reply) as server:
        store = server.store()
        with pytest.raises(TransientError, match=r"s3:GetObject on .*model\.onnx"):
            read(store)


def test_truncated_body_is_transient() -> None:
    head = {"Content-Length": "10", "Content-Range": "bytes 0-9/10"}
    with ScriptedS3((206, head, b"12345")) as server:
        store = server.store()
        with pytest.raises(TransientError, match=r"before its end|too early"):
            read(store)


@pytest.mark.parametrize(
    "reply",
    [
        (206, {"Content-Range": "bytes 5-9/10"}, b"56789"),
        (206, {"Content-Range": "bytes 0-9/11"}, b"0123456789"),
        (200, {}, b"0123456789more"),
        (206, {}, b"01234567"),
    ],
)
def test_wrong_range_is_refused(reply: Reply) -> None:
    with ScriptedS3(reply) as server:
        store = server.store()
        assert "asked for bytes 0-9 of 10" in refused(lambda: read(store))


def test_whole_object_is_accepted_for_its_full_range() -> None:
    with ScriptedS3((200, {}, b"0123456789")) as server:
        assert read(server.store()) == b"0123456789"
        assert server.asked["range"] == "bytes=0-9"
        assert server.asked["if-match"] == f'"{OBJECT.tag}"'


def test_empty_object_is_requested_without_a_range() -> None:
    with ScriptedS3((200, {}, b"")) as server:
        assert list(server.store().read(StoredObject("m/e", 0, "t"), 0, 0)) == []
        assert "range" not in server.asked


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ((200, {}, b"<html><body>Welcome</body></html>"), "the answer is not one of S3"),
        ((404, {}, b"<html><br></html>"), "Exception: '404' Message: 'Not Found'"),
        ((400, {}, b"plain HTTP to a port of TLS"), "Exception: '400' Message: 'Bad Request'"),
    ],
)
def test_endpoint_that_is_not_s3_is_named(reply: Reply, says: str) -> None:
    with ScriptedS3(reply) as server:
        store = server.store()
        assert says in refused(lambda: listed(store))


@pytest.mark.parametrize("token", [b"", b"<NextContinuationToken>x</NextContinuationToken>"])
def test_endless_listing_is_refused(token: bytes) -> None:
    page = b"<ListBucketResult><IsTruncated>true</IsTruncated>%s</ListBucketResult>"
    with ScriptedS3((200, {}, page % token)) as server:
        store = server.store()
        assert "gives a listing that never ends" in refused(lambda: listed(store))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (b"<Key>models/m/x</Key><Size>1</Size>", "without its key, its size or its ETag"),
        (b"<Key>models/m/x</Key><Size>1</Size><ETag>&quot;&quot;</ETag>", "without its key, its size or its ETag"),
        (b"<Key>models/m/x</Key><Size>-1</Size><ETag>x</ETag>", "without its key, its size or its ETag"),
        (b"<Size>1</Size><ETag>x</ETag>", "without its key, its size or its ETag"),
        (b"<Key>models/m/x</Key><Size>many</Size><ETag>x</ETag>", "the answer is not one of S3"),
        (b"<Key>models/m/x</Key><Size>1</Size><ETag>x</ETag><LastModified>x</LastModified>", "not one of S3"),
    ],
)
def test_impossible_listing_is_refused(entry: bytes, says: str) -> None:
    page = b"<ListBucketResult><Name>b</Name><Contents>%s</Contents></ListBucketResult>"
    with ScriptedS3((200, {}, page % entry)) as server:
        store = server.store()
        assert says in refused(lambda: listed(store))


@pytest.fixture
def scripted() -> Iterator[ScriptedS3]:
    with ScriptedS3(EMPTY_LISTING) as server:
        yield server


def test_credential_file_has_precedence(scripted: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    listed(scripted.store())
    assert scripted.signer.startswith(f"{KEY_ID}/")
    assert scripted.signer.endswith("/eu-west-3/s3/aws4_request")
    assert scripted.asked["x-amz-security-token"] == TOKEN
    listed(scripted.store(S3Credential()))
    assert scripted.signer.startswith("AKIAENVIRONMENT/")
    assert scripted.signer.endswith("/us-east-1/s3/aws4_request")


def test_profile_is_used(scripted: ScriptedS3, tmp_path: Path) -> None:
    keys = f"aws_access_key_id = AKIAPROFILE\naws_secret_access_key = {SECRET}\n"
    (tmp_path / "config").write_text(f"[profile team]\nregion = eu-north-1\n{keys}")
    listed(scripted.store(S3Credential(profile="team")))
    assert scripted.signer.startswith("AKIAPROFILE/")
    assert "/eu-north-1/" in scripted.signer
    store = scripted.store(S3Credential(profile="none"))
    assert "ProfileNotFound" in refused(lambda: listed(store))


def test_output_of_a_credential_program_is_not_repeated(scripted: ScriptedS3, tmp_path: Path) -> None:
    program = tmp_path / "credentials.sh"
    program.write_text(f"#!/bin/sh\necho {SECRET} >&2\nexit 1\n")
    program.chmod(0o700)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {program}\n")
    store = scripted.store(None)
    assert "cannot get credentials from custom-process" in refused(lambda: listed(store))


def test_credentials_are_read_again_after_a_refusal(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    entry = "[default]\naws_access_key_id = {}\naws_secret_access_key = secret-of-the-file\n"
    with ScriptedS3(refusal(400, "ExpiredToken"), EMPTY_LISTING) as server:
        file.write_text(entry.format("AKIAEXPIRED"))
        store = server.store(None)
        text = refused(lambda: listed(store))
        assert "access key …IRED from shared-credentials-file" in text
        file.write_text(entry.format("AKIAEXCHANGED"))
        listed(store)
        assert server.signer.startswith("AKIAEXCHANGED/")


def test_refused_connection_is_transient() -> None:
    (port,) = free_ports(1)
    store = S3Store(parse_location(f"s3://{HOST}:{port}/b"), CREDENTIAL)
    text = refused(lambda: listed(store))
    assert "credentials" not in text.replace("from the credential file", "")
    assert "the storage cannot be reached: check the endpoint" in text
    assert f"{HOST}:{port}" in text
