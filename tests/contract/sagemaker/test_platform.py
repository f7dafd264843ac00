"""One model, as the platform serves it: probes, batch transform, what callers send by mistake, and the end.

Every exchange is under the platform's limits. Source: docs/spec/sagemaker.md sections A1, A2 and A6.
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

from app.emulators.common.container_client import ContainerFault
from core.http.payloads.arrays.npy import write_npy
from tests.contract.lifecycle.changing_models import WIDTH, Gate
from tests.contract.sagemaker.sagemaker_container import LIMIT_S, SageMakerContainer
from tests.unit.onnx_models import identity, slow, write_version
from tests.unit.onnx_serving import identity_config
from tests.waiting import until

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
    """A batch transform's container: the model answers with its input, four numbers a record, 512 at once."""
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
    """The lines of a CSV answer."""
    return [[float(cell) for cell in line.split(",")] for line in body.decode().splitlines()]


# --- batch transform


def test_what_batch_transform_asks_first(container: SageMakerContainer) -> None:
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


@pytest.mark.parametrize("accept", [CSV, LINES])
@pytest.mark.parametrize("content_type", [CSV, LINES])
def test_multi_record_bodies_keep_one_record_a_line_in_order(
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
def test_single_record_bodies_have_a_line_each(container: SageMakerContainer, content_type: str) -> None:
    with ThreadPoolExecutor(2) as pool:  # as many as /execution-parameters says
        answers = list(
            pool.map(
                lambda line: container.invoke(line, Content_Type=content_type, Accept=CSV),
                as_lines(content_type, RECORDS[:50]),
            )
        )
    assert [numbers(answer.body) for answer in answers] == [[record] for record in RECORDS[:50]]


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_chunks_need_not_end_where_records_do(container: SageMakerContainer, size: int) -> None:
    body = b"".join(as_lines(CSV, RECORDS[:100]))
    chunks = (body[begin : begin + size] for begin in range(0, len(body), size))
    status, answer = container.invoke_chunked(chunks, Content_Type=CSV, Accept=CSV)
    assert (status, numbers(answer)) == (200, RECORDS[:100])


def test_a_body_of_a_batch_transforms_size_is_taken(container: SageMakerContainer) -> None:
    array = np.ones((20 << 20) // 16, "<f4").repeat(WIDTH).reshape(-1, WIDTH)
    body = np_bytes(array)
    assert len(body) > 19 << 20
    answer = container.invoke(body, Content_Type=NPY, Accept=NPY)
    assert answer.status == 200, answer.text[:200]
    np.testing.assert_array_equal(np.load(io.BytesIO(answer.body)), array)


def np_bytes(array: Any) -> bytes:
    return bytes(write_npy(array))


# --- what callers send


class Trap:
    """Makes a file when it is unpickled."""

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
    """An npz of kilobytes that is an array of 256 MiB."""
    return zipped(np_bytes(np.zeros((1 << 24, WIDTH), "<f4")))


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (ROW, {"Content_Type": "image/png"}, 415, "text/csv"),
        (ROW, {"Content_Type": "text/csv; charset=utf-16"}, 415, "charset"),
        (ROW, {"Content_Type": ";;;"}, 400, ""),
        (ROW, {"Content_Type": "x" * 1000}, 400, ""),
        (ROW, {}, 400, "INPUT0"),
        (ROW, {"Content_Type": OCTETS}, 400, "INPUT0"),
        (ROW, {"Content_Type": JSON}, 400, ""),
        (ROW, {"Content_Type": NPY}, 400, "numpy's format"),
        (ROW, {"Content_Type": NPZ}, 400, "npz"),
        (b"\x00\xff\xfe", {"Content_Type": CSV}, 400, ""),
        (b'{"instances": [[1, 2, 3', {"Content_Type": JSON}, 400, ""),
        (b'{"a": [1, 2, 3, 4]}', {"Content_Type": CSV}, 400, "row 1"),
        (ROW, {"Content_Type": CSV, "Accept": "image/png"}, 406, "application/json"),
        (ROW, {"Content_Type": CSV, "Accept": "text/csv;q=0"}, 406, ""),
        (b"", {"Content_Type": CSV}, 400, "the body is empty"),
        (b"", {"Content_Type": JSON}, 400, "the body is empty"),
        (b"", {}, 400, "the body is empty"),
        (b"1,2,3,4\n1,2,3\n", {"Content_Type": CSV}, 400, "row 2"),
        (b"1,2,3,4\n1,2,three,4\n", {"Content_Type": CSV}, 400, "row 2"),
        (b"1,2,3,4\n1,2,three,4\n", {"Content_Type": CSV}, 400, "column 3"),
        (b"[1, 2, 3, 4]\n[1, 2]\n", {"Content_Type": LINES}, 400, ""),
        (V2, {"Content_Type": f"{BINARY};json-header-size=-1"}, 400, ""),
        (V2, {"Content_Type": f"{BINARY};json-header-size={10**30}"}, 400, ""),
        (V2, {"Content_Type": f"{BINARY};json-header-size=many"}, 400, ""),
        (V2, {"Content_Type": f"{BINARY};json-header-size={len(V2) + 1}"}, 400, ""),
        (V2, {"Content_Type": f"{BINARY};json-header-size="}, 400, "json-header-size"),
        (V2, {"Content_Type": BINARY}, 400, "json-header-size"),
        (zipped(b"no npy"), {"Content_Type": NPZ}, 400, ""),
        (zipped(ROW, "../../INPUT0.npy"), {"Content_Type": NPZ}, 400, ""),
        (ROW, {"Content_Type": CSV, "X_Amzn_SageMaker_Inference_Id": "i" * 65}, 400, "Inference-Id"),
        (ROW, {"Content_Type": CSV, "X_Amzn_SageMaker_Custom_Attributes": "a" * 1025}, 400, "Custom-Attributes"),
    ],
)
def test_a_mistake_is_answered_with_what_to_do(
    container: SageMakerContainer, body: bytes, headers: dict[str, str], status: int, text: str
) -> None:
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


