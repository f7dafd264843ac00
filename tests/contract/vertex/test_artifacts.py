"""Artifacts in Google's storage: what they may be, how they come slowly, late, or not at all.

The storage is `gcp-storage-emulator`, with a proxy before it that breaks what a test tells it to.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import BATCHED, heavy, scaled
from tests.contract.repository.fault_proxy import Answer, Drip, FaultProxy, Reset
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.vertex.vertex_container import VertexContainer
from tests.waiting import until

pytestmark = pytest.mark.slow

# As the platform's own copies are called: a bucket of its own, and digits.
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
    """Files in a folder, `__` for a slash and `_o` for `.o`; the URI of the folder."""
    for name, content in files.items():
        path = name.replace("__", "/").replace("_onnx", ".onnx").replace("_pbtxt", ".pbtxt")
        storage.put(BUCKET, f"{folder}/{path}", content)
    return f"gs://{BUCKET}/{folder}"


def graph(factor: float) -> bytes:
    return scaled(factor).SerializeToString()


def container(
    folder: Path, uri: str, storage: GcsEmulator | FaultProxy, *arguments: str, ready: bool = True
) -> VertexContainer:
    return VertexContainer(folder, uri, *arguments, ready=ready, STORAGE_EMULATOR_HOST=storage.endpoint)


def assert_serves(container: VertexContainer, factor: float = 3) -> None:
    assert container.predictions([[1, 2, 3, 4]]) == [[factor * n for n in (1, 2, 3, 4)]]


# --- what they may be


@pytest.mark.parametrize(("kind", "slash"), [("repository", ""), ("model", "/"), ("file", ""), ("file", "/")])
def test_what_the_artifacts_may_be(tmp_path: Path, storage: GcsEmulator, kind: str, slash: str) -> None:
    configuration = f'name: "cat" {BATCHED}'.encode()
    if kind == "repository":
        uri = put(storage, "1/artifacts", cat__config_pbtxt=configuration, cat__1__model_onnx=graph(3))
    elif kind == "model":
        uri = put(storage, "2/artifacts", config_pbtxt=configuration, **{"1__model_onnx": graph(3)})
    else:
        uri = put(storage, "3/artifacts", model_onnx=graph(3))
    with container(tmp_path, uri + slash, storage) as made:
        assert_serves(made)
        name = "model" if kind == "file" else "cat"
        assert made.ask("GET", f"/v2/models/{name}").status == 200
        until(lambda: uri in made.log_text(), made.log_text)  # its tables come a moment after the start


def test_a_restart_finds_what_was_fetched_before(tmp_path: Path, storage: GcsEmulator, proxy: FaultProxy) -> None:
    uri = put(storage, "4", model_onnx=heavy(3, 4).SerializeToString())
    with container(tmp_path, uri, proxy) as made:
        assert made.predictions([[1, 1, 1, 1]]) == [[3, 3, 3, 3]]
    passed = proxy.passed_bytes
    with container(tmp_path, uri, proxy) as made:
        assert made.predictions([[1, 1, 1, 1]]) == [[3, 3, 3, 3]]
    assert proxy.passed_bytes - passed < 1 << 20


# --- slow


def test_while_they_come_it_is_up_and_says_how_far_they_are(
    tmp_path: Path, storage: GcsEmulator, proxy: FaultProxy
) -> None:
    """The platform's liveness probe is a connection, four times in 40 seconds: what loads longer than that lives on."""
    uri = put(storage, "5", model_onnx=heavy(3, 8).SerializeToString())
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


def test_a_connection_that_breaks_is_taken_up_where_it_was(
    tmp_path: Path, storage: GcsEmulator, proxy: FaultProxy
) -> None:
    uri = put(storage, "6", model_onnx=heavy(3, 8).SerializeToString())
    proxy.inject(Reset(after=1 << 20), where="/download/")
    with container(tmp_path, uri, proxy) as made:
        assert made.predictions([[1, 1, 1, 1]]) == [[3, 3, 3, 3]]
    assert proxy.waiting == 0
    assert proxy.passed_bytes < 12 << 20


# --- late


def test_a_storage_that_is_not_ready_yet(tmp_path: Path, storage: GcsEmulator, proxy: FaultProxy) -> None:
    uri = put(storage, "7", model_onnx=graph(3))
    proxy.inject(Answer(503), times=3)
    with container(tmp_path, uri, proxy, ready=False) as made:
        assert made.health().status in (200, 503)
        until(lambda: made.health_status() == 200, made.log_text)
        assert_serves(made)
    assert proxy.waiting == 0


def test_a_storage_that_stays_away_ends_the_start_and_the_platform_starts_again(
    tmp_path: Path, storage: GcsEmulator, proxy: FaultProxy
) -> None:
    uri = put(storage, "8", model_onnx=graph(3))
    proxy.inject(Answer(503), times=1000)
    made = container(tmp_path, uri, proxy)
    made.start()
    status, log = made.wait_for_end()
    assert status == 1
    assert "503" in log
    assert f"gs://{BUCKET}" in log
    with container(tmp_path, uri, storage) as again:
        assert_serves(again)


def test_nobody_answers_at_all_until_the_platform_stops_it(
    tmp_path: Path, storage: GcsEmulator, proxy: FaultProxy
) -> None:
    uri = put(storage, "9", model_onnx=heavy(3, 8).SerializeToString())
    drip = Drip(after=100)
    proxy.inject(drip, where="/download/")
    with container(tmp_path, uri, proxy, ready=False) as made:
        assert drip.paused.wait(60)
        assert made.health().status == 503
        assert made.stop() == 0


# --- not at all


@pytest.mark.parametrize(
    ("folder", "text"),
    [
        ("nothing/there", f"there is no model in gs://{BUCKET}/nothing/there: it is empty"),
        ("junk", f"there is no model in gs://{BUCKET}/junk: it holds 'notes', 'readme.txt'"),
    ],
)
def test_without_a_model_in_them_the_start_ends_and_says_so(
    tmp_path: Path, storage: GcsEmulator, folder: str, text: str
) -> None:
    storage.put(BUCKET, "junk/readme.txt", b"x")
    storage.put(BUCKET, "junk/notes", b"x")
    made = container(tmp_path, f"gs://{BUCKET}/{folder}", storage)
    made.start()
    status, log = made.wait_for_end()
    assert (status, text in log) == (1, True)


def test_no_such_bucket(tmp_path: Path, storage: GcsEmulator) -> None:
    made = container(tmp_path, "gs://no-such-bucket/artifacts", storage)
    made.start()
    status, log = made.wait_for_end()
    assert (status, "there is no bucket gs://no-such-bucket" in log) == (1, True)
