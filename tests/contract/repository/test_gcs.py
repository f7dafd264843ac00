"""GcsStore with a fake storage, for cases that the emulator does not have."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator

import google_crc32c
import pytest

from tests.contract.repository.fake_storage import FakeStorage, Reply, Request, as_json
from tests.contract.repository.gcs_emulator import found, store_at
from tests.contract.servers.ports import HOST, free_ports
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.stores.object_store import StoredObject, TransientError

WEIGHTS = bytes(range(256)) * 8192  # 2 MiB: more than one piece


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeStorage]:
    with FakeStorage(lambda request: Reply(404)) as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.endpoint)
        yield running


def listed(name: str, content: bytes, generation: int = 7, **more: str) -> dict[str, str]:
    return {"name": name, "size": str(len(content)), "generation": str(generation), **more}


def ranged(request: Request, content: bytes, **headers: str) -> Reply:
    first, last = (int(number) for number in request.headers["range"].removeprefix("bytes=").split("-"))
    headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
    return Reply(206, headers, content[first : last + 1])


def test_checksum_without_md5_is_the_crc32c(fake: FakeStorage) -> None:
    crc = google_crc32c.Checksum(WEIGHTS)
    fake.answer = lambda request: as_json(
        listed("repo/m/x", WEIGHTS, crc32c=base64.b64encode(crc.digest()).decode())
        if request.path.endswith("/o/repo/m/x")
        else {"items": [listed("repo/m/x", WEIGHTS, md5Hash="no checksum")]}
    )
    store = store_at()
    wanted = found(store, "m/x")
    assert wanted.digest == ""
    checksum = store.checksum(wanted)
    assert checksum is not None
    running = checksum.make()
    running.update(WEIGHTS[:100])
    running.update(WEIGHTS[100:])
    assert checksum.name == "crc32c"
    assert checksum.value == running.hexdigest()
    assert fake.requests[-1].query["generation"] == "7"


def test_listing_of_many_pages_requests_only_the_needed_fields(fake: FakeStorage) -> None:
    def answer(request: Request) -> Reply:
        page = int(request.query.get("pageToken", "0"))
        more = {"nextPageToken": str(page + 1)} if page < 2 else {}
        if "delimiter" in request.query:
            return as_json({"prefixes": [f"repo/m{page}/", "repo//"], **more})
        return as_json({"items": [listed(f"repo/m{page}/x", b"123")], **more})

    fake.answer = answer
    store = store_at()
    assert [each.key for each in store.list()] == ["m0/x", "m1/x", "m2/x"]
    assert list(store.folders()) == ["m0", "m1", "m2"]
    assert len(fake.requests) == 6
    assert {request.query["prefix"] for request in fake.requests} == {"repo/"}
    assert fake.requests[0].query["fields"] == "items(name,size,generation,md5Hash),nextPageToken"
    assert fake.requests[-1].query["fields"] == "prefixes,nextPageToken"


def test_listed_generation_is_read_as_stored(fake: FakeStorage) -> None:
    stored = gzip.compress(WEIGHTS)

    def answer(request: Request) -> Reply:
        if "gzip" not in request.headers["accept-encoding"]:
            return Reply(200, {}, WEIGHTS)  # the storage would decompress it and send the whole object
        return ranged(request, stored, **{"Content-Encoding": "gzip"})

    fake.answer = answer
    content = b"".join(store_at().read(StoredObject("m/x y", len(stored), "1234"), 0, len(stored)))
    assert content == stored
    assert fake.requests[0].path == "/download/storage/v1/b/models/o/repo/m/x y"
    assert fake.requests[0].query == {"alt": "media", "generation": "1234"}
    assert "authorization" not in fake.requests[0].headers


@pytest.mark.parametrize("status", [404, 412, 416])
def test_deleted_generation_is_reported(fake: FakeStorage, status: int) -> None:
    fake.answer = lambda request: Reply(status)
    store, wanted = store_at(), StoredObject("m/x", 4, "7")
    with pytest.raises(RepositoryUnavailable, match="gs://models/repo/m/x was changed or removed"):
        list(store.read(wanted, 0, 4))
    with pytest.raises(RepositoryUnavailable, match="gs://models/repo/m/x was changed or removed"):
        store.checksum(wanted)


def test_answer_without_ranges_is_refused(fake: FakeStorage) -> None:
    fake.answer = lambda request: Reply(200, {}, b"all of it")
    with pytest.raises(RepositoryUnavailable, match="does not answer with ranges"):
        list(store_at().read(StoredObject("m/x", 9, "7"), 0, 3))


def test_surplus_bytes_are_dropped(fake: FakeStorage) -> None:
    fake.answer = lambda request: Reply(206, {"Content-Range": "bytes 0-2/9"}, b"all of it")
    taken: list[bytes] = []
    with pytest.raises(TransientError):
        taken.extend(store_at().read(StoredObject("m/x", 9, "7"), 0, 3))
    assert taken == [b"all"]


# --- faults


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_temporary_status_is_transient(fake: FakeStorage, status: int) -> None:
    fake.answer = lambda request: Reply(status)
    with pytest.raises(TransientError, match=r"storage\.objects\.get on gs://models/repo/m/x"):
        list(store_at().read(StoredObject("m/x", 4, "7"), 0, 4))


def test_listing_survives_a_short_burst_and_gives_up_after_a_long_one(fake: FakeStorage) -> None:
    fake.answer = lambda request: as_json({}) if len(fake.requests) > 2 else Reply(503)
    assert list(store_at().list()) == []
    assert len(fake.requests) == 3
    fake.answer = lambda request: Reply(503)
    with pytest.raises(TransientError, match=r"storage\.objects\.list on gs://models/repo/: 503"):
        list(store_at().list())


def test_refused_connection_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{HOST}:{free_ports(1)[0]}")
    with pytest.raises(TransientError, match=r"storage\.objects\.get on gs://models/repo/m/x"):
        list(store_at().read(StoredObject("m/x", 4, "7"), 0, 4))
