from __future__ import annotations

import pytest

from tests.unit.core.http.payloads.payload_models import model, one
from trident.core.config.spec import ModelSpec
from trident.core.http.payloads.request_lines import may_be_request_lines, request_lines
from trident.core.inference.tensors import Buffer

ONE = one("FP32", 2)
V2 = b'{"inputs":[{"name":"IN"}]}'
INSTANCES = b'{"instances":[[1,2]]}'
COLUMNS = b'{"inputs":{"IN":[[1,2]]}}'
JSON = "application/json"
LINES = "application/jsonlines"


def documents(content_type: str, body: Buffer, spec: ModelSpec = ONE) -> list[bytes] | None:
    return request_lines(content_type, body, spec) if may_be_request_lines(content_type, body) else None


@pytest.mark.parametrize("content_type", [JSON, "application/json; charset=utf-8", "", LINES, "application/x-ndjson"])
def test_each_line_is_a_request_under_any_type_of_json(content_type: str) -> None:
    assert documents(content_type, INSTANCES + b"\n" + V2) == [INSTANCES, V2]


@pytest.mark.parametrize("document", [V2, INSTANCES, COLUMNS, b'{"id":"1","parameters":{},"inputs":[{}]}'])
@pytest.mark.parametrize(("between", "end"), [(b"\n", b""), (b"\n", b"\n"), (b"\r\n", b"\r\n")])
def test_each_line_is_a_request(document: bytes, between: bytes, end: bytes) -> None:
    found = documents(JSON, memoryview(document + between + V2 + end))
    assert found is not None
    assert [line.strip() for line in found] == [document, V2]


def test_a_first_line_may_have_any_length() -> None:
    long = INSTANCES + b" " * 200_000 + b"}"
    body = INSTANCES[:-1] + b" " * 200_000 + b"}\n" + V2
    assert documents(JSON, memoryview(body)) == [body.split(b"\n")[0], V2]
    assert documents(JSON, memoryview(long)) is None


def test_arrays_are_requests_in_json_and_instances_in_json_lines() -> None:
    rows = b"[1,2]\n[3,4]\n"
    assert documents(JSON, rows) == [b"[1,2]", b"[3,4]"]
    assert documents(LINES, rows) is None
    assert documents("", rows) is None


def test_a_single_line_is_a_request_only_in_json_lines_with_instances() -> None:
    for document in (V2, INSTANCES, COLUMNS):
        assert documents(JSON, document + b"\n") is None
    assert documents(LINES, V2 + b"\n") is None
    assert documents(LINES, INSTANCES + b"\n") == [INSTANCES]


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (JSON, b'{\n"instances": [\n[1,2],\n[3,4]\n]\n}'),
        (JSON, b'{"instances": [[1,2]\n]\n}'),
        (JSON, b'{"instances": [\n{"IN": [1,2]},\n{"IN": [1,2]}]}'),
        (JSON, b'{"a":1}\n{"a":2}'),
        (JSON, b"[1,2}\n[3,4]"),
        (LINES, b'{"IN":[1,2]}\n{"IN":[3,4]}'),
        (LINES, b'{"IN":["inputs"]}\n{"IN":["\\"instances\\""]}'),
        (LINES, b'{"inputs"\n'),
        ("text/csv", b"1,2\n3,4\n"),
        ("text/csv", INSTANCES + b"\n" + INSTANCES),
        ("application/x-npy", V2 + b"\n" + V2),
        ("", b"{\0}\n{\0}\n"),
        (JSON, b""),
        (LINES, b""),
    ],
)
def test_any_other_body_has_no_request_lines(content_type: str, body: bytes) -> None:
    assert documents(content_type, body) is None


def test_an_input_may_have_the_name_of_a_member() -> None:
    spec = model({"instances": ("FP32", (2,))})
    lines = b'{"instances":[1,2]}\n{"instances":[3,4]}\n'
    assert documents(LINES, lines, spec) is None
    assert documents(JSON, lines, spec) is not None


def test_blank_lines_are_passed_over() -> None:
    assert documents(LINES, V2 + b"\n\n" + V2 + b"\n \r\n") == [V2, V2]
