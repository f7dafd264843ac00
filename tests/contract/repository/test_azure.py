"""AzureStore with Azurite. Source: docs/spec/repository.md section 1.10."""

from __future__ import annotations

import base64
import hashlib
import uuid

import pytest
from azure.storage.blob import BlobBlock, ContentSettings

from tests.contract.repository.azurite import ACCOUNT, KEY, Azurite
from trident.core.errors import AccessRefused, RepositoryUnavailable
from trident.core.repository.location import parse_location
from trident.core.repository.stores.azure import AzureStore
from trident.core.repository.stores.object_store import AzureCredential, StoredObject, without_markers

pytestmark = pytest.mark.slow
CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
LARGE = bytes(range(256)) * (5 << 12)  # 5 MiB, more than a request fetches


@pytest.fixture
def container(azurite: Azurite) -> str:
    name = f"c{uuid.uuid4().hex}"
    azurite.client.create_container(name)
    return name


def store(azurite: Azurite, container: str, prefix: str = "models") -> AzureStore:
    location = parse_location(f"as://{ACCOUNT}/{container}/{prefix}")
    return AzureStore(location, AzureCredential(connection_string=azurite.connection_string))


def content(store: AzureStore, wanted: StoredObject, start: int = 0, stop: int | None = None) -> bytes:
    pieces = list(store.read(wanted, start, wanted.size if stop is None else stop))
    assert max(map(len, pieces), default=0) <= 256 << 10
    return b"".join(pieces)


def test_a_listing_has_sizes_etags_and_checksums(azurite: Azurite, container: str) -> None:
    for name in ("models/a/config.pbtxt", "models/a/1/model.onnx", "models/b/1/model.onnx", "other/c/1/model.onnx"):
        azurite.put(container, name, name.encode())
    azurite.client.get_blob_client(container, "models/a/1").upload_blob(b"", metadata={"hdi_isfolder": "true"})
    made = store(azurite, container)
    listed = {each.key: each for each in made.list()}
    assert without_markers(listed).keys() == {"a/config.pbtxt", "a/1/model.onnx", "b/1/model.onnx"}
    assert sorted(made.folders()) == ["a", "b"]
    assert sorted(store(azurite, container, "").folders()) == ["models", "other"]
    (one,) = made.list("b/")
    expected = hashlib.md5(b"models/b/1/model.onnx").hexdigest()
    assert (one.size, one.digest) == (21, f"md5:{expected}")
    checksum = made.checksum(one)
    assert checksum is not None
    assert checksum.value == expected


def test_ranges_are_exact_and_changes_are_noticed(azurite: Azurite, container: str) -> None:
    azurite.put(container, "models/m", LARGE)
    made = store(azurite, container)
    (listed,) = made.list()
    assert content(made, listed) == LARGE
    assert content(made, listed, 3, (4 << 20) + 77) == LARGE[3 : (4 << 20) + 77]
    assert content(made, listed, 5, 5) == b""
    azurite.put(container, "models/m", b"other")
    with pytest.raises(RepositoryUnavailable, match="was changed or removed after it was listed"):
        content(made, listed)


def test_blocks_without_a_checksum_are_verified_range_by_range(azurite: Azurite, container: str) -> None:
    blob = azurite.client.get_blob_client(container, "models/m")
    ids = [base64.b64encode(b"%d" % number).decode() for number in range(2)]
    for number, half in zip(ids, (LARGE[: 1 << 20], LARGE[1 << 20 :]), strict=True):
        blob.stage_block(number, half)
    blob.commit_block_list([BlobBlock(number) for number in ids], content_settings=ContentSettings())
    made = store(azurite, container)
    (listed,) = made.list()
    assert (listed.digest, made.checksum(listed)) == ("", None)
    assert content(made, listed) == LARGE


def test_refusals_and_missing_containers_are_named(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = azurite.connection_string.replace(KEY, "d3Jvbmc=")
    monkeypatch.setenv(CONNECTION, wrong)
    with pytest.raises(AccessRefused, match=r"^list blobs on as://testaccount/none was refused to the connection"):
        list(AzureStore(parse_location(f"as://{ACCOUNT}/none"), None).list())
    monkeypatch.setenv(CONNECTION, azurite.connection_string)
    with pytest.raises(RepositoryUnavailable, match="there is no container for as://testaccount/none"):
        list(AzureStore(parse_location(f"as://{ACCOUNT}/none"), None).list())
    monkeypatch.setenv(CONNECTION, "nonsense with a secret")
    with pytest.raises(RepositoryUnavailable, match="malformed") as caught:
        AzureStore(parse_location(f"as://{ACCOUNT}/none"), None)
    assert "secret" not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"
