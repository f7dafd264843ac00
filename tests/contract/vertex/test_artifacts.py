"""Artifacts in Google's storage: what they may be, and a slow download as the probes see it.

The storage is `gcp-storage-emulator` behind a proxy that injects faults. What a broken download does is tested in
tests/contract/repository.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import BATCHED, heavy, scaled
from tests.contract.repository.fault_proxy import Drip, FaultProxy
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.vertex.vertex_container import VertexContainer
from tests.waiting import until

pytestmark = pytest.mark.slow

# The platform copies artifacts to a bucket with such a name.
BUCKET = "caip-tenant-0123abcd"


@pytest.fixture(scope="module")
def storage() -> Iterator[GcsEmulator]:
    with GcsEmulator() as running:
        yield running


@pytest.fixture
def proxy(storage: GcsEmulator) -> Iterator[FaultProxy]:
    with FaultProxy(storage.endpoint) as running:
        yield running


def put(storage: GcsEmulator, folder: str, **files: bytes) -> str:
    """Put files into a folder. In their names `__` stands for a slash and `_onnx` for `.onnx`. Returns the URI."""
    for name, content in files.items():
        path = name.replace("__", "/").replace("_onnx", ".onnx").replace("_pbtxt", ".pbtxt")
        storage.put(BUCKET, f"{folder}/{path}", content)
    return f"gs://{BUCKET}/{folder}"


def container(
    folder: Path, uri: str, storage: GcsEmulator | FaultProxy, *arguments: str, ready: bool = True
) -> VertexContainer:
    return VertexContainer(folder, uri, *arguments, ready=ready, STORAGE_EMULATOR_HOST=storage.endpoint)


def test_artifacts_may_be_a_model(tmp_path: Path, storage: GcsEmulator) -> None:
    uri = put(
        storage,
        "2/artifacts",
        config_pbtxt=f'name: "cat" {BATCHED}'.encode(),
        **{"1__model_onnx": scaled(3).SerializeToString()},
    )
    with container(tmp_path, uri + "/", storage) as made:
        assert made.predictions([[1, 2, 3, 4]]) == [[3, 6, 9, 12]]
        assert made.ask("GET", "/v2/models/cat").status == 200
        until(lambda: uri in made.log_text(), made.log_text)  # its tables are logged a moment after the start


def test_slow_download_is_reported_by_the_probe(tmp_path: Path, storage: GcsEmulator, proxy: FaultProxy) -> None:
    """The liveness probe is a connection, four times in 40 seconds: a longer download must not fail it."""
    # Two parts, each longer than what arrives before the pause.
    uri = put(storage, "5", model_onnx=heavy(3, 12).SerializeToString())
    drip = Drip(after=1 << 20)
    proxy.inject(drip, where="/download/")
    with container(tmp_path, uri, proxy, ready=False) as made:
        assert drip.paused.wait(60)
        until(lambda: made.health().document.get("download", {}).get("bytes_done", 0) >= 1 << 20, made.log_text)
        for _ in range(5):
            assert made.accepts()
            answer = made.health()
            assert answer.status == 503
            phase = answer.document
            assert (phase["phase"], phase["model"], phase["loaded"], phase["total"]) == ("loading", "model", 0, 1)
            assert phase["download"]["bytes_total"] > 8 << 20
        answer = made.post({"instances": [[1, 1, 1, 1]]})
        assert (answer.status, answer.error) == (503, "the models are still being loaded")
        assert made.redirected("v2/health/live").status == 200
        drip.release()
        until(lambda: made.health_status() == 200, made.log_text)
        assert made.predictions([[1, 1, 1, 1]]) == [[3, 3, 3, 3]]


def test_container_stops_while_the_storage_does_not_answer(
    tmp_path: Path, storage: GcsEmulator, proxy: FaultProxy
) -> None:
    uri = put(storage, "9", model_onnx=heavy(3, 12).SerializeToString())
    drip = Drip(after=100)
    proxy.inject(drip, where="/download/")
    with container(tmp_path, uri, proxy, ready=False) as made:
        assert drip.paused.wait(60)
        assert made.health().status == 503
        assert made.stop() == 0


def test_artifacts_without_a_model_end_the_start(tmp_path: Path, storage: GcsEmulator) -> None:
    storage.put(BUCKET, "junk/readme.txt", b"x")
    storage.put(BUCKET, "junk/notes", b"x")
    made = container(tmp_path, f"gs://{BUCKET}/junk", storage)
    made.start()
    status, log = made.wait_for_end()
    assert (status, f"there is no model in gs://{BUCKET}/junk: it holds 'notes', 'readme.txt'" in log) == (1, True)
