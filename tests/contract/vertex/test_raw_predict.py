"""Raw predict over the container's socket: the v2 protocol, its binary tensors, and every other format.

Source: docs/spec/vertex.md section B4.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import requests

from tests.contract.servers.ports import HOST
from tests.contract.vertex.vertex_container import LIMIT_S, PREDICT, Answer, VertexContainer
from tests.contract.vertex.vertex_models import ROWS, serving
from trident.adapters.vertex.predict import BINARY
from trident.core.http.payloads.arrays import write_npy

pytestmark = pytest.mark.slow

JSON = "application/json"
CSV = "text/csv"
LINES = "application/jsonlines"
NPY = "application/x-npy"
NPZ = "application/x-npz"
OCTETS = "application/octet-stream"
TABLE = np.arange(20 * ROWS, dtype=np.float32).reshape(20, ROWS)


@pytest.fixture(scope="module")
def container(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexContainer]:
    with serving(tmp_path_factory) as made:
        yield made


def v2(array: Any, binary_output: bool = False, **more: Any) -> dict[str, Any]:
    """A request of the v2 protocol for `rows`, whose tensor follows in binary."""
    given = {
        "name": "INPUT0",
        "datatype": "FP32",
        "shape": list(array.shape),
        "parameters": {"binary_data_size": array.nbytes},
    }
    return {"inputs": [given], "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": binary_output}}], **more}


def tensor_of(answer: Answer) -> Any:
    """The only output of a binary answer."""
    size = int(answer.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(answer.body[:size])["outputs"]
    return np.frombuffer(answer.body[size:], "<f4").reshape(output["shape"])


# --- v2


def test_v2_json_is_answered(container: VertexContainer) -> None:
    given = {"name": "INPUT0", "datatype": "FP32", "shape": [20, ROWS], "data": TABLE.tolist()}
    answer = container.post({"id": "7", "inputs": [given]})
    assert answer.headers["Content-Type"] == JSON
    assert (answer.document["id"], answer.document["model_name"]) == ("7", "rows")
    (output,) = answer.document["outputs"]
    assert np.array_equal(np.array(output["data"], np.float32).reshape(output["shape"]), TABLE)


@pytest.mark.parametrize(
    "spelled", ["{}", "{};charset=utf-8", "text/plain", OCTETS, "application/x-www-form-urlencoded"]
)
def test_v2_json_is_understood_under_other_types(container: VertexContainer, spelled: str) -> None:
    given = {"name": "INPUT0", "datatype": "FP32", "shape": [1, ROWS], "data": [1.0] * ROWS}
    answer = container.post({"inputs": [given]}, Content_Type=spelled.format(JSON))
    assert (answer.status, answer.document["outputs"][0]["data"]) == (200, [1.0] * ROWS)


@pytest.mark.parametrize("rows", [1, 256])
def test_binary_request_and_response_have_different_types(container: VertexContainer, rows: int) -> None:
    array = np.arange(rows * ROWS, dtype="<f4").reshape(rows, ROWS)
    header = json.dumps(v2(array, binary_output=True)).encode()
    answer = container.post(header + array.tobytes(), Content_Type=BINARY.of(len(header)))
    assert (answer.status, answer.headers["Content-Type"]) == (200, OCTETS)
    assert np.array_equal(tensor_of(answer), array)


def test_binary_request_is_answered_with_json(container: VertexContainer) -> None:
    header = json.dumps(v2(TABLE)).encode()
    answer = container.post(header + TABLE.tobytes(), Content_Type=BINARY.of(len(header)))
    assert (answer.headers["Content-Type"], answer.headers["Inference-Header-Content-Length"]) == (JSON, None)
    assert np.array_equal(np.array(answer.document["outputs"][0]["data"], np.float32), TABLE.ravel())


def test_json_request_is_answered_with_binary(container: VertexContainer) -> None:
    given = {"name": "INPUT0", "datatype": "FP32", "shape": [20, ROWS], "data": TABLE.tolist()}
    answer = container.post({"inputs": [given], "parameters": {"binary_data_output": True}})
    assert answer.headers["Content-Type"] == OCTETS
    assert np.array_equal(tensor_of(answer), TABLE)


def test_body_without_json_is_one_tensor(container: VertexContainer) -> None:
    answer = container.post(TABLE[:1].tobytes(), Content_Type=BINARY.of(0))
    assert np.array_equal(tensor_of(answer), TABLE[:1])


def test_tritons_header_is_ignored(container: VertexContainer) -> None:
    header = json.dumps(v2(TABLE)).encode()
    body = header + TABLE.tobytes()
    answer = container.post(body, Content_Type=BINARY.of(len(header)), Inference_Header_Content_Length="1")
    assert answer.status == 200
    answer = container.post(body, Content_Type=OCTETS, Inference_Header_Content_Length=str(len(header)))
    assert answer.status == 400
    assert answer.error


@pytest.mark.parametrize(
    "size", ["-1", "-2147483648", "2147483647", "100000", "99999999999999999999", "0x10", "1e2", "many", ""]
)
def test_impossible_length_is_refused(container: VertexContainer, size: str) -> None:
    header = json.dumps(v2(TABLE)).encode()
    answer = container.post(header + TABLE.tobytes(), Content_Type=f"{BINARY.prefix}{size}")
    assert answer.status == 400
    assert "inference header size should be in range" in answer.error or "json-header-size=N" in answer.error


@pytest.mark.parametrize("more", [-1, 1])
def test_length_that_is_off_by_one_is_refused(container: VertexContainer, more: int) -> None:
    header = json.dumps(v2(TABLE)).encode()
    answer = container.post(header + TABLE.tobytes(), Content_Type=BINARY.of(len(header) + more))
    assert answer.status == 400
    assert "failed to parse the request JSON buffer" in answer.error


@pytest.mark.parametrize("cut", [1, 4, 2400])
def test_tensor_that_is_cut_short_is_refused(container: VertexContainer, cut: int) -> None:
    header = json.dumps(v2(TABLE)).encode()
    answer = container.post((header + TABLE.tobytes())[:-cut], Content_Type=BINARY.of(len(header)))
    assert (answer.status, "unexpected size for input 'INPUT0'" in answer.error) == (400, True)


# --- other formats


def bodies() -> dict[str, bytes]:
    file = io.BytesIO()
    np.savez(file, INPUT0=TABLE)
    return {
        JSON: json.dumps(TABLE.tolist()).encode(),
        CSV: b"".join(b"%s\n" % ",".join(map(str, row)).encode() for row in TABLE.tolist()),
        LINES: b"".join(json.dumps(row).encode() + b"\n" for row in TABLE.tolist()),
        "application/x-ndjson": b"".join(json.dumps({"INPUT0": row}).encode() + b"\r\n" for row in TABLE.tolist()),
        NPY: bytes(write_npy(TABLE)),
        NPZ: file.getvalue(),
        OCTETS: TABLE.tobytes(),
    }


def read(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    essence = answer.headers["Content-Type"].partition(";")[0]
    if essence == JSON:
        found = answer.document
        return np.array(found["predictions"] if isinstance(found, dict) else found, np.float32)
    if essence == CSV:
        return np.loadtxt(io.BytesIO(answer.body), np.float32, delimiter=",", ndmin=2)
    if essence == LINES:
        return np.array([json.loads(line) for line in answer.body.splitlines()], np.float32)
    loaded = np.load(io.BytesIO(answer.body), allow_pickle=False)
    return loaded["OUTPUT0"] if essence == NPZ else loaded


# Each format is read once and written at least once; reading knows nothing of writing.
@pytest.mark.parametrize(
    ("content_type", "accept"),
    [
        (JSON, NPZ),
        (CSV, LINES),
        (LINES, CSV),
        ("application/x-ndjson", NPY),
        (NPY, CSV),
        (NPZ, JSON),
        (OCTETS, NPY),
    ],
)
def test_formats_are_read_and_written(container: VertexContainer, content_type: str, accept: str) -> None:
    answer = container.post(bodies()[content_type], Content_Type=content_type, Accept=accept)
    assert answer.headers["Content-Type"] == accept
    assert np.array_equal(read(answer), TABLE)


@pytest.mark.parametrize("content_type", [CSV, NPZ, OCTETS])
def test_answer_is_json_without_an_accept_header(container: VertexContainer, content_type: str) -> None:
    answer = container.post(bodies()[content_type], Content_Type=content_type)
    assert answer.headers["Content-Type"] == JSON
    assert np.array_equal(read(answer), TABLE)


def test_accept_header_of_a_browser_is_understood(container: VertexContainer) -> None:
    accept = "text/html,application/xhtml+xml;q=0.9,text/csv;q=0.5,*/*;q=0.1"
    assert container.post(bodies()[NPY], Content_Type=NPY, Accept=accept).headers["Content-Type"] == CSV


def test_predict_answers_json_whatever_the_accept_header_says(container: VertexContainer) -> None:
    for accept in (CSV, "image/png", NPY):
        answer = container.post({"instances": TABLE.tolist()}, Accept=accept)
        assert np.array_equal(np.array(answer.document["predictions"], np.float32), TABLE)


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (b"1,2", {"Content_Type": "image/png"}, 415, "application/vnd.vertex-ai-triton.binary+json;json-header-size=N"),
        (b"1,2", {"Content_Type": "text/csv;charset=utf-16"}, 415, "charset"),
        (b"1,2", {"Content_Type": "nonsense"}, 400, "Content-Type"),
        (bodies()[CSV], {"Content_Type": CSV, "Accept": "image/png"}, 406, "text/csv"),
        (b"1,2\n", {"Content_Type": CSV}, 400, "row 1"),
        (b"[1,2]\n", {"Content_Type": LINES}, 400, "line 1"),
        (b"\x93NUMPY", {"Content_Type": NPY}, 400, ""),
        (b"PK", {"Content_Type": NPZ}, 400, ""),
        (b"\0" * 7, {"Content_Type": OCTETS}, 400, "multiple of 120 bytes"),
        (b"", {"Content_Type": NPY}, 400, "the body is empty"),
    ],
)
def test_mistake_is_refused_with_its_reason(
    container: VertexContainer, body: bytes, headers: dict[str, str], status: int, text: str
) -> None:
    answer = container.post(body, **headers)
    assert answer.status == status, answer.body
    assert text in answer.error


# --- compression, chunks


def test_bodies_are_compressed_both_ways(container: VertexContainer) -> None:
    body = json.dumps({"instances": TABLE.tolist()}).encode()
    answer = container.post(gzip.compress(body), Content_Encoding="gzip", Accept_Encoding="gzip")
    assert answer.headers["Content-Encoding"] == "gzip"
    predictions = json.loads(gzip.decompress(answer.body))["predictions"]
    assert np.array_equal(np.array(predictions, np.float32), TABLE)
    answer = container.post(zlib.compress(body), Content_Encoding="deflate", Accept_Encoding="identity")
    assert np.array_equal(np.array(answer.document["predictions"], np.float32), TABLE)
    header = json.dumps(v2(TABLE, binary_output=True)).encode()
    binary = gzip.compress(header + TABLE.tobytes())
    answer = container.post(binary, Content_Type=BINARY.of(len(header)), Content_Encoding="gzip")
    assert np.array_equal(tensor_of(answer), TABLE)


@pytest.mark.parametrize(
    ("body", "encoding", "status", "text"),
    [
        (b"no gzip", "gzip", 400, ""),
        (gzip.compress(b"x" * 1000)[:-20], "gzip", 400, ""),
        (gzip.compress(b"0" * (80 << 20)), "gzip", 400, "exceeds the maximum allowed value of 67108864 bytes"),
        (b"{}", "br", 415, ""),
    ],
)
def test_broken_compression_is_refused(
    container: VertexContainer, body: bytes, encoding: str, status: int, text: str
) -> None:
    answer = container.post(body, Content_Encoding=encoding)
    assert (answer.status, text in answer.error) == (status, True)
    assert container.health_status() == 200


def test_chunked_body_is_read(container: VertexContainer) -> None:
    body = json.dumps({"instances": TABLE.tolist()}).encode()
    chunks = (body[start : start + 100] for start in range(0, len(body), 100))
    url = f"http://{HOST}:{container.port}{PREDICT}"
    answer = requests.post(url, data=chunks, headers={"Content-Type": JSON}, timeout=LIMIT_S)
    assert np.array_equal(np.array(answer.json()["predictions"], np.float32), TABLE)
