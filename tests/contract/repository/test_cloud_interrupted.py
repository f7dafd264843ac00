"""Interrupted downloads: the server is killed or stopped, or its disk is full.

The next start uses the objects that are complete, and no partial file is ever loaded.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.lifecycle.changing_models import add_scaled, heavy, load
from tests.contract.repository.cloud_models import (
    CloudRepository,
    assert_serves,
    cloud_server,
    fetched,
    readiness,
    reasons,
    repository_metric,
)
from tests.contract.repository.fault_proxy import Drip, FaultProxy
from tests.contract.repository.s3_emulator import S3Emulator
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.slow

MIB = 1 << 20
WEIGHTS = "large/1/model.onnx"
# Shorter than the read timeout of the storage, so a server that waits for a read fails the test.
END_LIMIT_S = 60.0


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Emulator]:
    with S3Emulator() as running:
        yield running


def test_next_start_continues_an_interrupted_download(s3: S3Emulator, tmp_path: Path) -> None:
    """Complete objects are not fetched again."""
    repository = CloudRepository(s3, "interrupted", "models")
    repository.put_model("large", 2.0)
    weights = heavy(2.0, 20).SerializeToString()
    repository.put(WEIGHTS, weights)
    with FaultProxy(s3.endpoint) as proxy:

        def server(log: str, *, ready: bool = False) -> ServerProcess:
            return cloud_server(tmp_path, log, repository.uri(proxy.endpoint), ready=ready)

        for how in ("kill", "terminate"):
            drip = Drip(after=1000)
            proxy.inject(drip, where=WEIGHTS)
            with server(how) as running:
                until(drip.paused.is_set, "nothing is fetched")
                until(lambda: "download" in readiness(running), "no download is seen")
                until(lambda: list((tmp_path / "cache" / "blobs").iterdir()), "no object is complete")
                running.kill() if how == "kill" else running.process.terminate()
                running.process.wait(END_LIMIT_S)
            drip.release()
            assert "successfully loaded" not in running.log_text()

        with server("served", ready=True) as running:
            assert_serves(running, "large", 2.0)
            assert repository_metric(running, "downloaded_bytes_total") == len(weights)
            assert repository_metric(running, "downloaded_objects_total") == 1
        assert fetched(proxy.requests)["large/config.pbtxt"] == 1
        assert not list((tmp_path / "cache" / "parts").glob("*.part"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB for the model cache."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(cache)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield cache
    finally:
        subprocess.run(["umount", str(cache)], check=True)


def test_full_disk_fails_the_load_and_other_models_serve(s3: S3Emulator, small_disk: Path, tmp_path: Path) -> None:
    local = tmp_path / "local"
    add_scaled(local, "here", 5.0)
    repository = CloudRepository(s3, "disk", "models")
    repository.put_model("small", 4.0)
    for factor, name, size in ((2.0, "fits", 5), (3.0, "large", 12)):
        repository.put_model(name, factor)
        repository.put(f"{name}/1/model.onnx", heavy(factor, size).SerializeToString())
    with (
        FaultProxy(s3.endpoint) as proxy,
        cloud_server(
            tmp_path,
            "log",
            local,
            f"--model-repository={repository.uri(proxy.endpoint)}",
            "--model-control-mode=explicit",
            "--load-model=here",
            "--load-model=small",
        ) as server,
    ):

        def refused(name: str, reason: str) -> None:
            """The load must fail for lack of space, and the other models must serve."""
            status, said = load(server, name)
            assert status == 400, said
            for text in (said, reasons(server, name), server.log_text()):
                assert f"the model cache in {small_disk} has no room: {reason}" in text
            assert_serves(server, "here", 5.0)
            assert_serves(server, "small", 4.0)

        refused("large", "no space left on the disk; ")
        assert fetched(proxy.requests)[WEIGHTS] == 0

        drip = Drip(after=2 * MIB)
        proxy.inject(drip, where="fits/1/model.onnx")
        with ThreadPoolExecutor(1) as pool:
            refusing = pool.submit(refused, "fits", "No space left on device; ")
            until(drip.paused.is_set, "nothing is fetched")
            fill(small_disk / "filler")
            drip.release()
            refusing.result()
        (small_disk / "filler").unlink()
        assert load(server, "fits") == (200, "")
        assert_serves(server, "fits", 2.0)
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        assert load(server, "large") == (200, "")
        assert_serves(server, "large", 3.0)


def fill(path: Path) -> None:
    """Fill the disk."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return
