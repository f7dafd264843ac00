"""Bad input of callers: each has its status and a text that names the mistake, and the container serves on.

Source: docs/spec/sagemaker.md sections A5, B5 and C.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.contract.lifecycle.changing_models import WIDTH
from tests.contract.sagemaker.sagemaker_archives import CSV, ONES, write_flat
from tests.contract.sagemaker.sagemaker_container import LIMIT_S
from tests.contract.sagemaker.sagemaker_models import MOST, ROW, SeveralModels, several_models
from trident.core.http.payloads.arrays import write_npy

pytestmark = pytest.mark.slow

JSON = "application/json"
LINES = "application/jsonlines"
NPY = "application/x-npy"
NPZ = "application/x-npz"
OCTETS = "application/octet-stream"
BINARY = "application/vnd.sagemaker-triton.binary+json"
TENSOR = np.ones(WIDTH, "<f4").tobytes()
ARRAY = bytes(write_npy(np.ones((1, WIDTH), "<f4")))


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeveralModels]:
    with several_models(tmp_path_factory.mktemp("container")) as made:
        yield made


# --- content types


@pytest.mark.parametrize(
    ("content_type", "status", "text"),
    [
        ("", 400, "expected a multiple of 16 bytes, got 8"),  # without a type the body is octets
        (OCTETS, 400, "expected a multiple of 16 bytes, got 8"),
        (JSON, 400, "failed to parse the request JSON buffer"),
        (LINES, 400, "line 1: failed to parse"),
        (NPY, 400, "does not begin with \\x93NUMPY"),
        (NPZ, 400, "not a numpy archive (application/x-npz)"),
        (BINARY, 400, "json-header-size=N"),
        ("image/png", 415, f"supported are: {BINARY};json-header-size=N, {JSON}, {CSV}"),
        ("text/csv; charset=latin-1", 415, "supported is: utf-8"),
        ("text/csv, application/json", 400, "the Content-Type header is not understood"),
        ("text", 400, "the Content-Type header is not understood"),
        ("*/*", 400, "the Content-Type header is not understood"),
        ('text/csv; charset="', 400, "the Content-Type header is not understood"),
    ],
)  # fmt: skip
def test_csv_under_another_type_is_refused(container: SeveralModels, content_type: str, status: int, text: str) -> None:
    headers = {"Content_Type": content_type} if content_type else {}
    assert text in container.refusal(status, "floats", ROW, **headers)


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        (CSV, b'{"instances": [[1, 2, 3, 4]]}', "row 1, column 1 (input 'INPUT0'): expected a number"),
        (CSV, b"[[1, 2, 3, 4]]", "row 1, column 1 (input 'INPUT0'): expected a number"),
        (CSV, ARRAY, "row 1: expected 4 columns"),
        (CSV, gzip.compress(ROW), "row 1: expected 4 columns"),
        (CSV, "1,2,3,4\n".encode("utf-16"), "row 2: expected 4 columns, as row 1 has, got 1"),
        (JSON, ARRAY, "failed to parse the request JSON buffer: Expecting value at 0"),
        (JSON, b"[1, 2, 3, 4] [1, 2, 3, 4]\n", "unexpected content after document at 13"),
        (JSON, b"[1, 2, 3, 4]\n[1, 2, 3, 4\n", "line 2: failed to parse the request JSON buffer"),
        (JSON, "[[1, 2, 3, 4]]".encode("utf-16"), "failed to parse the request JSON buffer"),
        (LINES, b"[[1,\n2, 3, 4]]", "line 1: failed to parse the request JSON buffer"),
        (NPY, gzip.compress(ARRAY), "does not begin with \\x93NUMPY"),
        (NPZ, ARRAY, "it has no directory at its end"),
        (OCTETS, ARRAY + b"x", "expected a multiple of 16 bytes"),
    ],
)
def test_body_of_another_type_is_refused(container: SeveralModels, content_type: str, body: bytes, text: str) -> None:
    assert text in container.refusal(400, "floats", body, Content_Type=content_type)


@pytest.mark.parametrize("content_type", [CSV, NPZ, f"{BINARY};json-header-size=0", ""])
def test_empty_body_is_refused(container: SeveralModels, content_type: str) -> None:
    headers = {"Content_Type": content_type} if content_type else {}
    assert container.refusal(400, "floats", b"", **headers) == "the body is empty"


@pytest.mark.parametrize("content_type", [CSV, JSON, LINES])
@pytest.mark.parametrize("body", [b"\r\n", b"\0"])
def test_blank_body_is_refused(container: SeveralModels, content_type: str, body: bytes) -> None:
    text = container.refusal(400, "floats", body, Content_Type=content_type)
    assert any(words in text for words in ("no rows", "row 1", "line 1", "no instances", "failed to parse"))


@pytest.mark.parametrize(
    ("accept", "status", "text"),
    [
        ("image/png", 406, "available are: application/json, text/csv"),
        ("text/csv;q=0", 406, "available are: application/json, text/csv"),
        ("text/csv;q=2", 406, "none of 'text/csv;q=2' can be sent"),
        ("nonsense", 406, "none of 'nonsense' can be sent"),
    ],
)
def test_unacceptable_answer_is_refused(container: SeveralModels, accept: str, status: int, text: str) -> None:
    assert text in container.refusal(status, "floats", ROW, Content_Type=CSV, Accept=accept)


@pytest.mark.parametrize(
    ("encoding", "body", "status", "text"),
    [
        ("gzip", ROW, 400, "failed to decompress the request body"),
        ("gzip", gzip.compress(ROW)[:-4], 400, "it ends before the compressed data does"),
        ("gzip", gzip.compress(ROW) + b"x", 400, "there is more after the compressed data"),
        ("gzip", gzip.compress(bytes(2 * MOST)), 400, f"exceeds the maximum allowed value of {MOST} bytes"),
        ("br", ROW, 415, "Unsupported compression type"),
        ("gzip, gzip", gzip.compress(gzip.compress(ROW)), 415, "Unsupported compression type"),
    ],
    ids=["not", "cut", "more", "bomb", "unknown", "twice"],
)
def test_bad_encoding_is_refused(container: SeveralModels, encoding: str, body: bytes, status: int, text: str) -> None:
    assert text in container.refusal(status, "floats", body, Content_Type=CSV, Content_Encoding=encoding)


# --- the size of the JSON before binary tensors

_INPUT = {"name": "INPUT0", "datatype": "FP32", "shape": [1, WIDTH], "parameters": {"binary_data_size": len(TENSOR)}}
HEADER = json.dumps({"inputs": [_INPUT]}).encode()
N = len(HEADER)
ALL = N + len(TENSOR)
RANGE = f"inference header size should be in range (0, {ALL})"
TYPED = "value is out of range [ -2147483648, 2147483647 ]"
UNREADABLE = "Unable to parse json-header-size, got: "


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ("-1", f"{RANGE}, got: -1"),
        (str(ALL + 1), f"{RANGE}, got: {ALL + 1}"),
        (str(1 << 31), TYPED),
        (str(1 << 63), TYPED),
        ("9" * 400, TYPED),
        ("0", f"Expected {len(TENSOR)}, got {ALL}"),  # the whole body is the tensor
        ("1", "failed to parse the request JSON buffer"),
        (str(N - 1), "failed to parse the request JSON buffer"),
        (str(N + 1), "failed to parse the request JSON buffer"),
        (str(ALL), "failed to parse the request JSON buffer"),
        ("many", f"{UNREADABLE}many"),
        ("1e2", f"{UNREADABLE}1e2"),
        ("0x10", f"{UNREADABLE}0x10"),
        ("1.5", f"{UNREADABLE}1.5"),
        (f"{N};x=y", f"{UNREADABLE}{N};x=y"),
        (f"{N},{N}", f"{UNREADABLE}{N},{N}"),
        ("", "json-header-size=N"),
    ],
)
def test_bad_json_header_size_is_refused(container: SeveralModels, size: str, text: str) -> None:
    content_type = f"{BINARY};json-header-size={size}"
    assert text in container.refusal(400, "floats", HEADER + TENSOR, Content_Type=content_type)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [(TENSOR[:-1], "expecting 1 additional bytes"), (TENSOR + b"x", "unexpected additional input"), (b"", "expecting")],
)
def test_tensor_of_another_length_is_refused(container: SeveralModels, tensor: bytes, text: str) -> None:
    content_type = f"{BINARY};json-header-size={N}"
    assert text in container.refusal(400, "floats", HEADER + tensor, Content_Type=content_type)


# --- rows and instances


@pytest.mark.parametrize(
    ("model", "body", "text"),
    [
        ("floats", b"1,2,3,4\n1,2,3\n", "row 2: expected 4 columns, as row 1 has, got 3"),
        ("floats", b"1,2,3,4\n1,2,3,4,5\n", "row 2: expected 4 columns, as row 1 has, got 5"),
        ("floats", b"1;2;3;4\n", "row 1: expected 4 columns, got 1"),
        ("floats", b"1," * 100_000 + b"1\n", "row 1: expected 4 columns, got 100001"),
        ("floats", b"1,2,3,4\n1,two,3,4\n", "row 2, column 2 (input 'INPUT0'): expected a number"),
        ("floats", b"1,2,3,4\n1,2,,4\n", "row 2, column 3 (input 'INPUT0'): expected a number"),
        ("floats", b"a,b,c,d\n1,2,3,4\n", "row 1 looks like a header, which CSV must not have"),
        ("floats", b"1,2,3,1e999\n", "row 1, column 4 (input 'INPUT0'): expected a number that FP32 can hold"),
        ("floats", b"1,2,3,3.5e38\n", "row 1, column 4 (input 'INPUT0'): expected a number that FP32 can hold"),
        ("floats", b"0x1,2,3,4\n", "row 1, column 1"),
        ("floats", b"1_0,2,3,4\n", "row 1, column 1"),
        ("floats", b'1,2,"3,4\n', "row 1: unexpected end of data"),
        ("floats", b"1" * 1_000_000 + b",2,3,4\n", "row 1: field larger than field limit"),
        ("floats", b"1,2,3,\xe9\n", "row 1, column 4"),
        ("integers", b"1,2,3,128\n", "row 1, column 4 (input 'INPUT0'): expected an integer from -128 to 127 (INT8)"),
        ("integers", b"1,2,3,1.5\n", "row 1, column 4 (input 'INPUT0'): expected an integer from -128 to 127 (INT8)"),
        ("integers", b"1,2,3," + b"9" * 5000 + b"\n", "row 1, column 4"),
        ("integers", b"1,nan,3,4\n", "row 1, column 2"),
        ("flags", b"true,1,maybe,0\n", "row 1, column 3 (input 'INPUT0'): expected true or false, got 'maybe'"),
        ("text", b"a,b,c\n", "row 1: expected 4 columns, got 3"),
        ("pair", b"1,2\n", "row 1: expected 32 columns (16 for 'INPUT0', 16 for 'INPUT1'), got 2"),
    ],
)  # fmt: skip
def test_wrong_row_and_column_are_named(container: SeveralModels, model: str, body: bytes, text: str) -> None:
    assert text in container.refusal(400, model, body, Content_Type=CSV)


@pytest.mark.parametrize(
    ("model", "body", "text"),
    [
        ("floats", b'{"instances": [[1, 2, 3, 4], [1, 2]]}', "instance 1, input 'INPUT0': expected a list of 4"),
        ("floats", b'[["1", 2, 3, 4]]', "instance 0, input 'INPUT0', element [0]: expected a number"),
        ("floats", b"[[true, 2, 3, 4]]", "instance 0, input 'INPUT0', element [0]: expected a number"),
        ("floats", b'{"instances": []}', "there are no instances"),
        ("floats", b'{"instances": null}', "'instances': expected a list of instances, got null"),
        ("floats", b'{"inputs": {}}', "input 'INPUT0' is missing"),
        ("floats", b'{"instances": [[1, 2, 3, 4]], "more": 1}', "unknown member 'more'"),
        ("floats", b"[[1e999, 1, 2, 3]]", "number is infinity"),
        ("floats", b"[" * 100_000, "nesting depth"),
        ("floats", b'{"a":' * 5000 + b"1" + b"}" * 5000, "nesting depth"),
        ("integers", b"[[1, 2, 3, 128]]", "instance 0, input 'INPUT0', element [3]: expected an integer from -128"),
        ("integers", b"[[1, 2, 3, 1.5]]", "instance 0, input 'INPUT0', element [3]: expected an integer from -128"),
        ("text", b'[["a", "b", "c", {"b64": "!!"}]]', "invalid base64"),
        ("pair", b'{"instances": [{"INPUT0": [1]}]}', "input 'INPUT1' is missing"),
        ("pair", b'{"instances": [{"INPUT0": [1], "X": [1]}]}', "'X' is not an input of model 'pair'"),
    ],
)
def test_wrong_instance_and_element_are_named(container: SeveralModels, model: str, body: bytes, text: str) -> None:
    assert text in container.refusal(400, model, body, Content_Type=JSON)


# --- names and concurrent loads


@pytest.mark.parametrize("name", ["nothing", "..", "%2e%2e", "..%2ffloats", "floats%00", "n" * 4000, "%ff", "FLOATS"])
def test_unknown_model_is_a_404(container: SeveralModels, name: str) -> None:
    assert "is not loaded" in container.refusal(404, name, ROW, Content_Type=CSV)


def test_missing_folder_cannot_be_loaded(container: SeveralModels) -> None:
    answer = container.process.load("nothing", f"{container.root}/nothing/model")
    assert answer.status == 400
    assert json.loads(answer.body)["error"] == f"there is no folder '{container.root}/nothing/model'"
    answer = container.process.ask("GET", "/models/nothing")
    assert (answer.status, json.loads(answer.body)["error"]) == (404, "model 'nothing' is not loaded")
    assert container.unload("nothing") == 404
    assert container.serves()


def outcomes(calls: list[Any]) -> list[Any]:
    """The results of calls that are made at the same moment."""
    together = threading.Barrier(len(calls))

    def each(call: Any) -> Any:
        together.wait(LIMIT_S)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(LIMIT_S) for future in [pool.submit(each, call) for call in calls]]


def test_concurrent_loads_and_unloads_are_answered_truly(container: SeveralModels) -> None:
    """Whichever call is first, each answer is true, and the last call decides whether the model is loaded."""
    write_flat(container.root / "meeting" / "model", 2, 20)

    def load() -> int:
        return container.load("meeting")

    def unload() -> int:
        return container.unload("meeting")

    for _ in range(3):
        assert sorted(outcomes([load, load])) == [200, 409]
        found = outcomes([unload, load, unload])
        assert found[1] in (200, 409)
        assert {found[0], found[2]} <= {200, 404}
        assert 200 in (found[0], found[2])
        is_loaded = container.process.ask("GET", "/models/meeting").status == 200
        answer = container.process.ask("POST", "/models/meeting/invoke", ONES, Content_Type=CSV)
        assert answer.status == (200 if is_loaded else 404)
        if is_loaded:
            assert unload() == 200
    assert container.serves()


def test_model_is_a_404_until_it_is_loaded(container: SeveralModels) -> None:
    write_flat(container.root / "slow" / "model", 3, 60)
    early: set[int] = set()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(container.load, "slow")
        while not loading.done():
            early.add(container.process.ask("POST", "/models/slow/invoke", ONES, Content_Type=CSV).status)
        assert loading.result(LIMIT_S) == 200
    assert early <= {404, 200}  # 200 if the load had just finished
    assert container.load("slow") == 409
    assert container.unload("slow") == 200
