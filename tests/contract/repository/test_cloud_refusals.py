"""Storage that refuses access: the texts of the log, the index and the answers, which never contain a secret.

Source: docs/spec/repository.md sections 1.3, 1.6 and 1.10.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import BATCHED, add_scaled, load, scaled, unload_and_wait
from tests.contract.repository.cloud_models import assert_serves, cloud_server, reasons
from tests.contract.repository.fake_storage import FakeStorage, Reply, Request
from tests.contract.servers.server import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("http_workers"), pytest.mark.shapes("front-ends")]

KEY_ID = "AKIAIOSFODNN7ALLOWED"
SECRET = "wJalrXUtnFEMI-secret-of-the-file"
TOKEN = "FwoGZXIvYXdzEXAMPLE-session-token"
OTHER_SECRET = "wJalrXUtnFEMI-secret-of-the-environment"
WEIGHTS = scaled(2.0).SerializeToString()
OBJECTS = {"models/m/config.pbtxt": BATCHED.encode(), "models/m/1/model.onnx": WEIGHTS}


class StrictS3:
    """A bucket of OBJECTS. `refused` maps the permission that a request needs to the code of its refusal.

    That is `s3:ListBucket`, or `s3:GetObject` and the key; any request that it is a beginning of is refused. `expired`
    are key ids. A refusal repeats the secrets of the credentials, as a careless storage might.
    """

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.expired: set[str] = set()
        self.asked_by: set[str] = set()

    def answer(self, request: Request) -> Reply:
        key_id = request.headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]
        self.asked_by.add(key_id or "anonymous")
        key = request.path.removeprefix("/bucket").strip("/")
        needed = f"s3:GetObject {key}" if key else "s3:ListBucket"
        codes = ["ExpiredToken"] if key_id in self.expired else []
        codes += [code for beginning, code in self.refused.items() if needed.startswith(beginning)]
        if codes:
            text = f"<Error><Code>{codes[0]}</Code><Message>No: {SECRET} {TOKEN}</Message></Error>"
            return Reply(400 if codes[0] == "ExpiredToken" else 403, {}, text.encode())
        return _object(request, OBJECTS[key]) if key else _listing("delimiter" in request.query)


def _object(request: Request, content: bytes) -> Reply:
    first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
    part = content[int(first) : int(last) + 1]
    return Reply(206, {"ETag": _etag(content), "Content-Range": f"bytes {first}-{last}/{len(content)}"}, part)


def _listing(of_folders: bool) -> Reply:
    entries = "".join(
        f"<Contents><Key>{key}</Key><Size>{len(content)}</Size><ETag>{_etag(content)}</ETag></Contents>"
        for key, content in OBJECTS.items()
    )
    listed = "<CommonPrefixes><Prefix>models/m/</Prefix></CommonPrefixes>" if of_folders else entries
    text = f"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>"
    return Reply(200, {}, text.encode())


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


@pytest.fixture
def rules() -> StrictS3:
    return StrictS3()


@pytest.fixture
def storage(rules: StrictS3) -> Iterator[FakeStorage]:
    with FakeStorage(rules.answer) as running:
        yield running


def write_credentials(path: Path, storage: FakeStorage, key_id: str = KEY_ID) -> None:
    """Write a credential file with an entry for the bucket and one for all others."""
    entry = {"key_id": key_id, "secret_key": SECRET, "session_token": TOKEN}
    other = {"key_id": "AKIAIOSFODNN7ANOTHER", "secret_key": OTHER_SECRET}
    path.write_text(json.dumps({"s3": {"": other, f"s3://{storage.endpoint}/bucket": entry}}))


def start(folder: Path, storage: FakeStorage, *options: str, ready: bool = True) -> ServerProcess:
    """A server of the bucket and of a local repository with the model `here`."""
    local = folder / "local"
    add_scaled(local, "here", 5.0)
    write_credentials(folder / "credentials", storage)
    variables = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7ENVIRON", "AWS_SECRET_ACCESS_KEY": OTHER_SECRET}
    return cloud_server(
        folder,
        "log",
        local,
        f"--model-repository=s3://{storage.endpoint}/bucket/models",
        *options,
        ready=ready,
        variables=variables,
        TRITON_CLOUD_CREDENTIAL_PATH=str(folder / "credentials"),
    )


def assert_refusal(text: str, storage: FakeStorage, code: str, action: str, key: str = "", who: str = KEY_ID) -> None:
    """`text` must name the identity, the request and the missing permission, and contain no secret."""
    host = storage.endpoint.removeprefix("http://")
    place = f"{host}/bucket/{key or 'models'}"
    assert f"{action} on s3://{place} as access key …{who[-4:]} from the credential file" in text
    assert f"Exception: '{code}'" in text
    assert f"it needs the permission {action} on arn:aws:s3:::bucket{'/' if key else ''}{key}" in text
    assert_no_secret(text)


def assert_no_secret(text: str) -> None:
    assert all(secret not in text for secret in (SECRET, TOKEN, OTHER_SECRET))


def test_refused_object_and_expired_credentials_are_reported(
    rules: StrictS3, storage: FakeStorage, tmp_path: Path
) -> None:
    refused = "models/m/1/model.onnx"
    with start(tmp_path, storage, "--model-control-mode=explicit", "--load-model=here", "--log-verbose=1") as server:
        rules.refused = {f"s3:GetObject {refused}": "AccessDenied"}
        status, said = load(server, "m")
        assert status == 400
        assert_refusal(said, storage, "AccessDenied", "s3:GetObject", refused)
        assert_refusal(reasons(server, "m"), storage, "AccessDenied", "s3:GetObject", refused)
        assert_refusal(server.log_text(), storage, "AccessDenied", "s3:GetObject", refused)
        rules.refused = {}
        assert load(server, "m") == (200, "")
        assert_serves(server, "m", 2.0)
        assert rules.asked_by == {KEY_ID}

        rules.expired = {KEY_ID}
        assert load(server, "m") == (500, "failed to load 'm', failed to poll from model repository")
        assert_refusal(server.log_text(), storage, "ExpiredToken", "s3:ListBucket")
        assert_serves(server, "m", 2.0)
        assert_serves(server, "here", 5.0)
        assert reasons(server, "m") == ""
        write_credentials(tmp_path / "credentials", storage, "AKIAIOSFODNN7RENEWED")
        unload_and_wait(server, "m")
        assert load(server, "m") == (200, "")
        assert_serves(server, "m", 2.0)
        assert rules.asked_by == {KEY_ID, "AKIAIOSFODNN7RENEWED"}
    assert_no_secret(server.log_text())
