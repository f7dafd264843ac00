"""The identity in requests to Google Cloud Storage: default credentials, key files, anonymous; and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.contract.repository.fake_storage import FakeStorage, Reply, Request, as_json
from tests.contract.repository.gcs_emulator import store_at
from tests.contract.servers.ports import HOST, free_ports
from tests.project import ROOT
from tests.waiting import until
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.location import parse_location
from trident.core.repository.stores.gcs import GcsStore
from trident.core.repository.stores.object_store import GcsCredential, StoredObject, TransientError

EMAIL = "loader@project.iam.gserviceaccount.com"
TOKEN = "ya29.the-access-token"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeStorage]:
    """A fake storage, which also replaces the token server and every host that the SDK's threads ask."""
    before = set(threading.enumerate())
    with FakeStorage(lambda request: Reply(404)) as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.endpoint)
        # With a token google-auth asks a server of Google for the regions of the token.
        monkeypatch.setenv("HTTPS_PROXY", running.endpoint)
        yield running
        until(lambda: set(threading.enumerate()) <= before | {running.thread}, lambda: str(threading.enumerate()))


@pytest.mark.parametrize("status", [401, 403])
def test_refusal_names_identity_object_and_permission(fake: FakeStorage, status: int) -> None:
    fake.answer = lambda request: as_json({"error": {"code": status, "message": "denied"}}, status)
    store = store_at()
    with pytest.raises(RepositoryUnavailable) as refused:
        list(store.list())
    assert refused.value.message == (
        f"storage.objects.list on gs://models/repo/ was refused to anonymous (HTTP {status}): "
        "it needs the permission storage.objects.list"
    )
    with pytest.raises(RepositoryUnavailable) as refused:
        list(store.read(StoredObject("m/x", 4, "7"), 0, 4))
    assert refused.value.message == (
        f"storage.objects.get on gs://models/repo/m/x was refused to anonymous (HTTP {status}): "
        "it needs the permission storage.objects.get"
    )


def test_access_without_credentials_is_anonymous(tmp_path: Path) -> None:
    """In a new process, because the SDK reads the setting for the metadata server when it is imported."""
    program = (
        "from trident.core.errors import RepositoryUnavailable\n"
        "from trident.core.repository.stores.gcs import GcsStore\n"
        "from trident.core.repository.location import parse_location\n"
        "print(*GcsStore(parse_location('gs://models/open'), None).folders())\n"
        "try: list(GcsStore(parse_location('gs://models/closed'), None).list())\n"
        "except RepositoryUnavailable as refused: print(refused.message, refused.hint, sep='\\n')\n"
    )
    with FakeStorage(lambda request: Reply(404)) as fake:
        fake.answer = lambda request: (
            as_json({"prefixes": ["open/m/"]}) if request.query["prefix"] == "open/" else Reply(401)
        )
        environment = {
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            "CLOUDSDK_CONFIG": str(tmp_path),
            "NO_GCE_CHECK": "true",
            "API_ENDPOINT_OVERRIDE": fake.endpoint,
        }
        ended = subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, timeout=60)
    folders, message, hint = ended.stdout.decode().splitlines()
    assert folders == "m"
    assert message.startswith("storage.objects.list on gs://models/closed/ was refused to anonymous (HTTP 401)")
    assert hint.startswith("Your default credentials were not found.")


def key_file(folder: Path, token_uri: str) -> Path:
    """Write the key of a service account that gets its tokens from `token_uri`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    content = {"type": "service_account", "client_email": EMAIL, "private_key": pem, "token_uri": token_uri}
    path = folder / "key.json"
    path.write_text(json.dumps(content))
    return path


def everything_said(error: BaseException) -> str:
    texts = []
    current: BaseException | None = error
    while current is not None:
        texts += [str(current), repr(current), str(getattr(current, "hint", ""))]
        current = current.__cause__
    return "\n".join(texts)


@pytest.mark.parametrize("is_default", [False, True], ids=["key file", "default credentials"])
def test_credentials_are_used_and_their_account_named_without_secrets(
    fake: FakeStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_default: bool
) -> None:
    def answer(request: Request) -> Reply:
        if request.path == "/token":
            return as_json({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})
        return as_json({"error": {"code": 403, "message": "denied"}}, 403)

    fake.answer = answer
    path = str(key_file(tmp_path, f"{fake.endpoint}/token"))
    if is_default:
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        monkeypatch.setenv("API_ENDPOINT_OVERRIDE", fake.endpoint)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", path)
    store = store_at(credential=None if is_default else GcsCredential(path))
    with pytest.raises(RepositoryUnavailable, match=f"was refused to service account {EMAIL}") as refused:
        list(store.list())
    asked = [request for request in fake.requests if request.path.startswith("/storage/")]
    assert asked[-1].headers["authorization"] == f"Bearer {TOKEN}"
    said = everything_said(refused.value) + repr(store)
    assert TOKEN not in said
    assert "PRIVATE KEY" not in said


def test_revoked_key_is_final(fake: FakeStorage, tmp_path: Path) -> None:
    fake.answer = lambda request: as_json({"error": "invalid_grant", "error_description": "account not found"}, 400)
    store = store_at(credential=GcsCredential(str(key_file(tmp_path, f"{fake.endpoint}/token"))))
    with pytest.raises(RepositoryUnavailable, match=f"no access token for service account {EMAIL}") as refused:
        list(store.read(StoredObject("m/x", 4, "7"), 0, 4))
    assert "revoked" in (refused.value.hint or "")


def test_unreachable_token_server_is_transient(fake: FakeStorage, tmp_path: Path) -> None:
    unreachable = f"http://{HOST}:{free_ports(1)[0]}/token"
    store = store_at(credential=GcsCredential(str(key_file(tmp_path, unreachable))))
    with pytest.raises(TransientError, match=r"storage\.objects\.get"):
        list(store.read(StoredObject("m/x", 4, "7"), 0, 4))
    assert fake.requests == []


def test_authorized_user_is_named_with_the_key_file(fake: FakeStorage, tmp_path: Path) -> None:
    path = tmp_path / "user.json"
    user = {"type": "authorized_user", "client_id": "id", "client_secret": "the-secret", "refresh_token": "1//refresh"}
    path.write_text(json.dumps(user))
    client = GcsStore(parse_location("gs://models"), GcsCredential(str(path)))
    assert client.identity == f"a user of {path}"
    path.write_text(json.dumps({**user, "account": "ann@example.com"}))
    client = GcsStore(parse_location("gs://models"), GcsCredential(str(path)))
    assert client.identity == "user ann@example.com"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read the key file .*: No such file"),
        ("{", "is damaged or incomplete"),
        ("[]", "is damaged or incomplete"),
        ('{"type": "service_account", "private_key": "secret"}', "is damaged or incomplete"),
        ('{"type": "authorized_user"}', "is damaged or incomplete"),
        ('{"type": "gdch"}', "is of an unknown type"),
    ],
)
def test_bad_key_file_is_refused(fake: FakeStorage, tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RepositoryUnavailable, match=said) as refused:
        store_at(credential=GcsCredential(str(path)))
    assert str(path) in refused.value.message
    assert "secret" not in everything_said(refused.value)