def test_an_archive_that_swells_is_refused_before_it_is_held(container: SageMakerContainer) -> None:
    body = bomb()
    assert len(body) < 1 << 20
    answer = container.invoke(body, Content_Type=NPZ)
    assert answer.status == 400, answer.text
    assert f"at most {100 << 20} are allowed" in answer.text
    assert_serves(container)


@pytest.mark.parametrize("content_type", [JSON, OCTETS, "text/plain", CSV, "application/x-www-form-urlencoded"])
def test_v2_json_is_understood_under_other_names(container: SageMakerContainer, content_type: str) -> None:
    answer = container.invoke(V2, Content_Type=content_type)
    assert answer.status == 200, answer.text
    assert json.loads(answer.body)["outputs"][0]["data"] == [1, 2, 3, 4]


def test_headers_that_nobody_knows_are_ignored(container: SageMakerContainer) -> None:
    unknown = {
        "X_Amzn_SageMaker_Something_New": "1",
        "X_Amzn_Trace_Id": "Root=1",
        "Inference_Header_Content_Length": "7",
    }
    answer = container.invoke(ROW, Content_Type=CSV, Accept=CSV, **unknown)
    assert (answer.status, numbers(answer.body)) == (200, [[1, 2, 3, 4]])


@pytest.mark.parametrize("path", ["/", "/v2/models/rows/infer", "/invocations/../ping", "/models", "/%69nvocations"])
def test_what_is_no_route_lists_those_there_are(container: SageMakerContainer, path: str) -> None:
    answer = container.ask("POST", path, ROW, Content_Type=CSV)
    assert answer.status == 404, answer.text
    assert_serves(container)


# --- probes and the end


def test_probes_are_in_time_under_load(container: SageMakerContainer) -> None:
    """Bodies of a megabyte from more callers than there are cores; the probes' limits are those of `ask`."""
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


def test_a_container_that_loads_says_so_in_time_and_then_serves(tmp_path: Path) -> None:
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


def test_sigterm_under_load_answers_what_was_taken_and_ends_in_time(tmp_path: Path) -> None:
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
        assert set(statuses) <= {200, 503}  # never half an answer, never an error that is a lie
        assert "did not accept a connection" in str(last) or "closed the connection" in str(last)


def slow_shape() -> tuple[int, ...]:
    (given,) = slow().graph.input
    return tuple(dim.dim_value or 1 for dim in given.type.tensor_type.shape.dim)
