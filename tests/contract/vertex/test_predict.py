"""The predict route of a running container: instances and predictions, batch jobs, raw predict and bad requests.

Source: docs/spec/vertex.md sections A5, B4 and D points 1 to 7. What each format and each wrong value means is tested
without a server; here is that it passes through the socket, the front end and a real model.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import random
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import requests

from tests.contract.servers.ports import HOST
from tests.contract.vertex.vertex_container import HEALTH, LIMIT_S, PREDICT, Answer, VertexContainer
from tests.contract.vertex.vertex_models import DATATYPES, ROWS, identity_name, serving
from trident.adapters.vertex.predict import BINARY
from trident.core.http.payloads.arrays import write_npy
from trident.core.inference.tensors import BY_NAME

pytestmark = pytest.mark.slow

JSON = "application/json"
CSV = "text/csv"
LINES = "application/jsonlines"
NPY = "application/x-npy"
NPZ = "application/x-npz"
OCTETS = "application/octet-stream"
ROW = [1.0] * ROWS
TABLE = np.arange(20 * ROWS, dtype=np.float32).reshape(20, ROWS)
PAIR = {"INPUT0": [10, 20, 30, 40], "INPUT1": [1, 2, 3, 4]}
SUM = {"OUTPUT0": [11, 22, 33, 44], "OUTPUT1": [9, 18, 27, 36]}
NOT_FINITE = ["NaN", "Infinity", "-Infinity"]


@pytest.fixture(scope="module")
def running(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexContainer]:
    with serving(tmp_path_factory) as made:
        yield made
        # Only a model's own failure is an error in the log.
        errors = [line for line in made.log_text().splitlines() if line.startswith(("E0", "E1"))]
        assert all(": 500 onnx runtime error 2" in line for line in errors), errors


@pytest.fixture
def container(running: VertexContainer) -> Iterator[VertexContainer]:
    """After each test the container serves, in the same process."""
    pid = running.process.pid
    yield running
    assert running.health_status() == 200
    assert running.predictions([ROW, ROW]) == [ROW, ROW]
    assert running.process.pid == pid


def b64(content: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(content).decode()}


def assert_refused(answer: Answer, text: str = "", status: int = 400) -> None:
    assert answer.status == status, answer.body[:300]
    assert answer.headers["Content-Type"] == JSON
    assert text in answer.error
    assert 10 < len(answer.error) < 2000


# --- datatypes


def rows_of(datatype: str) -> list[list[Any]]:
    """Two instances with the extremes of the datatype."""
    if datatype == "BOOL":
        return [[True, False, True], [False, False, True]]
    if datatype == "BYTES":
        return [["", "text", "Grüße 🌍"], ["a\x00b", '"', "\\"]]
    if datatype in ("FP16", "FP32", "FP64", "BF16"):
        return [[0.0, -1.5, 1024.0], [0.25, 3.0, -2.0]]
    limits = np.iinfo(BY_NAME[datatype].dtype)
    return [[int(limits.min), int(limits.max), 0], [1, 2, 3]]


def raw(datatype: str, row: list[Any]) -> bytes:
    """The row as little-endian bytes."""
    if datatype == "BF16":
        return np.array(row, "<f4").view("<u2")[1::2].tobytes()
    return np.array(row, BY_NAME[datatype].dtype.newbyteorder("<")).tobytes()


@pytest.mark.parametrize("datatype", DATATYPES)
def test_values_come_back_as_they_were(container: VertexContainer, datatype: str) -> None:
    """As numbers and as raw bytes. The types too: true is not 1, and 1.0 is not 1."""
    rows = rows_of(datatype)
    asked: list[list[Any]] = [[{"INPUT0": row} for row in rows]]
    if datatype != "BYTES":
        asked.append([b64(raw(datatype, row)) for row in rows])
    for instances in asked:
        answered = container.predictions(instances, model=identity_name(datatype))
        assert json.dumps(answered) == json.dumps(rows)


def test_special_values_have_their_spellings(container: VertexContainer) -> None:
    """NaN is a string both ways, also where Python's json module wrote it bare; bytes are text if they are UTF-8."""
    body = f'{{"instances":[[NaN,Infinity,-Infinity]],"parameters":{{"model":"{identity_name("FP32")}"}}}}'
    assert container.post(body.encode()).document == {"predictions": [NOT_FINITE]}
    for datatype in ("FP16", "BF16"):
        assert container.predictions([NOT_FINITE], model=identity_name(datatype)) == [NOT_FINITE]
    sent = [b64(b"\xff\xfe"), b64(b"text"), b64(b"")]
    assert container.predictions([sent], model=identity_name("BYTES")) == [[b64(b"\xff\xfe"), "text", ""]]


