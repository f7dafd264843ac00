"""A container of one model: its start, batch transform, probes and the end.

Every exchange must keep the platform's limits. Source: docs/spec/sagemaker.md sections A1, A2 and A6.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.lifecycle.changing_models import WIDTH, Gate
from tests.contract.platforms.container import LIMIT_S, platform_environment
from tests.contract.sagemaker.sagemaker_container import SageMakerContainer
from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.session import TRIDENT, kill_session, start_session
from tests.project import ROOT
from tests.unit.onnx_models import identity, write_version
from tests.unit.onnx_serving import identity_config
from tests.waiting import until
from trident.core.http.payloads.arrays import write_npy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("http_workers")]

CSV = "text/csv"
LINES = "application/jsonlines"
NPY = "application/x-npy"
ROW = b"1,2,3,4\n"


@pytest.fixture(scope="module")
def container(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SageMakerContainer]:
    """A container of a batch transform with an identity model, of four numbers a record and 512 records at once."""
    folder = tmp_path_factory.mktemp("container")
    write_version(identity("FP32", ["n", WIDTH]), folder / "model", "rows", identity_config("FP32", [WIDTH], 512))
    variables = {
        "SAGEMAKER_BATCH": "true",
        "SAGEMAKER_BATCH_STRATEGY": "SINGLE_RECORD",
        "SAGEMAKER_MAX_PAYLOAD_IN_MB": "20",
        "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "2",
        "TRIDENT_SAGEMAKER_MODEL_ROOT": str(folder / "model"),
    }
    with SageMakerContainer(folder / "log", **variables) as made:
        yield made


def numbers(body: bytes) -> list[list[float]]:
    """The rows of a CSV answer."""
    return [[float(cell) for cell in line.split(",")] for line in body.decode().splitlines()]


# --- batch transform


RECORDS = [[float(4 * row + column) for column in range(WIDTH)] for row in range(1000)]


def as_lines(content_type: str, records: list[list[float]]) -> list[bytes]:
    if content_type == CSV:
        return [b"%s\n" % ",".join(f"{cell:g}" for cell in record).encode() for record in records]
    return [json.dumps(record).encode() + b"\n" for record in records]


def records_of(content_type: str, body: bytes) -> list[list[float]]:
    if content_type == CSV:
        return numbers(body)
    return [json.loads(line) for line in body.splitlines()]


@pytest.mark.parametrize(("content_type", "accept"), [(CSV, LINES), (LINES, CSV)])
def test_multi_record_bodies_keep_one_record_per_line_in_order(
    container: SageMakerContainer, content_type: str, accept: str
) -> None:
    body = b"".join(as_lines(content_type, RECORDS))
    answer = container.invoke(body, Content_Type=content_type, Accept=accept)
    assert answer.status == 200, answer.text
    assert answer.body.endswith(b"\n")
    assert len(answer.body.splitlines()) == len(RECORDS)
    assert _rows(accept, answer.body) == RECORDS


def _rows(accept: str, body: bytes) -> list[Any]:
    found = records_of(accept, body)
    # A JSON line may be an object by the output's name.
    return [next(iter(row.values())) if isinstance(row, dict) else row for row in found]


# --- the start


VARIABLES = {
    "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple",
    "TRIDENT_SAGEMAKER_MODEL_ROOT": str(ROOT / "deploy" / "models"),
}
SIMPLE_ROW = ",".join(str(number) for number in range(32))
ANSWER = ",".join([str(2 * n + 16) for n in range(16)] + ["-16"] * 16)


@pytest.mark.shapes("one-process", "front-ends", "two-engines")
def test_container_of_one_model_serves(tmp_path: Path) -> None:
    body = f"{SIMPLE_ROW}\n{SIMPLE_ROW}\n".encode()
    with SageMakerContainer(tmp_path / "log", **VARIABLES) as container:
        answer = container.invoke(body, Content_Type=CSV)
        assert answer.status == 200
        assert len(json.loads(answer.body)["predictions"]) == 2
        answer = container.invoke(body, Content_Type=CSV, Accept=CSV)
        assert (answer.status, answer.body.decode()) == (200, f"{ANSWER}\n{ANSWER}\n")
        assert container.ask("GET", "/v2/health/ready").status == 404
        assert container.ask("GET", "/models").status == 404
        assert b'nv_inference_count{model="simple",version="1"} 4' in container.ask("GET", "/metrics").body
        assert json.loads(container.ask("GET", "/execution-parameters").body)["BatchStrategy"] == "MULTI_RECORD"


def test_port_outside_the_safe_range_ends_the_start(tmp_path: Path) -> None:
    port, other = free_ports(2)
    variables = VARIABLES | {
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SAGEMAKER_SAFE_PORT_RANGE": f"{port}-{port}",
        "SAGEMAKER_TRITON_ALLOW_METRICS": "true",
        "SAGEMAKER_TRITON_METRICS_PORT": str(other),
    }
    process = start_session([TRIDENT, "serve"], tmp_path / "log", env=platform_environment(variables))
    try:
        assert process.wait(LIMIT_S) == 1
    finally:
        kill_session(process)
    assert f"at port {other}, allowed port range is [{port}, {port}]" in (tmp_path / "log").read_text()


# --- probes and the end


def test_probes_are_answered_in_time_under_load(container: SageMakerContainer) -> None:
    """There are more callers with large bodies than cores. `ask` fails after the limit of a probe."""
    body = b"".join(as_lines(CSV, RECORDS)) * 50
    over = threading.Event()

    def call() -> list[int]:
        statuses = []
        while not over.is_set():
            statuses.append(container.invoke(body, Content_Type=CSV, Accept=CSV).status)
        return statuses

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(call) for _ in range(4)]
        try:
            for _ in range(100):
                probe = container.ask("GET", "/ping")
                assert (probe.status, probe.body) == (200, b"")
        finally:
            over.set()
        statuses = [status for each in calls for status in each.result(LIMIT_S)]
    assert set(statuses) == {200}


def test_loading_container_answers_probes_in_time_and_then_serves(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "model", "gate", 3.0)
    variables = {"TRIDENT_SAGEMAKER_MODEL_ROOT": str(tmp_path / "model")}
    with SageMakerContainer(tmp_path / "log", ready=False, **variables) as container:
        for _ in range(20):
            probe = container.ask("GET", "/ping")
            assert probe.status == 503
            assert json.loads(probe.body)["phase"] in ("starting", "loading")
        assert container.invoke(ROW, Content_Type=CSV).status == 503
        gate.open()
        until(lambda: container.ask("GET", "/ping").status == 200, container.log_text)
        answer = container.invoke(ROW, Content_Type=CSV, Accept=CSV)
        assert numbers(answer.body) == [[3, 6, 9, 12]]


# --- the largest bodies of batch transform, whole and in chunks, and larger ones


ROW_WIDTH = 1024
LARGEST = 100 << 20
CHUNK = 65_537


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of an identity model."""
    folder = tmp_path_factory.mktemp("model")
    write_version(identity("FP32", ["n", ROW_WIDTH]), folder, "wide", identity_config("FP32", [ROW_WIDTH], 512))
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
    rows = (size - 1024) // (4 * ROW_WIDTH)
    return bytes(write_npy(np.arange(rows * ROW_WIDTH, dtype="<f4").reshape(-1, ROW_WIDTH)))


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
        assert status == 413
        text = json.loads(answer)["error"]
        assert text.startswith((f"the body of {LARGEST + 1} bytes exceeds", f"the body of more than {LARGEST} bytes"))
        assert container.ask("GET", "/ping").status == 200
