"""The largest bodies of batch transform, whole and in chunks, and larger ones.

Source: docs/spec/sagemaker.md section A6.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from pathlib import Path

import numpy as np
import pytest

from tests.contract.sagemaker.sagemaker_container import LIMIT_S, SageMakerContainer
from tests.contract.servers.ports import HOST
from tests.unit.onnx_models import identity, write_version
from tests.unit.onnx_serving import identity_config
from trident.core.http.payloads.arrays import write_npy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("http_workers")]

NPY = "application/x-npy"
WIDTH = 1024
LARGEST = 100 << 20
CHUNK = 65_537


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of an identity model."""
    folder = tmp_path_factory.mktemp("model")
    write_version(identity("FP32", ["n", WIDTH]), folder, "wide", identity_config("FP32", [WIDTH], 512))
    return folder


def batch_container(model: Path, folder: Path, max_payload_mb: int) -> SageMakerContainer:
    return SageMakerContainer(
        folder / "log",
        SAGEMAKER_BATCH="true",
        SAGEMAKER_MAX_PAYLOAD_IN_MB=str(max_payload_mb),
        TRIDENT_SAGEMAKER_MODEL_ROOT=str(model),
    )


def array_of(size: int) -> bytes:
    """A file in NumPy's format of as many rows as fit into `size` bytes."""
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


# Whole bodies and chunks are received by the same code in both shapes; tensors reach the engine in different ways.
@pytest.mark.shapes("one-process", "front-ends")
def test_largest_body_is_answered_and_a_larger_one_refused(http_workers: str, model: Path, tmp_path: Path) -> None:
    body, chunked = array_of(LARGEST), http_workers != "0"
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


@pytest.mark.shapes("front-ends")
def test_body_of_any_size_is_answered_without_a_payload_limit(model: Path, tmp_path: Path) -> None:
    body = array_of(LARGEST + (20 << 20))
    with batch_container(model, tmp_path, 0) as container:
        assert json.loads(container.ask("GET", "/execution-parameters").body)["MaxPayloadInMB"] == 0
        status, answer = post(container, body, chunked=True)
        assert status == 200, answer[:500]
        assert answer == body
