"""`trident emulate sagemaker` with model data in S3 and Google Cloud Storage: `moto_server`, `gcp-storage-emulator`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.emulators.sagemaker_emulator import ROW, SageMakerEmulator, call, refusal
from tests.contract.repository.cloud_models import KEYS, CloudRepository, assert_serves, cloud_server, fetched, listings
from tests.contract.repository.fake_storage import Drip, FaultProxy
from tests.contract.repository.gcs_emulator import GcsEmulator
from tests.contract.repository.s3_emulator import S3Emulator
from tests.contract.sagemaker.sagemaker_archives import ONES, is_scaled_by, pack, write_flat
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[S3Emulator])
def storage(request: pytest.FixtureRequest) -> Iterator[S3Emulator | GcsEmulator]:
    with request.param() as running:
        yield running


@pytest.fixture
def proxy(storage: S3Emulator | GcsEmulator) -> Iterator[FaultProxy]:
    with FaultProxy(storage.endpoint) as proxy:
        yield proxy


def emulator_of(
    data: CloudRepository, proxy: FaultProxy, folder: Path, *options: str, path: str = "", ready: bool = True
) -> SageMakerEmulator:
    """An emulator of the model data at `path`, with a cache in `folder`."""
    return SageMakerEmulator(
        folder,
        data.uri(proxy.endpoint) + path,
        f"--model-cache-directory={folder / 'cache'}",
        *options,
        ready=ready,
        variables={
            **KEYS,
            "HOME": str(folder),
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_GCE_CHECK": "true",
            "STORAGE_EMULATOR_HOST": proxy.endpoint,
        },
    )


def archive_of(factor: float, folder: Path) -> bytes:
    """A model archive."""
    return pack(write_flat(folder / str(factor), factor), folder / f"{factor}.tar.gz").read_bytes()


def test_a_prefix_is_the_model_folder_and_shares_the_cache_of_servers(
    storage: S3Emulator | GcsEmulator, proxy: FaultProxy, tmp_path: Path
) -> None:
    data = CloudRepository(storage, "prefix", "models")
    data.put_model("one", 2.0, 3.0)
    for _ in range(2):
        with emulator_of(data, proxy, tmp_path) as emulator:
            assert is_scaled_by(call(emulator, ONES)["Body"], 3)
    with cloud_server(tmp_path, "served", data.uri(proxy.endpoint), STORAGE_EMULATOR_HOST=proxy.endpoint) as server:
        assert_serves(server, "one", 3.0)
    assert set(fetched(proxy.requests).values()) == {1}
    assert len(fetched(proxy.requests)) == 3


@pytest.mark.parametrize("storage", [S3Emulator, GcsEmulator], indirect=True, ids=["s3", "gs"])
def test_an_archive_is_fetched_and_unpacked(
    storage: S3Emulator | GcsEmulator, proxy: FaultProxy, tmp_path: Path
) -> None:
    data = CloudRepository(storage, "archive", "models")
    data.put("model.tar.gz", archive_of(4.0, tmp_path))
    data.put("model.tar.gz.sha256", b"another object with the same beginning")
    for _ in range(2):
        with emulator_of(data, proxy, tmp_path, path="/model.tar.gz") as emulator:
            assert is_scaled_by(call(emulator, ONES)["Body"], 4)
    assert fetched(proxy.requests) == {"model.tar.gz": 1}


def test_archives_of_a_multi_model_endpoint_are_fetched_on_demand(
    storage: S3Emulator | GcsEmulator, proxy: FaultProxy, tmp_path: Path
) -> None:
    data = CloudRepository(storage, "many", "models")
    data.put("a.tar.gz", archive_of(2.0, tmp_path))
    data.put("team/b.tar.gz", archive_of(3.0, tmp_path))
    with emulator_of(data, proxy, tmp_path, "--multi-model") as emulator:
        emulator.wait_for_text("2 archives in ")
        assert not fetched(proxy.requests)
        assert is_scaled_by(call(emulator, ONES, TargetModel="team/b.tar.gz")["Body"], 3)
        assert fetched(proxy.requests) == {"team/b.tar.gz": 1}
        before = listings(proxy.requests)
        call(emulator, ONES, TargetModel="team/b.tar.gz")
        assert listings(proxy.requests) == before
        found = refusal(emulator, "ValidationError", ROW, TargetModel="c.tar.gz")
        assert "there is no archive 'c.tar.gz' in " in found["text"]
        data.put("c.tar.gz", archive_of(5.0, tmp_path))
        assert is_scaled_by(call(emulator, ONES, TargetModel="c.tar.gz")["Body"], 5)
    with emulator_of(data, proxy, tmp_path, "--multi-model") as emulator:
        assert is_scaled_by(call(emulator, ONES, TargetModel="c.tar.gz")["Body"], 5)
    assert fetched(proxy.requests) == {"team/b.tar.gz": 1, "c.tar.gz": 1}


@pytest.mark.parametrize("options", [(), ("--multi-model",)])
def test_a_misspelled_prefix_ends_the_command(
    storage: S3Emulator | GcsEmulator, proxy: FaultProxy, tmp_path: Path, options: tuple[str, ...]
) -> None:
    CloudRepository(storage, "spelling", "zoo/models").put_model("one", 2.0)
    wrong = CloudRepository(storage, "spelling", "zoo/modles")
    with emulator_of(wrong, proxy, tmp_path, *options, ready=False) as emulator:
        emulator.status = 1
        assert emulator.wait() == 1
        shown = wrong.uri(proxy.endpoint).replace("http://", "")
        assert emulator.text() == (
            f"error: there is nothing in {shown}\nhint: check how the bucket and the prefix are spelled\n"
        )


def test_an_interrupt_ends_a_download(storage: S3Emulator | GcsEmulator, proxy: FaultProxy, tmp_path: Path) -> None:
    data = CloudRepository(storage, "slow", "models")
    data.put_model("one", 2.0)
    drip = Drip()
    proxy.inject(drip, where="model.onnx")
    with emulator_of(data, proxy, tmp_path, ready=False) as emulator:
        assert drip.paused.wait(LIMIT_S)
        emulator.process.send_signal(signal.SIGINT)
        drip.release()
        assert emulator.wait() == 0
        assert "the runtime API is at" not in emulator.text()
