"""A container of one model: batch transform, mistakes of callers, probes and the end.

Every exchange must keep the platform's limits. Source: docs/spec/sagemaker.md sections A1, A2 and A6.
"""

from __future__ import annotations

import io
import json
import pickle
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.lifecycle.changing_models import WIDTH, Gate
from tests.contract.sagemaker.sagemaker_container import LIMIT_S, SageMakerContainer
from tests.unit.onnx_models import identity, slow, write_version
from tests.unit.onnx_serving import identity_config
from tests.waiting import until
from trident.app.emulators.container import ContainerFault
from trident.core.http.payloads.arrays import write_npy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("http_workers")]

CSV = "text/csv"
LINES = "application/jsonlines"
JSON = "application/json"
NPY = "application/x-npy"
NPZ = "application/x-npz"
OCTETS = "application/octet-stream"
BINARY = "application/vnd.sagemaker-triton.binary+json"
ROW = b"1,2,3,4\n"
V2 = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, WIDTH], "data": [1.0, 2.0, 3.0, 4.0]}]}
).encode()


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


def assert_serves(container: SageMakerContainer) -> None:
    answer = container.invoke(ROW, Content_Type=CSV, Accept=CSV)
    assert (answer.status, numbers(answer.body)) == (200, [[1, 2, 3, 4]])


def numbers(body: bytes) -> list[list[float]]:
    """The rows of a CSV answer."""
    return [[float(cell) for cell in line.split(",")] for line in body.decode().splitlines()]


# --- batch transform


def test_execution_parameters_are_the_jobs(container: SageMakerContainer) -> None:
    assert json.loads(container.ask("GET", "/execution-parameters").body) == {
        "MaxConcurrentTransforms": 2,
        "BatchStrategy": "SINGLE_RECORD",
        "MaxPayloadInMB": 20,
    }


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


@pytest.mark.parametrize("content_type", [CSV, LINES])
def test_single_record_bodies_are_answered_with_one_line(container: SageMakerContainer, content_type: str) -> None:
    with ThreadPoolExecutor(2) as pool:  # the number in /execution-parameters
        answers = list(
            pool.map(
                lambda line: container.invoke(line, Content_Type=content_type, Accept=CSV),
                as_lines(content_type, RECORDS[:50]),
            )
        )
    assert [numbers(answer.body) for answer in answers] == [[record] for record in RECORDS[:50]]


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_records_may_cross_chunks(container: SageMakerContainer, size: int) -> None:
    body = b"".join(as_lines(CSV, RECORDS[:100]))
    chunks = (body[begin : begin + size] for begin in range(0, len(body), size))
    status, answer = container.invoke_chunked(chunks, Content_Type=CSV, Accept=CSV)
    assert (status, numbers(answer)) == (200, RECORDS[:100])


def test_body_of_a_batch_transforms_size_is_accepted(container: SageMakerContainer) -> None:
    array = np.ones((20 << 20) // 16, "<f4").repeat(WIDTH).reshape(-1, WIDTH)
    body = np_bytes(array)
    assert len(body) > 19 << 20
    answer = container.invoke(body, Content_Type=NPY, Accept=NPY)
    assert answer.status == 200, answer.text[:200]
    np.testing.assert_array_equal(np.load(io.BytesIO(answer.body)), array)


def np_bytes(array: Any) -> bytes:
    return bytes(write_npy(array))


# --- mistakes of callers


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def zipped(content: bytes, name: str = "INPUT0.npy") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(name, content)
    return file.getvalue()


def bomb() -> bytes:
    """A small npz file of an array of 256 MiB."""
    return zipped(np_bytes(np.zeros((1 << 24, WIDTH), "<f4")))


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (ROW, {"Content_Type": "x" * 1000}, 400, ""),
        (b'{"instances": [[1, 2, 3', {"Content_Type": JSON}, 400, ""),
        (ROW, {"Content_Type": CSV, "Accept": "image/png"}, 406, "application/json"),
        (b"[1, 2, 3, 4]\n[1, 2]\n", {"Content_Type": LINES}, 400, ""),
        (V2, {"Content_Type": f"{BINARY};json-header-size={len(V2) + 1}"}, 400, ""),
        (ROW, {"Content_Type": CSV, "X_Amzn_SageMaker_Inference_Id": "i" * 65}, 400, "Inference-Id"),
        (ROW, {"Content_Type": CSV, "X_Amzn_SageMaker_Custom_Attributes": "a" * 1025}, 400, "Custom-Attributes"),
    ],
)
def test_mistake_is_refused_with_its_reason(
    container: SageMakerContainer, body: bytes, headers: dict[str, str], status: int, text: str
) -> None:
    """The other mistakes are in test_bad_input.py."""
    answer = container.invoke(body, **headers)
    assert (answer.status, list(json.loads(answer.body))) == (status, ["error"]), answer.text
    assert len(json.loads(answer.body)["error"]) > 10
    assert text in answer.text
    assert_serves(container)