# --- instances


def test_answer_is_one_json_document(container: VertexContainer) -> None:
    answer = container.post({"instances": [[1.5] * ROWS]})
    assert (answer.headers["Content-Type"], answer.document) == (JSON, {"predictions": [[1.5] * ROWS]})


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("count", [1, 256, 257, 1000])  # the model takes 256 at once
def test_order_is_kept_over_batches(container: VertexContainer, count: int, named: bool) -> None:
    rows = np.arange(count * ROWS, dtype=np.float32).reshape(count, ROWS)
    instances = [{"INPUT0": row} for row in rows.tolist()] if named else rows.tolist()
    np.testing.assert_array_equal(np.array(container.predictions(instances), np.float32), rows)


def test_model_that_does_not_batch_keeps_the_order(container: VertexContainer) -> None:
    instances = [[float(n)] * (n % 5 + 1) for n in range(400)]
    assert container.predictions(instances, model="single") == instances


@pytest.mark.parametrize(
    ("model", "instances", "expected"),
    [
        ("scalar", [1.0, 2.0, 3.0], [[1.0], [2.0], [3.0]]),
        ("scalar", [[1.0], [2.0]], [[1.0], [2.0]]),
        ("text", [["a"], ["b"]], None),
        ("text", ["a", "b"], [["a"], ["b"]]),
        ("single", [[1.0], [2.0, 3.0], []], None),
        ("variable", [[1.0, 2.0], [3.0, 4.0]], None),
        ("matrix", [[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]] * 9, None),
        ("own_batch", [[1.0, 2.0], [3.0, 4.0]], None),
        ("own_batch", [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]], None),
    ],
)
def test_instances_of_many_shapes_are_answered(
    container: VertexContainer, model: str, instances: list[Any], expected: list[Any] | None
) -> None:
    for asked in (instances, [{"INPUT0": each} for each in instances]):
        assert container.predictions(asked, model=model) == (expected or instances)


def test_objects_have_input_and_output_names(container: VertexContainer) -> None:
    turned = dict(reversed(PAIR.items()))
    mixed = {"INPUT0": PAIR["INPUT0"], "INPUT1": b64(np.array(PAIR["INPUT1"], "<i4").tobytes())}
    for instances in ([PAIR, turned] * 10, [mixed] * 3):
        assert container.predictions(instances, model="add_sub") == [SUM] * len(instances)
    answered = container.predictions([[n, 1, 1, 1] for n in range(9)], model="two_outputs")
    assert answered == [{"NEGATED": [-n, -1, -1, -1], "TOTAL": [n + 3]} for n in range(9)]


def test_outputs_can_be_selected(container: VertexContainer) -> None:
    for outputs in (["OUTPUT1"], "OUTPUT1"):
        assert container.predictions([PAIR], model="add_sub", outputs=outputs) == [[9, 18, 27, 36]]
    for outputs in ([], ["OUTPUT1", "OUTPUT0"]):
        assert container.predictions([PAIR], model="add_sub", outputs=outputs) == [SUM]
    parameters = {"model": "add_sub", "outputs": ["OUTPUT0", "OUTPUT2"]}
    assert_refused(container.post({"instances": [PAIR], "parameters": parameters}), "'OUTPUT2'")


def test_columns_and_bare_lists_are_answered_in_their_form(container: VertexContainer) -> None:
    """TensorFlow Serving's columns, which only rawPredict passes on."""
    columns = {name: [value, value] for name, value in PAIR.items()}
    answer = container.post(
        {"inputs": columns, "parameters": {"model": "add_sub"}, "signature_name": "serving_default"}
    )
    assert answer.document == {"outputs": {name: [value, value] for name, value in SUM.items()}}
    assert container.post([[1.0] * ROWS, [2.0] * ROWS]).document == [[1.0] * ROWS, [2.0] * ROWS]


