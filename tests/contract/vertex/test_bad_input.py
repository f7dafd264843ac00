"""Bad requests: one error says where the mistake is, and the server goes on."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.vertex.vertex_container import HEALTH, PREDICT, Answer, VertexContainer
from tests.contract.vertex.vertex_models import ROWS, serving

pytestmark = pytest.mark.slow

ROW = [1.0] * ROWS
PAIR = {"INPUT0": [1, 2, 3, 4], "INPUT1": [1, 2, 3, 4]}


@pytest.fixture(scope="module")
def module_container(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexContainer]:
    with serving(tmp_path_factory) as made:
        yield made
        assert "Traceback" not in made.log_text()


@pytest.fixture
def container(module_container: VertexContainer) -> Iterator[VertexContainer]:
    """After each test the container serves, in the same process."""
    pid = module_container.process.pid
    yield module_container
    assert module_container.health_status() == 200
    assert module_container.predictions([ROW, ROW]) == [ROW, ROW]
    assert module_container.process.pid == pid


def assert_refused(answer: Answer, text: str = "", status: int = 400) -> None:
    assert answer.status == status, answer.body[:300]
    assert answer.headers["Content-Type"] == "application/json"
    assert len(answer.error) > 10
    assert text in answer.error
    assert len(answer.body) < 2000


# --- documents


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "the body is empty"),
        (b" ", "input data is empty at 0"),
        (b"\0", "at 0"),
        (b"\xff\xfe\xfd", "not valid UTF-8 at 0"),
        (b"null", "'instances'"),
        (b"{}", "'instances'"),
        (b'{"instance":[1]}', "'instances'"),
        (b'{"instances":[[1,2', "unexpected end of data at 18"),
        (b'{"instances":[[1,2]]}}', "at 21"),
        (b'{"instances":[[1,2,]]}', "trailing comma"),
        (b'{"instances":[[1 2]]}', "at "),
        (b'{"instances":[[01]]}', "at "),
        (b"{'instances':[[1]]}", "expected a string key at 1"),
        (b'{"instances":[["\xff"]]}', "failed to parse"),
        (b'{"instances":[["\\ud800"]]}', "surrogate"),
        (b'{"instances":[["\\x41"]]}', "failed to parse"),
        (b'{"instances":[[1e400]]}', "infinity"),
        (b'{"instances":[[1]],"inputs":[]}', "unknown member 'inputs'"),
        (b'{"instances":[[1]],"Parameters":{}}', "unknown member 'Parameters'"),
        (b'{"instances":[]}', "there are no instances"),
        (b'{"instances":null}', "'instances': expected a list of instances, got null"),
        (b'{"instances":{}}', "'instances': expected a list of instances, got an object"),
        (b'{"instances":{"INPUT0":[1]}}', "'instances': expected a list of instances, got an object"),
        (b'{"instances":"text"}', "'instances': expected a list of instances, got 'text'"),
        (b'{"instances":5}', "'instances': expected a list of instances, got 5"),
        (b'{"instances":true}', "'instances': expected a list of instances, got true"),
    ],
)
def test_bad_document_is_refused(container: VertexContainer, body: bytes, text: str) -> None:
    assert_refused(container.post(body), text)


@pytest.mark.parametrize("depth", [200, 2_000_000])
@pytest.mark.parametrize(
    ("before", "opening", "closing", "after"),
    [
        (b'{"instances":', b"[", b"]", b"}"),
        (b'{"instances":[', b'{"INPUT0":', b"}", b"]}"),
        (b'{"instances":[[1]],"parameters":', b'{"a":', b"}", b"}"),
        (b"", b"[", b"", b""),
        (b"", b'{"instances":', b"", b""),
    ],
)
def test_deep_nesting_is_refused(
    container: VertexContainer, depth: int, before: bytes, opening: bytes, closing: bytes, after: bytes
) -> None:
    middle = b"1" if closing else b""
    assert_refused(container.post(before + opening * depth + middle + closing * depth + after))


def test_parameters_must_be_an_object(container: VertexContainer) -> None:
    for parameters in (True, 1, 1.5, "text", [], [1], [{}]):
        answer = container.post({"instances": [ROW], "parameters": parameters})
        assert_refused(answer, "'parameters': expected an object, got ")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("model", [None, True, 1, 1.5, [], ["rows"], {}]),
        ("version", [None, True, 1.5, -2, 2**63, 10**400, "x", "-1", [], {}]),
        ("outputs", [None, True, 1, 1.5, {}, [1], [None], [["OUTPUT0"]]]),
        ("id", [None, True, 1, 1.5, [], {}]),
        ("stream", [None, 1, "true", [], {}]),
        ("priority", [None, True, -1, 1.5, "x", [], {}]),
        ("timeout", [None, True, -1, 1.5, "x", [], {}]),
        ("sequence_id", [None, -1, 1.5, [], {}]),
        ("sequence_start", [None, 1, "true", [], {}]),
        ("binary_data_output", [None, 1, "true", [], {}]),
        ("triton_x", [1]),
        ("other", [None, [], {}, [1]]),
    ],
)
def test_parameter_of_a_wrong_type_is_named(container: VertexContainer, name: str, values: list[Any]) -> None:
    for value in values:
        answer = container.post({"instances": [ROW], "parameters": {name: value}})
        if value == 10**400:
            assert_refused(answer)  # no parser reads such a number
        else:
            assert_refused(answer, name.partition("_x")[0])


# --- instances


@pytest.mark.parametrize(
    ("instances", "text"),
    [
        ([ROW, {"INPUT0": ROW}], "instance 0: expected an object"),
        ([{"INPUT0": ROW}, ROW], "instance 1: expected an object"),
        ([{"INPUT0": ROW}, 5], "instance 1: expected an object"),
        ([{"INPUT0": ROW}, None], "instance 1: expected an object"),
        ([ROW, 5], "instance 1, input 'INPUT0'"),
        ([ROW, None], "instance 1, input 'INPUT0'"),
        ([ROW, "text"], "instance 1, input 'INPUT0'"),
        ([ROW, []], "instance 1, input 'INPUT0'"),
        ([ROW, [ROW]], "instance 1, input 'INPUT0'"),
        ([{"INPUT1": ROW}], "instance 0: 'INPUT1' is not an input of model 'rows'"),
        ([{"input0": ROW}], "instance 0: 'input0' is not an input of model 'rows'"),
        ([{"INPUT0": ROW}, {"INPUT0": ROW, "more": 1}], "instance 1: 'more' is not an input of model 'rows'"),
        ([{"INPUT0": ROW}, {}], "instance 1: input 'INPUT0' is missing"),
        ([{"INPUT0": ROW}, {"key": 1}], "instance 1: input 'INPUT0' is missing"),
        ([{"INPUT0": None}], "instance 0, input 'INPUT0'"),
        ([{"INPUT0": {"INPUT0": ROW}}], "instance 0, input 'INPUT0'"),
        ([[*ROW[:-1], "x"]], "instance 0, input 'INPUT0', element [29]"),
        ([ROW, [*ROW[:-1], None]], "instance 1, input 'INPUT0', element [29]"),
        ([ROW, [*ROW[:-1], True]], "instance 1, input 'INPUT0', element [29]"),
        ([ROW, [*ROW[:-1], {}]], "instance 1, input 'INPUT0', element [29]"),
        ([ROW, [*ROW[:-1], {"b64": "AACAPw=="}]], "instance 1, input 'INPUT0', element [29]"),
    ],
)
def test_wrong_instance_is_named(container: VertexContainer, instances: list[Any], text: str) -> None:
    assert_refused(container.post({"instances": instances}), text)
    # Another parser reads large bodies.
    assert_refused(container.post({"instances": instances + [instances[0]] * 500}), text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!", "invalid base64"),
        ("AAA", "invalid base64"),
        ("AAAA=", "invalid base64"),
        ("AAAA AAAA", "invalid base64"),
        ("_-_-", "invalid base64"),
        ("=", "invalid base64"),
        ("é", "invalid base64"),
        ("", "expected 120 bytes, got 0"),
        ("AAAA", "expected 120 bytes, got 3"),
        ("AAAA\nAAAA", "expected 120 bytes, got 6"),  # base64 may come in lines
        (base64.b64encode(b"\0" * 121).decode(), "expected 120 bytes, got 121"),
        (base64.b64encode(b"\0" * (1 << 20)).decode(), "expected 120 bytes, got 1048576"),
        (None, "expected a string of base64, got null"),
        (5, "expected a string of base64, got 5"),
        (["AAAA"], "expected a string of base64, got a list"),
    ],
)
def test_bad_base64_is_named(container: VertexContainer, text: object, message: str) -> None:
    good = {"b64": base64.b64encode(b"\0" * 120).decode()}
    for instances in ([good, {"b64": text}], [{"INPUT0": good}, {"INPUT0": {"b64": text}}]):
        answer = container.post({"instances": instances})
        assert_refused(answer, "instance 1, input 'INPUT0'")
        assert message in answer.error


def test_base64_object_has_one_member(container: VertexContainer) -> None:
    assert_refused(
        container.post({"instances": [{"b64": "AAAA", "more": 1}]}), "instance 0: 'b64' is not an input of model 'rows'"
    )


def test_long_names_are_not_repeated(container: VertexContainer) -> None:
    assert_refused(container.post({"instances": [{"x" * 100_000: 1}]}), "is not an input of model 'rows'")
    assert_refused(container.post({"instances": ["x" * 100_000]}), "instance 0")
    assert_refused(container.post({"instances": [ROW], "y" * 100_000: 1}), "unknown member")
    assert_refused(container.post({"instances": [ROW], "parameters": {"version": "9" * 100_000}}), "version")


# --- sizes


@pytest.mark.parametrize("named", [False, True])
def test_ten_megabytes_of_instances_are_answered(container: VertexContainer, named: bool) -> None:
    numbers = random.Random(3)
    rows = [[numbers.random() for _ in range(ROWS)] for _ in range(17_000)]
    body = json.dumps({"instances": [{"INPUT0": row} for row in rows] if named else rows}).encode()
    assert len(body) > 10_000_000
    answer = container.post(body)
    assert answer.status == 200, answer.body[:300]
    assert len(answer.document["predictions"]) == len(rows)
    rows[16_999][29] = "x"  # type: ignore[call-overload]
    instances = [{"INPUT0": row} for row in rows] if named else rows
    assert_refused(container.post({"instances": instances}), "instance 16999, input 'INPUT0', element [29]")


def test_string_of_ten_megabytes_is_answered(container: VertexContainer) -> None:
    text = "é" * 5_000_000
    assert container.predictions([text], model="text") == [[text]]
    assert_refused(container.post({"instances": [text]}), "instance 0, input 'INPUT0': expected a list of 30")


def test_ten_megabytes_of_empty_instances_are_refused(container: VertexContainer) -> None:
    assert_refused(container.post(b'{"instances":[' + b" " * 10_000_000 + b"]}"), "there are no instances")
    assert_refused(container.post(b'{"instances":[' + b"[]," * 3_000_000 + b"[]]}"), "instance 0, input 'INPUT0'")
    assert_refused(container.post(b'{"instances":[' + b"{}," * 3_000_000 + b"{}]}"), "instance 0: input 'INPUT0'")


def test_body_over_the_limit_is_refused(container: VertexContainer) -> None:
    answer = container.post(b'{"instances":[' + b" " * (65 << 20) + b"]}")
    assert answer.status in (400, 413)
    assert answer.error


# --- around the body


def test_other_methods_are_405(container: VertexContainer) -> None:
    body = json.dumps({"instances": [ROW]}).encode()
    for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS"):
        answer = container.ask(method, PREDICT, body, Content_Type="application/json")
        assert (answer.status, answer.error, answer.headers["Allow"]) == (405, "Method Not Allowed", "POST")
    assert container.ask("POST", HEALTH, body).status == 405


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("image/png", 415),
        ("text/html", 415),
        ("application/xml", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/json; charset=utf-16", 415),
        ("a" * 2000, 400),
        ("/", 400),
        ("text/csv", 400),
        ("application/x-npy", 400),
    ],
)
def test_wrong_content_type_is_refused(container: VertexContainer, content_type: str, status: int) -> None:
    body = json.dumps([ROW]).encode()
    assert_refused(container.post(body, Content_Type=content_type), status=status)


@pytest.mark.parametrize("content_type", ["application/octet-stream", ""])
def test_octet_stream_is_json_or_has_the_size_of_the_input(container: VertexContainer, content_type: str) -> None:
    headers = {"Content_Type": content_type} if content_type else {}
    answer = container.post(json.dumps([ROW]).encode(), **headers)
    assert (answer.status, len(answer.document)) == (200, 1)
    assert_refused(container.post(json.dumps([ROW]).encode()[:-1], **headers), status=400)


def test_bad_requests_do_not_disturb_good_ones(container: VertexContainer) -> None:
    bodies: list[Any] = [
        {"instances": [ROW, ROW[:-1]]},
        {"instances": [PAIR], "parameters": {"model": "add_sub", "version": 9}},
        b'{"instances":[[1',
        {"instances": [[1.5, 2, 3]], "parameters": {"model": "identity_int8"}},
    ]

    def call(n: int) -> bool:
        if n % 2:
            rows = [[float(n)] * ROWS] * (n % 7 + 1)
            return container.predictions(rows) == rows
        answer = container.post(bodies[n // 2 % len(bodies)])
        return answer.status >= 400 and bool(answer.error)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(200)))