def test_objects_are_not_unpickled(container: SageMakerContainer, tmp_path: Path) -> None:
    trap = np.array([Trap(tmp_path / "sprung")], dtype=object)
    for content_type, body in ((NPY, pickled(trap)), (NPZ, zipped(pickled(trap))), (NPY, pickle.dumps(trap))):
        answer = container.invoke(body, Content_Type=content_type)
        assert answer.status == 400, answer.text
    assert not (tmp_path / "sprung").exists()
    assert_serves(container)


def pickled(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def test_decompression_bomb_is_refused(container: SageMakerContainer) -> None:
    body = bomb()
    assert len(body) < 1 << 20
    answer = container.invoke(body, Content_Type=NPZ)
    assert answer.status == 400, answer.text
    assert f"at most {100 << 20} are allowed" in answer.text
    assert_serves(container)


@pytest.mark.parametrize("content_type", [JSON, OCTETS, CSV])
def test_v2_json_is_understood_under_other_types(container: SageMakerContainer, content_type: str) -> None:
    answer = container.invoke(V2, Content_Type=content_type)
    assert answer.status == 200, answer.text
    assert json.loads(answer.body)["outputs"][0]["data"] == [1, 2, 3, 4]


def test_unknown_headers_are_ignored(container: SageMakerContainer) -> None:
    unknown = {
        "X_Amzn_SageMaker_Something_New": "1",
        "X_Amzn_Trace_Id": "Root=1",
        "Inference_Header_Content_Length": "7",
    }
    answer = container.invoke(ROW, Content_Type=CSV, Accept=CSV, **unknown)
    assert (answer.status, numbers(answer.body)) == (200, [[1, 2, 3, 4]])


@pytest.mark.parametrize("path", ["/", "/v2/models/rows/infer", "/invocations/../ping", "/models", "/%69nvocations"])
def test_unknown_route_is_a_404(container: SageMakerContainer, path: str) -> None:
    answer = container.ask("POST", path, ROW, Content_Type=CSV)
    assert answer.status == 404, answer.text
    assert_serves(container)


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


def test_sigterm_lets_requests_in_flight_finish(tmp_path: Path) -> None:
    write_version(slow(), tmp_path / "model", "slow")
    variables = {"TRIDENT_SAGEMAKER_MODEL_ROOT": str(tmp_path / "model")}
    with SageMakerContainer(tmp_path / "log", **variables) as container:
        body = np_bytes(np.zeros(slow_shape(), "<f4"))
        answered = threading.Event()

        def call() -> list[int | str]:
            found: list[int | str] = []
            while True:
                try:
                    found.append(container.invoke(body, Content_Type=NPY, Accept=NPY).status)
                except ContainerFault as fault:
                    return [*found, str(fault)]
                answered.set()

        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(call) for _ in range(4)]
            assert answered.wait(LIMIT_S)
            assert container.stop() == 0
            outcomes = [call.result(LIMIT_S) for call in calls]
    for *statuses, last in outcomes:
        assert set(statuses) <= {200, 503}  # a whole answer, or a true reason
        assert "did not accept a connection" in str(last) or "closed the connection" in str(last)


def slow_shape() -> tuple[int, ...]:
    (given,) = slow().graph.input
    return tuple(dim.dim_value or 1 for dim in given.type.tensor_type.shape.dim)