@pytest.mark.parametrize(("version", "factor"), [(None, 20), (2, 20), (1, 10), ("1", 10), (1.0, 10), (-1, 20)])
def test_requested_version_answers(container: VertexContainer, version: Any, factor: int) -> None:
    parameters = {} if version is None else {"version": version}
    assert container.predictions([[1, 2, 3, 4]], model="versions", **parameters) == [[factor * n for n in (1, 2, 3, 4)]]


def test_one_failing_instance_fails_the_request(container: VertexContainer) -> None:
    parameters = {"model": "picky", "id": "request 7"}
    answer = container.post({"instances": [[1], [2], [9], [3]], "parameters": parameters})
    assert answer.status in (400, 500)
    assert answer.error
    assert answer.headers["Trident-Request-Id"] == "request 7"
    assert container.predictions([[1], [2], [3]], model="picky") == [[10], [20], [30]]


def test_a_stream_of_a_model_with_one_response_has_an_event(container: VertexContainer) -> None:
    answer = container.post({"instances": [ROW], "parameters": {"stream": True}})
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    assert json.loads(answer.body.removeprefix(b"data: ").removesuffix(b"\n\n")) == {"predictions": [ROW]}


# --- batch jobs: what the platform sends for each kind of input file


@pytest.mark.parametrize(
    ("model", "instances", "expected"),
    [
        ("rows", TABLE.tolist(), TABLE.tolist()),
        # The platform strips the key field only if the job names it.
        ("rows", [{"key": f"id-{n}", "INPUT0": row} for n, row in enumerate(TABLE.tolist())], TABLE.tolist()),
        ("rows", [b64(row.astype("<f4").tobytes()) for row in TABLE], TABLE.tolist()),
        ("identity_int32", [[1.0, 2.0, 3.0], [-4.0, 5.0, 6.0]], [[1, 2, 3], [-4, 5, 6]]),
        ("identity_bytes", [["x", "y, z", 'q"r'], ["", "é", "\n"]], [["x", "y, z", 'q"r'], ["", "é", "\n"]]),
        ("text", [b64(b"text"), b64(b"\x89PNG\x00"), b64(b"")], [["text"], [b64(b"\x89PNG\x00")], [""]]),
        ("text", [{"INPUT0": b64(b"a")}, {"INPUT0": b64(b"b")}], [["a"], ["b"]]),
        ("single", [["NaN"], ["Infinity"]], [["NaN"], ["Infinity"]]),
    ],
    ids=["jsonl", "keys", "raw files", "csv of doubles", "csv of text", "text files", "named files", "missing number"],
)
def test_records_of_a_batch_job_are_predicted(
    container: VertexContainer, model: str, instances: list[Any], expected: list[Any]
) -> None:
    answered = container.predictions(instances, model=model)
    assert answered == expected
    for prediction in answered:  # each must become a line of the job's output
        assert "\n" not in json.dumps(prediction, allow_nan=False)


# --- raw predict


