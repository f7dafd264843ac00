"""GcsStore behind a proxy that injects faults."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.contract.repository.fault_proxy import Answer, Corrupt, Drip, FaultProxy, Reset, Truncate
from tests.contract.repository.gcs_emulator import GcsEmulator, found, store_at
from tests.contract.servers.ports import HOST, free_ports
from trident.core.repository.stores.object_store import StoredObject, TransientError

WEIGHTS = bytes(range(256)) * 8192


@pytest.fixture(scope="module")
def emulator() -> Iterator[GcsEmulator]:
    with GcsEmulator() as running:
        running.put("models", "repo/m/1/x", WEIGHTS)
        yield running


@pytest.fixture
def proxy(emulator: GcsEmulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    with FaultProxy(emulator.endpoint) as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.endpoint)
        yield running


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_temporary_status_is_transient(proxy: FaultProxy, status: int) -> None:
    store = store_at()
    wanted = found(store, "m/1/x")
    proxy.inject(Answer(status), where="/download/")
    with pytest.raises(TransientError, match=r"storage\.objects\.get on gs://models/repo/m/1/x"):
        list(store.read(wanted, 0, 10))
    assert b"".join(store.read(wanted, 0, 10)) == WEIGHTS[:10]


def test_listing_survives_a_short_burst(proxy: FaultProxy) -> None:
    proxy.inject(Answer(503), times=2)
    assert [each.key for each in store_at().list()] == ["m/1/x"]
    assert len(proxy.requests) == 3


def test_listing_gives_up_after_a_long_burst(proxy: FaultProxy) -> None:
    proxy.inject(Answer(503), times=100)
    with pytest.raises(TransientError, match=r"storage\.objects\.list on gs://models/repo/: 503"):
        list(store_at().list())


@pytest.mark.parametrize("fault", [Reset(after=300_000), Truncate(after=300_000)])
def test_broken_range_yields_the_received_bytes_and_is_transient(proxy: FaultProxy, fault: Reset | Truncate) -> None:
    store = store_at()
    wanted = found(store, "m/1/x")
    proxy.inject(fault, where="/download/")
    came: list[bytes] = []
    with pytest.raises(TransientError, match=r"storage\.objects\.get"):
        came.extend(store.read(wanted, 1000, wanted.size))
    assert b"".join(came) == WEIGHTS[1000:301_000]
    assert b"".join(store.read(wanted, 301_000, wanted.size)) == WEIGHTS[301_000:]


def test_slow_range_yields_the_received_bytes(proxy: FaultProxy) -> None:
    store = store_at()
    wanted = found(store, "m/1/x")
    drip = Drip(after=1000)
    proxy.inject(drip, where="/download/")
    pieces = store.read(wanted, 0, wanted.size)
    came = b""
    while len(came) < 1000:
        came += next(pieces)
    assert drip.paused.wait(60)
    assert came == WEIGHTS[:1000]
    drip.release()
    assert came + b"".join(pieces) == WEIGHTS


def test_damaged_byte_changes_the_checksum(proxy: FaultProxy) -> None:
    store = store_at()
    wanted = found(store, "m/1/x")
    proxy.inject(Corrupt(at=1_500_000), where="/download/")
    content = b"".join(store.read(wanted, 0, wanted.size))
    assert [index for index, byte in enumerate(content) if byte != WEIGHTS[index]] == [1_500_000]
    checksum = store.checksum(wanted)
    assert checksum is not None
    running = checksum.make()
    running.update(content)
    assert running.hexdigest() != checksum.value


def test_refused_connection_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{HOST}:{free_ports(1)[0]}")
    with pytest.raises(TransientError, match=r"storage\.objects\.get on gs://models/repo/m/x"):
        list(store_at().read(StoredObject("m/x", 4, "7"), 0, 4))


def test_threads_read_concurrently(proxy: FaultProxy) -> None:
    store = store_at()
    wanted = found(store, "m/1/x")
    parts: dict[int, bytes] = {}

    def read(start: int) -> None:
        parts[start] = b"".join(store.read(wanted, start, start + 65536))

    threads = [threading.Thread(target=read, args=[start]) for start in range(0, wanted.size, 65536)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert b"".join(parts[start] for start in sorted(parts)) == WEIGHTS
    assert proxy.passed_bytes > len(WEIGHTS)
