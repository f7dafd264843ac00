"""`trident emulate sagemaker`: broken limits, starts that fail, and the end.

Source: docs/spec/sagemaker.md sections A1 to A5.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.changing_files import found_below
from tests.contract.emulators.emulator_process import EmulatorThread
from tests.contract.emulators.sagemaker_emulator import SageMakerEmulator, call, refusal, response, sdk
from tests.contract.lifecycle.changing_models import WIDTH
from tests.contract.platforms.container import LIMIT_S, platform_environment
from tests.contract.sagemaker.sagemaker_archives import (
    CSV,
    ONES,
    pack,
    pack_large,
    pack_members,
    write_flat,
    write_rows,
)
from tests.contract.servers.ports import HOST
from tests.unit.onnx_models import waiting, write_version
from tests.waiting import until
from trident.core.http.payloads.arrays import write_npy
from trident.tools.emulators.command import CONTAINER_COMMAND
from trident.tools.emulators.sagemaker.archives import name_of
from trident.tools.emulators.sagemaker.emulator import Emulator, EmulatorOptions
from trident.tools.emulators.sagemaker.endpoint import SageMakerLimits

pytestmark = pytest.mark.slow

JSON = "application/json"
NPY = "application/x-npy"
LIMITS = SageMakerLimits()
# Takes more than a second to unpack.
LARGE_MB = 600


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    return pack(write_rows(folder / "model"), folder / "model.tar.gz")


# --- broken limits


def npy_of(size: int) -> bytes:
    """A file of `size` bytes in NumPy's format."""
    header = len(write_npy(np.zeros((10**6, WIDTH), "<f4"))) - 10**6 * WIDTH * 4
    assert (size - header) % (WIDTH * 4) == 0
    body = bytes(write_npy(np.full(((size - header) // (WIDTH * 4), WIDTH), 1 / 3, "<f4")))
    assert len(body) == size
    return body


def test_request_and_response_over_the_limit_are_refused_and_reported(rows: Path, tmp_path: Path) -> None:
    with SageMakerEmulator(tmp_path, rows) as emulator:
        largest = npy_of(LIMITS.body_bytes)
        assert call(emulator, largest, ContentType=NPY, Accept=NPY)["Body"] == largest
        assert "breach: the caller" not in emulator.text()
        found = refusal(emulator, "ValidationError", largest + b"x", ContentType=NPY, Accept=NPY)
        assert found["status"] == 400
        assert "a request body of 26214401 bytes, where the platform takes at most 25 MiB" in found["text"]
        # As CSV each number is more than twice as long.
        found = refusal(emulator, "ModelError", npy_of(16 << 20), ContentType=NPY, Accept=CSV)
        assert (found["status"], found["OriginalStatusCode"]) == (424, 0)
        assert found["OriginalMessage"] == "the container answered with more than 25 MiB"
        assert call(emulator)["Body"] == b"1.0,2.0,3.0,4.0\n"
        assert emulator.end() == 1
        assert emulator.breaches() == [
            "the caller sent a request body of 26214401 bytes, where the platform takes at most 25 MiB",
            "POST /invocations: the container answered with more than 25 MiB",
        ]


def shorter(folder: Path, limits: SageMakerLimits) -> Emulator:
    options = EmulatorOptions(
        model=str(folder), command=CONTAINER_COMMAND, environment=platform_environment({}), limits=limits
    )
    return Emulator(options, io.StringIO(), io.StringIO())


def test_late_invocation_and_late_end_are_reported(tmp_path: Path) -> None:
    write_version(waiting(), tmp_path, "waiting")
    emulator = shorter(tmp_path, SageMakerLimits(invoke_s=1.0, stop_s=1.0))
    with EmulatorThread(emulator) as running, contextlib.closing(sdk(running.url)) as client:
        with pytest.raises(ClientError) as raised:
            client.invoke_endpoint(EndpointName="any", ContentType=JSON, Body=b'{"instances": [1000000000]}')
        assert response(raised.value)["OriginalMessage"] == "the container did not answer within 1 s"
        assert running.end() == 1
    assert [breach for breach in emulator.report.breaches if "/ping" not in breach] == [
        "POST /invocations: the container did not answer within 1 s",
        "the container did not end within 1 s of SIGTERM and was killed",
    ]


# --- starts that fail


def test_archive_without_a_model_ends_with_the_containers_error(tmp_path: Path) -> None:
    archive = pack_members(tmp_path / "model.tar.gz", tarfile.TarInfo("readme.txt"))
    with SageMakerEmulator(tmp_path / "run", archive, ready=False) as emulator:
        assert emulator.wait() == 1
        assert "there is no model in" in emulator.text()
        assert emulator.breaches() == ["the container ended by itself, with status 1"]


def test_taken_port_is_reported_before_anything_starts(rows: Path, tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with SageMakerEmulator(tmp_path, rows, f"--port={port}", ready=False) as emulator:
            emulator.status = 1
            assert emulator.wait() == 1
            assert f"error: cannot listen at {HOST}:{port}: Address already in use" in emulator.text()
            assert "hint: name another port with --port" in emulator.text()


# --- the end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_emulator_without_remains(rows: Path, tmp_path: Path, number: int) -> None:
    with SageMakerEmulator(tmp_path, rows) as emulator:
        assert call(emulator)["Body"] == b"1.0,2.0,3.0,4.0\n"
        assert len(emulator.container_members()) > 0
        emulator.end(number)
        assert "1 invocation\n" in emulator.text()
        assert emulator.breaches() == []


def test_early_signal_ends_the_emulator_without_remains(rows: Path, tmp_path: Path) -> None:
    with SageMakerEmulator(tmp_path, rows, ready=False) as emulator:
        until(emulator.container_members, emulator.text)
        emulator.end()
        assert emulator.breaches() == []


def test_signal_during_unpacking_ends_the_emulator_without_remains(tmp_path: Path) -> None:
    archive = pack_large(write_flat(tmp_path / "model", 1), tmp_path / "model.tar.gz", LARGE_MB)
    with SageMakerEmulator(tmp_path / "run", archive, ready=False) as emulator:
        until(lambda: found_below(emulator.temporary, "large"), emulator.text)
        emulator.end()
        assert emulator.breaches() == []
        assert emulator.container_members() == []


def test_signal_during_loads_reports_no_breach(tmp_path: Path) -> None:
    """One archive is being unpacked and the container loads another model: neither has to be answered."""
    (tmp_path / "archives").mkdir()
    pack_large(write_flat(tmp_path / "large", 1), tmp_path / "archives" / "large.tar.gz", LARGE_MB)
    pack(write_flat(tmp_path / "heavy", 2, 100), tmp_path / "archives" / "heavy.tar.gz")
    with (
        SageMakerEmulator(tmp_path / "run", tmp_path / "archives", "--multi-model") as emulator,
        ThreadPoolExecutor(2) as pool,
    ):
        heavy = pool.submit(call, emulator, ONES, TargetModel="heavy.tar.gz")
        emulator.wait_for_text(f"loading: {name_of('heavy.tar.gz')}")
        large = pool.submit(call, emulator, ONES, TargetModel="large.tar.gz")
        until(lambda: found_below(emulator.temporary, f"{name_of('large.tar.gz')}/model/1/large"), emulator.text)
        emulator.end()
        assert emulator.breaches() == []
        for caller in (heavy, large):
            with contextlib.suppress(ClientError, BotoCoreError):  # either error tells that the endpoint has ended
                caller.result(LIMIT_S)


def test_nohup_survives_a_closed_terminal(rows: Path, tmp_path: Path) -> None:
    with SageMakerEmulator(tmp_path, rows, nohup=True) as emulator:
        os.kill(emulator.process.pid, signal.SIGHUP)
        assert call(emulator)["Body"] == b"1.0,2.0,3.0,4.0\n"
        assert emulator.process.poll() is None