def tensor_of(answer: Answer) -> Any:
    """The only output of a binary answer."""
    assert (answer.status, answer.headers["Content-Type"]) == (200, OCTETS)
    size = int(answer.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(answer.body[:size])["outputs"]
    return np.frombuffer(answer.body[size:], "<f4").reshape(output["shape"])


def v2_header(binary_output: bool) -> bytes:
    """The JSON of a v2 request whose tensor, the table, follows in binary."""
    size = {"binary_data_size": TABLE.nbytes}
    given = {"name": "INPUT0", "datatype": "FP32", "shape": list(TABLE.shape), "parameters": size}
    outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": binary_output}}]
    return json.dumps({"inputs": [given], "outputs": outputs}).encode()


def test_v2_json_is_answered(container: VertexContainer) -> None:
    given = {"name": "INPUT0", "datatype": "FP32", "shape": [20, ROWS], "data": TABLE.tolist()}
    for content_type in (JSON, "text/plain", OCTETS, "application/x-www-form-urlencoded"):
        answer = container.post({"id": "7", "inputs": [given]}, Content_Type=content_type)
        assert answer.headers["Content-Type"] == JSON
        assert (answer.document["id"], answer.document["model_name"]) == ("7", "rows")
        (output,) = answer.document["outputs"]
        assert np.array_equal(np.array(output["data"], np.float32).reshape(output["shape"]), TABLE)
    answer = container.post({"inputs": [given], "parameters": {"binary_data_output": True}})
    assert np.array_equal(tensor_of(answer), TABLE)


def test_binary_tensors_pass_both_ways(container: VertexContainer) -> None:
    header = v2_header(binary_output=True)
    body = header + TABLE.tobytes()
    # Triton's header counts for nothing here.
    answer = container.post(body, Content_Type=BINARY.of(len(header)), Inference_Header_Content_Length="1")
    assert np.array_equal(tensor_of(answer), TABLE)
    assert_refused(container.post(body, Content_Type=OCTETS, Inference_Header_Content_Length=str(len(header))))
    header = v2_header(binary_output=False)
    answer = container.post(header + TABLE.tobytes(), Content_Type=BINARY.of(len(header)))
    assert (answer.headers["Content-Type"], answer.headers["Inference-Header-Content-Length"]) == (JSON, None)
    assert np.array_equal(np.array(answer.document["outputs"][0]["data"], np.float32), TABLE.ravel())
    assert np.array_equal(tensor_of(container.post(TABLE[:1].tobytes(), Content_Type=BINARY.of(0))), TABLE[:1])


@pytest.mark.parametrize(
    ("more", "cut", "text"),
    [
        (-1, 0, "failed to parse the request JSON buffer"),
        (1, 0, "failed to parse the request JSON buffer"),
        (100_000, 0, "inference header size should be in range"),
        (0, 1, "unexpected size for input 'INPUT0'"),
        (0, TABLE.nbytes, "unexpected size for input 'INPUT0'"),
    ],
)
def test_wrong_length_of_a_binary_request_is_refused(
    container: VertexContainer, more: int, cut: int, text: str
) -> None:
    header = v2_header(binary_output=True)
    body = header + TABLE.tobytes()
    answer = container.post(body[: len(body) - cut], Content_Type=BINARY.of(len(header) + more))
    assert_refused(answer, text)


def bodies() -> dict[str, bytes]:
    file = io.BytesIO()
    np.savez(file, INPUT0=TABLE)
    return {
        JSON: json.dumps(TABLE.tolist()).encode(),
        CSV: b"".join(b"%s\n" % ",".join(map(str, row)).encode() for row in TABLE.tolist()),
        LINES: b"".join(json.dumps(row).encode() + b"\n" for row in TABLE.tolist()),
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
    ("content_type", "accept", "answered"),
    [
        (JSON, NPZ, NPZ),
        (CSV, "", JSON),
        (LINES, CSV, CSV),
        (NPY, "text/html,application/xhtml+xml;q=0.9,text/csv;q=0.5,*/*;q=0.1", CSV),  # as a browser asks
        (NPZ, LINES, LINES),
        (OCTETS, NPY, NPY),
    ],
)
def test_formats_are_read_and_written(
    container: VertexContainer, content_type: str, accept: str, answered: str
) -> None:
    headers = {"Accept": accept} if accept else {}
    answer = container.post(bodies()[content_type], Content_Type=content_type, **headers)
    assert answer.headers["Content-Type"] == answered
    assert np.array_equal(read(answer), TABLE)


def test_predict_answers_json_whatever_the_headers_and_the_query_say(container: VertexContainer) -> None:
    body = {"instances": TABLE.tolist()}
    for answer in (
        container.post(body, Accept=CSV),
        container.post(body, Accept="image/png"),
        container.post(body, Content_Type="APPLICATION/JSON; charset=utf-8"),
        container.post(body, f"{PREDICT}?alt=json"),
        container.ask("POST", PREDICT, json.dumps(body).encode()),
    ):
        assert np.array_equal(np.array(answer.document["predictions"], np.float32), TABLE)


def test_bodies_are_compressed_both_ways(container: VertexContainer) -> None:
    body = json.dumps({"instances": TABLE.tolist()}).encode()
    answer = container.post(gzip.compress(body), Content_Encoding="gzip", Accept_Encoding="gzip")
    assert answer.headers["Content-Encoding"] == "gzip"
    predictions = json.loads(gzip.decompress(answer.body))["predictions"]
    assert np.array_equal(np.array(predictions, np.float32), TABLE)
    answer = container.post(zlib.compress(body), Content_Encoding="deflate", Accept_Encoding="identity")
    assert np.array_equal(read(answer), TABLE)
    header = v2_header(binary_output=True)
    binary = gzip.compress(header + TABLE.tobytes())
    answer = container.post(binary, Content_Type=BINARY.of(len(header)), Content_Encoding="gzip")
    assert np.array_equal(tensor_of(answer), TABLE)


def test_chunked_body_is_read(container: VertexContainer) -> None:
    body = json.dumps({"instances": TABLE.tolist()}).encode()
    chunks = (body[start : start + 100] for start in range(0, len(body), 100))
    url = f"http://{HOST}:{container.port}{PREDICT}"
    answer = requests.post(url, data=chunks, headers={"Content-Type": JSON}, timeout=LIMIT_S)
    assert np.array_equal(np.array(answer.json()["predictions"], np.float32), TABLE)


# --- bad requests


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (b"", {}, 400, "the body is empty"),
        (b'{"instances":[[1,2', {}, 400, "unexpected end of data at 18"),
        (b'{"instances":[["\xff"]]}', {}, 400, "failed to parse"),
        (b"{}", {}, 400, "'instances'"),
        (b'{"instances":[[1]],"Parameters":{}}', {}, 400, "unknown member 'Parameters'"),
        (b"1,2", {"Content_Type": "image/png"}, 415, f"{BINARY.prefix}N"),
        (b"1,2", {"Content_Type": "a" * 2000}, 400, "Content-Type"),
        (b"[[1]]", {"Content_Type": OCTETS}, 400, "expected a list of 30, got one of 1"),
        (b"\0" * 7, {"Content_Type": OCTETS}, 400, "multiple of 120 bytes"),
        (b"1,2\n", {"Content_Type": CSV}, 400, "row 1"),
        (b"[1,2]\n", {"Content_Type": LINES}, 400, "line 1"),
        (b"\x93NUMPY", {"Content_Type": NPY}, 400, "numpy"),
        (bodies()[CSV], {"Content_Type": CSV, "Accept": "image/png"}, 406, "text/csv"),
        (b"no gzip", {"Content_Encoding": "gzip"}, 400, "decompress"),
        (gzip.compress(b"0" * (80 << 20)), {"Content_Encoding": "gzip"}, 400, "exceeds the maximum allowed value"),
        (b"{}", {"Content_Encoding": "br"}, 415, "Unsupported compression type"),
    ],
)
def test_bad_body_is_refused_with_its_reason(
    container: VertexContainer, body: bytes, headers: dict[str, str], status: int, text: str
) -> None:
    assert_refused(container.post(body, **headers), text, status)


