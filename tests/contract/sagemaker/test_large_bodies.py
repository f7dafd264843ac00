"""Bodies as large as batch transform sends them, whole and in chunks, and larger ones.

Source: docs/spec/sagemaker.md section A6.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from core.http.payloads.arrays.npy import write_npy
from tests.contract.sagemaker.sagemaker_container import LIMIT_S, SageMakerContainer
from tests.contract.servers.ports import HOST
from tests.unit.onnx_models import identity, write_version
from tests.unit.onnx_serving import identity_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("http_workers")]

NPY = "application/x-npy"
WIDTH = 1024
LARGEST = 100 << 20
CHUNK = 65_537


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers with its input."""
    folder = tmp_path_factory.mktemp("model")
    write_version(identity("FP32", ["n", WIDTH]), folder, "wide", identity_config("FP32", [WIDTH], 512))
    return folder


@contextlib.contextmanager
def batch_container(model: Path, folder: Path, max_payload_mb: int) -> Iterator[SageMakerContainer]:
    variables = {
        "SAGEMAKER_BATCH": "true",
        "SAGEMAKER_MAX_PAYLOAD_IN_MB": str(max_payload_mb),
        "TRIDENT_SAGEMAKER_MODEL_ROOT": str(model),
    }
    with SageMakerContainer(folder / "log", **variables) as container:
        yield container


def array_of(size: int) -> bytes:
    """As many rows as go into `size` bytes in numpy's format."""
    rows = (size - 1024) // (4 * WIDTH)
    return bytes(write_npy(np.arange(rows * WIDTH, dtype="<f4").reshape(-1, WIDTH)))


def post(container: SageMakerContainer, body: bytes, *, chunked: bool) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, container.port, timeout=2 * LIMIT_S)
    headers = {"Content-Type": NPY, "Accept": NPY}
    with contextlib.closing(connection):
        if chunked:
            chunks = (body[begin : begin + CHUNK] for begin in range(0, len(body), CHUNK))
            connection.request("POST", "/invocations", chunks, headers, encode_chunked=True)
        else:
            connection.request("POST", "/invocations", body, headers)
        response = connection.getresponse()
        return response.status, response.read()


@pytest.mark.parametrize("chunked", [False, True])
def test_the_largest_body_of_a_batch_job_and_a_larger_one(model: Path, tmp_path: Path, chunked: bool) -> None:
    body = array_of(LARGEST)
    assert LARGEST - 8192 < len(body) <= LARGEST
    with batch_container(model, tmp_path, 100) as container:
        status, answer = post(container, body, chunked=chunked)
        assert status == 200, answer[:500]
        assert answer == body
        status, answer = post(container, bytes(LARGEST + 1), chunked=chunked)
        assert status == 400
        text = json.loads(answer)["error"]
        assert text.startswith(f"the body of {LARGEST + 1} bytes exceeds the maximum allowed input size of {LARGEST}")
        assert container.ask("GET", "/ping").status == 200


def test_a_job_without_a_payload_limit_sends_what_it_likes(model: Path, tmp_path: Path) -> None:
    body = array_of(LARGEST + (20 << 20))
    with batch_container(model, tmp_path, 0) as container:
        assert json.loads(container.ask("GET", "/execution-parameters").body)["MaxPayloadInMB"] == 0
        status, answer = post(container, body, chunked=True)
        assert status == 200, answer[:500]
        assert answer == body