@pytest.mark.parametrize(
    ("model", "instances", "text"),
    [
        ("rows", [ROW, ROW[:-1]], "instance 1, input 'INPUT0': expected a list of 30, got one of 29"),
        ("rows", [ROW, [*ROW[:-1], "x"]], "instance 1, input 'INPUT0', element [29]"),
        ("rows", [{"INPUT0": ROW}, ROW], "instance 1: expected an object"),
        ("rows", [b64(b"\0" * 120), {"b64": "AAA"}], "instance 1, input 'INPUT0', 'b64': invalid base64"),
        ("rows", [b64(b"\0" * 120), b64(b"\0" * (1 << 20))], "instance 1, input 'INPUT0': expected 120 bytes, got 104"),
        ("rows", [{"x" * 100_000: 1}], "is not an input of model 'rows'"),
        ("rows", ["x" * 100_000], "instance 0"),
        ("variable", [[1, 2], [1, 2, 3]], "instance 1, input 'INPUT0': expected a list of 2, as instance 0"),
        ("matrix", [[[1, 2], [3, 4]], [[1, 2], [3]]], "instance 1, input 'INPUT0', element [1]: expected a list of 2"),
        ("single", [[1], [[2]]], "instance 1, input 'INPUT0', element [0]: expected a number that FP32 can hold"),
        ("identity_int8", [[1, 2, 3], [1, 2, 300]], "instance 1, input 'INPUT0', element [2]: expected an integer"),
        ("add_sub", [PAIR, {**PAIR, "INPUT1": [1, 2]}], "instance 1, input 'INPUT1': expected a list of 4"),
        ("add_sub", [PAIR, {"INPUT0": [1] * 4}], "instance 1: input 'INPUT1' is missing"),
    ],
)
def test_wrong_instance_is_named(container: VertexContainer, model: str, instances: list[Any], text: str) -> None:
    assert_refused(container.post({"instances": instances, "parameters": {"model": model}}), text)


@pytest.mark.parametrize(
    ("parameters", "status", "text"),
    [
        ([], 400, "'parameters': expected an object, got "),
        ({"version": 1.5}, 400, "version"),
        ({"version": "9" * 100_000}, 400, "version"),
        ({"priority": -1}, 400, "priority"),
        ({"sequence_start": "true"}, 400, "sequence_start"),
        ({"triton_x": 1}, 400, "triton_"),
        ({"model": "none"}, 404, "'none'"),
        ({"model": "versions", "version": 3}, 404, "versions"),
    ],
)
def test_wrong_parameters_are_named(container: VertexContainer, parameters: Any, status: int, text: str) -> None:
    assert_refused(container.post({"instances": [ROW], "parameters": parameters}), text, status)


@pytest.mark.parametrize(
    ("before", "opening", "closing", "after"),
    [
        (b'{"instances":', b"[", b"]", b"}"),
        (b'{"instances":[[1]],"parameters":', b'{"a":', b"}", b"}"),
        (b"", b'{"instances":', b"", b""),
    ],
)
def test_deep_nesting_is_refused(
    container: VertexContainer, before: bytes, opening: bytes, closing: bytes, after: bytes
) -> None:
    middle = b"1" if closing else b""
    for depth in (200, 2_000_000):
        assert_refused(container.post(before + opening * depth + middle + closing * depth + after))


def test_bodies_of_ten_megabytes_are_answered(container: VertexContainer) -> None:
    numbers = random.Random(3)
    rows = [[numbers.random() for _ in range(ROWS)] for _ in range(17_000)]
    answer = container.post({"instances": rows})
    assert answer.status == 200, answer.body[:300]
    assert len(answer.document["predictions"]) == len(rows)
    rows[16_999][29] = "x"  # type: ignore[call-overload]
    assert_refused(container.post({"instances": rows}), "instance 16999, input 'INPUT0', element [29]")
    text = "é" * 5_000_000
    assert container.predictions([text], model="text") == [[text]]
    assert_refused(container.post(b'{"instances":[' + b"{}," * 3_000_000 + b"{}]}"), "instance 0: input 'INPUT0'")
    assert_refused(container.post(b'{"instances":[' + b" " * (65 << 20) + b"]}"), "exceeds the maximum allowed")


def test_concurrent_callers_get_their_own_answers_beside_bad_requests(container: VertexContainer) -> None:
    """Explanations send many perturbed instances, in concurrent calls."""
    base = np.linspace(-1, 1, ROWS, dtype=np.float32)
    noise = np.random.default_rng(1).normal(0, 0.1, (40, 50, ROWS)).astype(np.float32)
    bad: list[Any] = [
        {"instances": [ROW, ROW[:-1]]},
        {"instances": [PAIR], "parameters": {"model": "add_sub", "version": 9}},
        b'{"instances":[[1',
    ]

    def call(n: int) -> Any:
        single = [[float(1000 * n + k)] for k in range(50)]
        assert container.predictions(single, model="single") == single
        assert container.post(bad[n % 3]).status >= 400
        return np.array(container.predictions((base + noise[n]).tolist()), np.float32)

    with ThreadPoolExecutor(8) as pool:
        for perturbed, answered in zip(noise, pool.map(call, range(40)), strict=True):
            np.testing.assert_array_equal(answered, base + perturbed)


def test_other_methods_are_405(container: VertexContainer) -> None:
    answer = container.ask("PUT", PREDICT, b"{}", Content_Type=JSON)
    assert (answer.status, answer.error, answer.headers["Allow"]) == (405, "Method Not Allowed", "POST")
    assert container.ask("POST", HEALTH, b"{}").status == 405
